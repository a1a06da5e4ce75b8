"""Replicas that fail at random, by drawing them: what the closed forms of `recovery` must agree with. Any one unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from labkit.cost.refuse import not_negative, positive, whole

__all__ = ["ReplicaRuns", "simulate_replicas"]


@dataclass(frozen=True)
class ReplicaRuns:
    """effective: part of the full throughput, mean over the runs. error: its standard error. The rest: parts of time.

    stalled: all stand still. by_missing[k]: k replicas are missing, stalled or not. failures: mean number in a run.
    """

    effective: float
    error: float
    stalled: float
    by_missing: tuple[float, ...]
    failures: float


def simulate_replicas(
    every: float,
    recovery: float,
    stall: float,
    replicas: int,
    rejoin: float = 0.0,
    *,
    time: float | None = None,
    runs: int = 20,
    seed: int = 0,
) -> ReplicaRuns:
    """`runs` runs of `time` each (1,000 times `every` when None), with failures drawn from `seed`.

    A failure strikes one replica by chance, also one that recovers: its recovery starts again. All stand still for
    `stall` after each failure and for `rejoin` after each return. Every run begins with all replicas there.
    """
    positive(every=every)
    not_negative(recovery=recovery, stall=stall, rejoin=rejoin)
    whole(replicas=replicas, runs=runs)
    length = 1000 * every if time is None else time
    positive(time=length)
    if runs < 2:
        raise ValueError("runs must be at least 2: one run has no spread")
    random = Random(seed)
    found = [_run(random, every, recovery, stall, replicas, rejoin, length) for _ in range(runs)]
    parts = [one[0] for one in found]
    mean = math.fsum(parts) / runs
    variance = math.fsum((x - mean) ** 2 for x in parts) / (runs - 1)
    missing = tuple(math.fsum(one[2][k] for one in found) / runs for k in range(replicas + 1))
    stalled, failures = math.fsum(one[1] for one in found) / runs, sum(one[3] for one in found) / runs
    return ReplicaRuns(mean, math.sqrt(variance / runs), stalled, missing, failures)


def _run(
    random: Random, every: float, recovery: float, stall: float, replicas: int, rejoin: float, length: float
) -> tuple[float, float, list[float], int]:
    """(effective, stalled, by number missing, failures) of one run, the first three as parts of `length`."""
    back: dict[int, float] = {}  # replica -> when it is there again
    now, stalled_until, failures = 0.0, 0.0, 0
    worked, stood, missing = 0.0, 0.0, [0.0] * (replicas + 1)
    failure = random.expovariate(1 / every)
    while now < length:
        nearest = min(back.values(), default=math.inf)
        then = min(failure, nearest, length)
        moving = max(0.0, then - max(now, stalled_until))
        worked += moving * (replicas - len(back)) / replicas
        stood += then - now - moving
        missing[len(back)] += then - now
        now = then
        if now == failure:
            back[random.randrange(replicas)] = now + recovery
            stalled_until, failures = max(stalled_until, now + stall), failures + 1
            failure = now + random.expovariate(1 / every)
        elif now == nearest:
            back = {replica: at for replica, at in back.items() if at > now}
            stalled_until = max(stalled_until, now + rejoin)
    return worked / length, stood / length, [m / length for m in missing], failures
