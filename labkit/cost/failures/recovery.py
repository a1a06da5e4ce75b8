"""The part of the time that trains, when every failure stops all, and when it stops one replica. Any one unit.

every is the time between two failures in the whole fleet; recovery the time until what failed takes part again;
stall what all replicas stand still for at a failure, rejoin what they stand still for when one comes back. `stalls`
takes both apart.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import not_negative, positive, whole

__all__ = [
    "fault_tolerant_effective_time",
    "random_fault_tolerant_effective_time",
    "random_synchronous_effective_time",
    "synchronous_effective_time",
]


def synchronous_effective_time(every: float, recovery: float) -> float:
    """(every - recovery) / every: one failure every 18 min and 10 min to recover leave 44.4 percent.

    By the clock: failures come at equal distances, and none in a recovery. What is trained again since the last
    checkpoint, and writing checkpoints, are not in it; `checkpoint_tax` has all of that.
    """
    _check(every, recovery)
    return (every - recovery) / every


def fault_tolerant_effective_time(
    every: float,
    recovery: float,
    stall: float,
    replicas: int,
    rejoin: float = 0.0,
    rejoin_within_recovery: bool = True,
) -> float:
    """The same where the others go on: (every - recovery + (recovery - stall) (replicas - 1) / replicas) / every.

    18 min, 10 min, a stall of 3 min, 12 replicas: 80.09 percent. With the 100 s of rejoining, taken from the time in
    which one replica is missing: 71.60 percent; taken from the time after it (`rejoin_within_recovery=False`): 70.83.
    """
    _check(every, recovery)
    not_negative(stall=stall, rejoin=rejoin)
    whole(replicas=replicas)
    degraded = recovery - stall - (rejoin if rejoin_within_recovery else 0.0)
    healthy = every - recovery - (0.0 if rejoin_within_recovery else rejoin)
    if degraded < 0 or healthy < 0:
        raise ValueError(
            f"stall={stall!r} and rejoin={rejoin!r} do not fit into recovery={recovery!r} and every={every!r}"
        )
    return (healthy + degraded * (replicas - 1) / replicas) / every


def random_synchronous_effective_time(every: float, recovery: float) -> float:
    """e^(-recovery/every): failures at random, at a constant rate, also during a recovery, which then starts again.

    The fleet trains when the last `recovery` had no failure. 18 and 10 min: 57.4 percent, not 44.4: at random,
    failures come in bunches, and a recovery that repairs two costs less than two.
    """
    positive(every=every)
    not_negative(recovery=recovery)
    return math.exp(-recovery / every)


def random_fault_tolerant_effective_time(
    every: float, recovery: float, stall: float, replicas: int, rejoin: float = 0.0
) -> float:
    """The same for replicas that fail by themselves, each every `every * replicas`. Exact; `simulate_replicas` agrees.

    With m = 1 / (every replicas): e^(-m (recovery+rejoin)) (e^(-m stall) - e^(-m recovery) + e^(-m (recovery+rejoin)))
    ^ (replicas - 1). A replica counts if its last failure is longer ago than recovery and rejoining, and all others
    must not be stalling it: no failure within `stall`, nobody back since less than `rejoin`. Two failures may be
    repaired at once. A replica that fails again while it recovers stalls the others once more.
    """
    positive(every=every)
    not_negative(recovery=recovery, stall=stall, rejoin=rejoin)
    whole(replicas=replicas)
    if stall > recovery:
        raise ValueError(
            f"stall={stall!r} must be at most recovery={recovery!r}: what stalls all also stalls the failed"
        )

    def none_within(span: float) -> float:
        return math.exp(-span / (every * replicas))

    whole_way = none_within(recovery + rejoin)
    return whole_way * (none_within(stall) - none_within(recovery) + whole_way) ** (replicas - 1)


def _check(every: float, recovery: float) -> None:
    positive(every=every)
    not_negative(recovery=recovery)
    if recovery > every:
        raise ValueError(
            f"recovery={recovery!r} must be at most every={every!r}: by the clock, a longer one never ends; "
            f"the random_ functions can count it"
        )
