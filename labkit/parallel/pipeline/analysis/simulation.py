"""`simulate`: what a schedule would take, without running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit.parallel.pipeline.analysis.complete import complete
from labkit.parallel.pipeline.analysis.high_water import high_water
from labkit.parallel.pipeline.analysis.rendezvous import check_messages, walk_blocking
from labkit.parallel.pipeline.analysis.timeline import Timeline
from labkit.parallel.pipeline.analysis.walk import walk
from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.schedule import Schedule
from labkit.wire.errors import RefusedError
from labkit.wire.network import Link, Network


def simulate(
    schedule: Schedule, costs: Costs, link: Link | Network | Callable[[int, int], Link] | None = None, *,
    nbytes: int | Sequence[int] = 0,
) -> Timeline:  # fmt: skip
    """When each instruction begins and ends if it takes what `costs` says: exactly the virtual clock of a real run.

    link: what a message takes. None for nothing; a `Link` for all of them; a `Network`, in which the pipeline's ranks
    are world ranks 0, 1, ...; or a function (rank, rank) -> Link.
    nbytes: of an activation and of its gradient, for all boundaries between stages of the model or one for each.
    In a schedule with explicit messages each of them blocks: a send takes until its bytes have left.
    Raises ScheduleError where `validate` would.
    """
    explicit = complete(schedule)
    if not isinstance(costs, Costs):
        raise RefusedError(
            f"simulate(costs={costs!r}): needs Costs(forward, input_gradient, weight_gradient), in seconds"
        )
    costs.check(schedule.stages)
    boundaries = schedule.stages - 1
    each = list(nbytes) if isinstance(nbytes, Sequence) else [nbytes] * boundaries
    if len(each) != boundaries or not all(isinstance(n, int) and n >= 0 for n in each):
        raise RefusedError(
            f"simulate(nbytes={nbytes!r}): a whole number of bytes for all messages, or one for each of the "
            f"{boundaries} boundaries between {schedule.stages} stages"
        )
    if explicit:
        check_messages(schedule)
    go = walk_blocking if explicit else walk
    walked = go(schedule, costs, _links(link, schedule.size), each)
    return Timeline(
        schedule, tuple(map(tuple, walked.begin)), tuple(map(tuple, walked.end)), tuple(walked.finish),
        high_water(schedule).peak, tuple(each), walked.hops,
    )  # fmt: skip


def _links(
    link: Link | Network | Callable[[int, int], Link] | None, size: int
) -> Callable[[int, int], Link] | None:  # fmt: skip
    if link is None or callable(link):
        return link
    if isinstance(link, Link):
        return lambda a, b: link
    if isinstance(link, Network):
        per_node = link.per_node(size)
        return lambda a, b: link.link(a, b, per_node)
    raise RefusedError(
        f"simulate(link={link!r}): needs a labkit.Link, a labkit.Network, a function of two ranks, or None"
    )
