"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from labkit.chapters.c21_hundred_thousand_gpus.axes import Machine, order_seconds, outside
from labkit.chapters.c21_hundred_thousand_gpus.runs import Fleet


def counted(fleet: Fleet, wrong: str = "") -> dict[str, int]:
    """GPU-seconds that are trained, stalled and away, second by second. wrong: a known slip, a key of WRONG."""
    length, gpus, stall, rejoin = fleet["length"], fleet["gpus"], fleet["stall"], fleet["rejoin"]
    seconds = length + (5000 if wrong == "beyond" else 0)  # long enough for every repair
    here = np.full(seconds, fleet["replicas"], np.int32)
    still = np.zeros(seconds + 1, np.int32)
    away = doubled = 0
    until = 0  # the end of the last stall, where they are wrongly put one after the other
    begun = sorted((time, gpu // gpus, repair) for time, gpu, repair in fleet["failures"] if time < length)
    for time, _, _ in begun:
        begins = max(time, until) if wrong == "queue" else time
        until = begins + stall
        _mark(still, begins, until)
    for replica in range(fleet["replicas"]):
        repairs = np.zeros(seconds + 1, np.int32)
        end = 0
        for time, of, repair in begun:
            if of != replica:
                continue
            if wrong == "replaced" and end > time:
                _mark(repairs, time, end, -1)
            end = time + repair
            _mark(repairs, time, end)
            doubled += gpus * (min(end, length) - time)
            if wrong == "each returns" and end < length:
                _mark(still, end, end + rejoin)
        gone = np.cumsum(repairs[:-1]) > 0
        if wrong != "no rejoin":
            for back in np.flatnonzero(gone[:-1] & ~gone[1:]) + 1:
                if back < length:
                    _mark(still, int(back), int(back) + rejoin)
        if wrong == "back at once":
            own = [(time, repair) for time, of, repair in begun if of == replica]
            for back in {time + repair for time, repair in own} & {time for time, _ in own}:
                _mark(still, back, back + rejoin)
        here -= gone
        away += int(gone.sum()) * gpus
    standing = np.cumsum(still[:-1]) > 0
    stalled = gpus * int(here[standing].sum())
    trained = fleet["replicas"] * gpus * length - stalled - away
    if wrong == "doubled":
        trained, away = trained - (doubled - away), doubled
    if wrong == "all stalled":
        stalled = gpus * fleet["replicas"] * int(standing.sum())
    if wrong == "one GPU":
        trained, away = trained + away - away // gpus, away // gpus
    return {"trained": trained, "stalled": stalled, "away": away}


def _mark(line: np.ndarray, begin: int, end: int, by: int = 1) -> None:
    """Add `by` to what the seconds from `begin` to `end` will sum up to; beyond the end of the line nothing."""
    last = len(line) - 1
    line[min(begin, last)] += by
    line[min(end, last)] -= by


def least(machine: Machine) -> float | None:
    """The seconds of the best order that is allowed, or None if no order is."""
    allowed = [order for order in permutations(machine["axes"]) if not outside(machine, order)]
    return min((order_seconds(machine, order) for order in allowed), default=None)
