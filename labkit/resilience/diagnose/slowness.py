"""Who slows the others down: the rank that spends the least time in communication.

Ranks that work together wait for the last of them. So the slow one comes last, and finds everybody there: its own
calls take the least time, and everybody else's contain the wait for it. No clocks are compared, only durations (the
FT-HSDP paper, section 2.3). In a mesh this holds as well, if all groups of a rank are added up: a partner of the slow
rank comes late to its other groups, but has waited before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import Trace
from labkit.world.diagnosis.explain import ranks_text

from .report import Report
from .spent import communication
from .verdict import Verdict
from .waits import Clue

LEAST = 0.05  # of the time looked at: who costs the others less is not worth a search
CLEAR = 1.5  # how many times as far from the others as any of those is from the next


@dataclass(frozen=True)
class Speeds:
    """Seconds in communication by rank, during `window` seconds. steps: those looked at; () where they are unknown.

    slow: the ranks that the others wait for; () for none. cost: what the others wait for them, in seconds, which is
    how much shorter the window would be without. least: the part of the window by which they had to be set apart.
    """

    seconds: dict[int, float]
    window: float
    slow: tuple[int, ...]
    cost: float
    steps: tuple[int, ...] = ()
    least: float = LEAST

    @property
    def verdict(self) -> Verdict:
        """The same as a verdict of kind "slow", or "nothing"."""
        if not self.slow:
            text = f"no rank is set apart from the others by {self.least:.0%} of the time"
            return Verdict("nothing", (), True, (Clue(frozenset(), "nothing", text),))
        rest = [s for r, s in self.seconds.items() if r not in self.slow]
        mine = [self.seconds[r] for r in self.slow]
        text = (
            f"in {self.window:.3g} s {ranks_text(self.slow)} spent {max(mine):.3g} s in communication, the others "
            f"{min(rest):.3g} to {max(rest):.3g} s: they wait about {self.cost / self.window:.0%} of the time"
        )
        return Verdict("slow", self.slow, True, (Clue(frozenset(self.slow), "slow", text),))


def find_slow(seconds: Mapping[int, float], window: float, least: float = LEAST, steps: tuple[int, ...] = ()) -> Speeds:
    """The ranks, at most half of them, that are set apart from all others by little time in communication.

    least: the part of `window` by which they have to differ.
    """
    order = sorted(seconds, key=lambda r: (seconds[r], r))
    values = [seconds[r] for r in order]
    gaps = [b - a for a, b in zip(values, values[1:], strict=False)][: len(order) // 2]
    slow: tuple[int, ...] = ()
    cost = 0.0
    if gaps and window > 0:
        at = int(np.argmax(gaps))
        rest = values[at + 1 :]
        placement = max((b - a for a, b in zip(rest, rest[1:], strict=False)), default=0.0)
        if gaps[at] >= least * window and gaps[at] > CLEAR * placement:
            slow, cost = tuple(sorted(order[: at + 1])), float(np.median(rest)) - values[at]
    return Speeds(dict(seconds), window, slow, cost, steps, least)


def stragglers(trace: Trace, steps: Collection[int] | None = None, least: float = LEAST) -> Speeds:
    """The slow ranks of a run, during the given training steps, or during all of it."""
    seconds: dict[int, float] = {}
    begin, end = [], []
    events = trace.events
    for rank in range(trace.world_size):
        mine = events[events["rank"] == rank]
        chosen = _in_place(mine)
        if steps is not None:
            chosen &= np.isin(mine["step"], list(steps))
        seconds[rank] = float((mine["t1"][chosen] - mine["t0"][chosen]).sum()) / 1e9
        spans = mine[np.isin(mine["step"], list(steps))] if steps is not None else mine
        spans = spans[(spans["kind"] != rec.NOTE) & (spans["t1"] > 0)]
        if len(spans):
            begin.append(int(spans["t0"].min()))
            end.append(int(spans["t1"].max()))
    window = (max(end) - min(begin)) / 1e9 if end else 0.0
    return find_slow(seconds, window, least, tuple(sorted(steps)) if steps is not None else ())


def since(before: Mapping[int, Report], now: Mapping[int, Report], window: float, least: float = LEAST) -> Speeds:
    """The slow ranks between two looks that are `window` seconds apart."""
    seconds = {rank: now[rank].seconds - before[rank].seconds for rank in now if rank in before}
    return find_slow(seconds, window, least)


def _in_place(mine: np.ndarray) -> np.ndarray:
    """`communication` of one rank's rows of a trace: a wait names what it is for by its place on the page."""
    whole = np.zeros(int(mine["index"].max()) + 1 if len(mine) else 0, rec.EVENT)
    for name in rec.EVENT.names or ():
        whole[name][mine["index"]] = mine[name]
    return communication(whole)[mine["index"]]
