"""A schedule that cannot run: what is wrong with it, and for a deadlock who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit import pictures
from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Wait:
    """Rank `rank` cannot do `at` before rank `on` has done `needs`; both are labels such as `1F0`."""

    rank: int
    at: str
    on: int
    needs: str

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.at} waits for {self.needs} of rank {self.on}"


class ScheduleError(RefusedError):
    """A schedule with a missing, doubled, unknown or misplaced instruction, or one that waits for itself.

    waits: for a deadlock, what every rank waits for that never gets further; else empty.
    cycle: those of them that wait for one another in a circle, in order.
    """

    def __init__(self, message: str, waits: Sequence[Wait] = (), cycle: Sequence[Wait] = ()):
        super().__init__(message)
        self.waits, self.cycle = tuple(waits), tuple(cycle)

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.waits, self.cycle)

    def draw(self) -> Any:
        """The wait-for picture: a circle for each rank that waits, an arrow to the rank that it waits for."""
        return pictures.draw(self)


def deadlock(waits: Sequence[Wait]) -> ScheduleError:
    """The error for ranks that all wait; `waits` has one entry for each, and their graph has a cycle."""
    by_rank = {wait.rank: wait for wait in waits}
    path: list[Wait] = []
    rank = waits[0].rank
    while rank in by_rank and by_rank[rank] not in path:
        path.append(by_rank[rank])
        rank = path[-1].on
    cycle = path[path.index(by_rank[rank]) :] if rank in by_rank else path
    if len(cycle) == 1 and cycle[0].on == cycle[0].rank:
        text = f"rank {cycle[0].rank} would do {cycle[0].at} before its own {cycle[0].needs}, which {cycle[0].at} needs"
    else:
        text = ", and ".join(map(str, cycle))
    return ScheduleError(f"this schedule is a deadlock: {text}", waits, cycle)
