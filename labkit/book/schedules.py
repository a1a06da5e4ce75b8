"""A schedule as a picture: a row per rank, a box per instruction with the number of its microbatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.book.figure import Figure

if TYPE_CHECKING:
    from labkit.parallel.pipeline.faulty import ScheduleError


def schedule(what: Any) -> Figure:
    """The picture of a schedule, a timeline of one, or a trace of a run."""
    raise NotImplementedError


def wait_for(error: ScheduleError) -> Figure:
    """Who waits for whom in a deadlock."""
    raise NotImplementedError
