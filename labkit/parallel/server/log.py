"""The log of a server: what was applied, on which weights it was computed, and who waited.

Nothing here trusts the server: leads and repetitions are found by counting the rows once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """An update of `worker`, the one with which it finished its `clock`.

    version: how many updates the weights had seen that it was computed on, its place in the log if it were not stale.
    tau: its staleness, how many were applied since then; those that are averaged with it do not count.
    at: nanoseconds of the server's clock.
    """

    worker: int
    clock: int
    version: int
    tau: int
    at: int


@dataclass(frozen=True)
class Wait:
    """A pull of `worker` at `clock` that the policy did not answer at once, but `ns` nanoseconds later."""

    worker: int
    clock: int
    ns: int


def staleness(log: Iterable[Update]) -> dict[int, int]:
    """How many updates had which tau: the histogram, by tau."""
    return dict(sorted(Counter(update.tau for update in log).items()))


def largest_lead(log: Sequence[Update], workers: Iterable[int]) -> int:
    """By how many clocks a worker was ever ahead of the slowest of `workers` when it got the weights for an update.

    SSP(s) promises s. `workers` are those that worked to the end.
    """
    clocks = dict.fromkeys(workers, 0)
    slowest = [0]  # by version
    for update in log:
        if update.worker in clocks:
            clocks[update.worker] = update.clock + 1
        slowest.append(min(clocks.values()))
    return max(update.clock - slowest[update.version] for update in log)


def out_of_order(log: Iterable[Update]) -> list[Update]:
    """The updates that do not follow the one before them of the same worker: twice, left out, or out of turn."""
    clocks: Counter[int] = Counter()
    found = []
    for update in log:
        if update.clock != clocks[update.worker]:
            found.append(update)
        clocks[update.worker] = update.clock + 1
    return found
