"""`validate`: is everything in a schedule, once, in an order that can run; and what it keeps in memory meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.parallel.pipeline.analysis.complete import complete
from labkit.parallel.pipeline.analysis.high_water import Report, high_water
from labkit.parallel.pipeline.analysis.rendezvous import check_messages, walk_blocking
from labkit.parallel.pipeline.analysis.walk import walk
from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.schedule import Schedule

NOTHING = Costs(0, 0, 0)


def validate(schedule: Schedule, *, limit: int | Sequence[int] | None = None) -> Report:
    """Check a schedule, and say how many activations it keeps.

    Every stage must have each microbatch once: a Forward, then a Backward or an InputGradient and later a
    WeightGradient; an Update, if there is one, after those. Every instruction must get its input: the schedule may not
    wait for itself. If it has explicit messages each one is checked too, as a blocking one: a send returns when its
    receiver is at the receive (a rendezvous, as in gloo).

    limit: the most activations that a rank may keep, for all ranks or one number for each.
    Raises ScheduleError, which names the instruction; for a deadlock its `waits` say who waits for whom.
    """
    if complete(schedule):
        check_messages(schedule)
        walk_blocking(schedule, NOTHING)
    else:
        walk(schedule, NOTHING)
    return high_water(schedule, limit)
