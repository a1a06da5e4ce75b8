"""All plans for a model, a cluster and a batch: the fastest that fit, the frontier of memory and time, and the rest.

What makes the search short: a cut that does not divide is left at once, memory is looked at before time, and both are
sums of parts that many plans share (`costs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.costs import Costs
from labkit.cost.planner.model import Model
from labkit.cost.planner.plan import Plan
from labkit.cost.planner.predicted import Estimate, estimate, step_seconds
from labkit.cost.planner.space import Space, cuts
from labkit.cost.refuse import whole

__all__ = ["Search", "search"]

Cut = tuple[int, int, int, int, int]
Found = tuple[float, float, tuple[object, ...]]  # seconds, bytes, arguments of the plan


@dataclass
class Search:
    """What a search found.

    considered: plans whose memory was looked at; fitting: those that fit. best: the fastest plan of each of the best
    cuts (an axis is another size), the fastest first. frontier: plans that no other beats in both memory and time, the
    fastest first. refused: cuts that the model or the batch does not allow, and why. too_large: cuts of which no plan
    fits, with the one that needs least.
    nearest: of all plans the one that needs least memory; None if no cut is possible at all. seconds: of a step, of
    each plan that fits. fitted: the arguments of these plans, in the same order.
    """

    model: Model
    cluster: Cluster
    batch: int
    space: Space
    costs: Costs = field(repr=False)
    considered: int = 0
    fitting: int = 0
    best: list[Estimate] = field(default_factory=list)
    frontier: list[Estimate] = field(default_factory=list)
    refused: dict[Cut, str] = field(default_factory=dict, repr=False)
    too_large: dict[Cut, Plan] = field(default_factory=dict, repr=False)
    nearest: Estimate | None = None
    seconds: list[float] = field(default_factory=list, repr=False)
    fitted: list[tuple[object, ...]] = field(default_factory=list, repr=False)

    @property
    def winner(self) -> Estimate:
        """The fastest plan. Raises ValueError if none fits, which says by how much."""
        if not self.best:
            raise ValueError(self.nothing_fits())
        return self.best[0]

    def nothing_fits(self) -> str:
        """By how much the plan misses that needs least memory."""
        what = f"{self.model.name} on {self.cluster.gpus} GPUs with a batch of {self.batch} sequences"
        if self.nearest is None:
            why = next(iter(self.refused.values()), "no plan is within the space")
            return f"no plan is possible for {what}: {why}"
        needs, has = self.nearest.held.total / 1e9, self.cluster.gpu.memory / 1e9
        return (
            f"no plan fits for {what}: the one that needs least, {self.nearest.plan}, needs {needs:.1f} GB of "
            f"{has:.0f}, {needs - has:.1f} GB too many"
        )


def search(
    model: Model, cluster: Cluster, batch: int, space: Space | None = None, *, keep: int = 10, cut: Cut | None = None
) -> Search:
    """Look at all plans of `space` that use all GPUs of `cluster` for a batch of `batch` sequences.

    keep: how many cuts to report. cut: only this one (tensor, pipeline, context, expert, data).
    """
    whole(batch=batch, keep=keep)
    space = Space() if space is None else space
    result = Search(model, cluster, batch, space, Costs(model, cluster))
    fastest: list[Found] = []
    everything: list[Found] = []
    least: Found | None = None
    for one, why in cuts(model, cluster, space, cluster.gpus) if cut is None else [(cut, "")]:
        replicas = one[3] * one[4]
        if not why and batch % replicas:
            why = f"{replicas} replicas do not share a batch of {batch} sequences: take a multiple of {replicas}"
        if why:
            result.refused[one] = why
            continue
        fitting, smallest, looked = _plans_of(result.costs, space, one, batch // replicas)
        result.considered += looked
        if smallest and (least is None or smallest[1] < least[1]):
            least = smallest
        if fitting:
            result.fitting += len(fitting)
            fastest.append(min(fitting))
            everything += fitting
        elif smallest:
            result.too_large[one] = Plan(*smallest[2])  # type: ignore[arg-type]
        else:
            result.refused[one] = f"no microbatch of {space.microbatch} divides {batch // replicas} sequences"
    result.best = [_estimated(result, found) for found in sorted(fastest)[:keep]]
    result.frontier = [_estimated(result, found) for found in _frontier(everything)]
    result.seconds = [found[0] for found in everything]
    result.fitted = [found[2] for found in everything]
    result.nearest = _estimated(result, least) if least else None
    return result


def _plans_of(costs: Costs, space: Space, cut: Cut, sequences: int) -> tuple[list[Found], Found | None, int]:
    """The plans of one cut that fit, the one that needs least memory, and how many were looked at."""
    t, p, c, e, d = cut
    limit, sp, bytes_of = costs.cluster.gpu.memory, space.sequence_parallel and t > 1, space.gradient_bytes
    kinds = space.kinds(costs.model, costs.cluster, cut)
    fitting: list[Found] = []
    smallest: Found | None = None
    looked = 0
    for microbatch in space.microbatch:
        m, left = divmod(sequences, microbatch)
        if left:
            continue
        for schedule, chunks in space.runs(costs.model, p, m):
            params, layers = costs.exchanged(t, p, e, chunks), costs.layers(p, chunks)[0]
            states = [(kind, shard, costs.lasting(cut, kind, shard, bytes_of, chunks)) for kind, shard in kinds]
            for recompute in space.recompute:
                load = costs.full(cut, microbatch, m, schedule, chunks, sp, recompute)
                looked += len(states)
                for kind, shard, state in states:
                    total = max(state[0] + load[0], state[1] + load[1])
                    if total > limit and smallest is not None and total >= smallest[1]:
                        continue
                    plan = (t, p, c, e, d, microbatch, m, schedule, chunks, kind, shard, recompute, sp, bytes_of)
                    if smallest is None or total < smallest[1]:
                        smallest = (0.0, total, plan)
                    if total > limit:
                        continue
                    pace = costs.pace(cut, microbatch, chunks, sp, recompute)
                    exchange = costs.exchange(cut, kind, shard, bytes_of, params)
                    optimizer = costs.optimizer(cut, kind, shard, bytes_of, chunks)
                    step = step_seconds(costs, pace, exchange, schedule, p, m, chunks, layers, optimizer)
                    fitting.append((step.total, total, plan))
    return fitting, smallest, looked


def _frontier(found: list[Found]) -> list[Found]:
    """Those that no other one beats in both seconds and bytes."""
    kept: list[Found] = []
    for one in sorted(found):
        if not kept or one[1] < kept[-1][1]:
            kept.append(one)
    return kept


def _estimated(result: Search, found: Found) -> Estimate:
    return estimate(result.model, result.cluster, Plan(*found[2]), costs=result.costs)  # type: ignore[arg-type]
