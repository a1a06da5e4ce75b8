"""Plans in sentences: what two differ in, which part of a step makes one longer, why a plan was not taken."""

from __future__ import annotations

from labkit.cost.planner.plan import Plan
from labkit.cost.planner.predicted import Estimate, estimate
from labkit.cost.planner.remedies import why_too_large
from labkit.cost.planner.search import Search, search
from labkit.cost.units import GB, format_seconds

__all__ = ["compared", "explained", "lost", "nearest_that_fits", "rejections", "why_lost", "why_not"]

_WORDS = {
    "computing": "computing",
    "uneven": "waiting for the fullest stage",
    "recomputed": "computing activations again",
    "tensor": "tensor-parallel communication",
    "context": "passing keys and values on",
    "expert": "sending tokens to experts",
    "messages": "messages between stages",
    "bubble": "the pipeline's bubble",
    "data": "exchanging gradients and parameters",
    "optimizer": "the optimizer",
}


def explained(one: Estimate) -> list[str]:
    """A plan in four sentences: time, what of it is not computing, memory, price."""
    memory = one.cluster.gpu.memory
    useful = one.parts["computing"] / one.seconds
    losses = sorted(((s, p) for p, s in one.parts.items() if p != "computing" and s > 0), reverse=True)[:2]
    lost_to = " and ".join(_WORDS[p] for _, p in losses)
    part, size = max(one.held.parts().items(), key=lambda item: item[1])
    fits = "which fits" if one.fits else f"which is {(one.held.total - memory) / GB:.1f} GB too many"
    return [
        f"{one.plan} takes {format_seconds(one.seconds)} a step of {one.tokens:,} tokens, an MFU of "
        f"{one.mfu:.1%}"
        + (f" ({one.hfu:.1%} with what is computed again, HFU)." if one.hfu > 1.0005 * one.mfu else "."),
        f"Of that, {useful:.1%} is computing that nobody can avoid."
        + (f" Most of the rest goes to {lost_to}." if losses else ""),
        f"The fullest GPU holds {one.held.total / GB:.1f} GB of {memory / GB:.0f}, {fits}; the largest part is "
        f"{part} ({size / GB:.1f} GB).",
        f"A billion tokens take {one.gpu_hours_per_billion_tokens:,.0f} GPU-hours, {_dollars(one)}, and a token "
        f"{one.joules_per_token:.2f} J.",
    ]


def _dollars(one: Estimate) -> str:
    """What a billion tokens cost, with the price behind it."""
    if one.cluster.price is None:
        return f"for which no price of the {one.cluster.gpu.name} is at hand"
    return f"${1000 * one.dollars_per_million_tokens:,.0f} {one.cluster.price_said}"


def why_lost(loser: Estimate, winner: Estimate) -> str:
    """In one sentence, which part of its step is longer than the winner's, and what it saves elsewhere."""
    gaps = {part: loser.parts[part] - winner.parts[part] for part in loser.parts}
    worst, best = max(gaps, key=gaps.__getitem__), min(gaps, key=gaps.__getitem__)
    slower = loser.seconds / winner.seconds - 1
    if slower <= 0:
        return f"{loser.plan} is no slower than {winner.plan}."
    text = (
        f"{loser.plan} is {slower:.1%} slower, because {_WORDS[worst]} takes "
        f"{format_seconds(loser.parts[worst], 3)} of its step and {format_seconds(winner.parts[worst], 3)} of the "
        f"winner's"
    )
    if -gaps[best] > 0.1 * gaps[worst]:
        text += f", although it saves {format_seconds(-gaps[best], 3)} on {_WORDS[best]}"
    return text + "."


def compared(one: Estimate, other: Estimate) -> list[str]:
    """Two plans in sentences: what they differ in, time with the parts behind it, memory, and price."""
    first, second = (one, other) if one.seconds <= other.seconds else (other, one)
    choices = ", ".join(
        f"{name} ({mine} against {theirs})" for name, (mine, theirs) in first.plan.differs(second.plan).items()
    )
    if not choices:
        return [f"Both are the same plan, {one.plan}."]
    gap = second.seconds / first.seconds - 1
    gaps = sorted((second.parts[p] - first.parts[p], p) for p in first.parts)
    longer = [f"{format_seconds(s, 3)} more on {_WORDS[p]}" for s, p in reversed(gaps) if s > 0.005 * first.seconds][:3]
    less = [f"{format_seconds(-s, 3)} less on {_WORDS[p]}" for s, p in gaps if -s > 0.005 * first.seconds][:3]
    parts = "; it spends " + ", ".join(longer + less) if longer or less else ""
    holds = [f"{x.held.total / GB:.1f} GB" for x in (first, second)]
    cost = [f"{x.gpu_hours_per_billion_tokens:,.0f} GPU-hours, {_dollars(x)}," for x in (first, second)]
    return [
        f"The two differ in {choices}.",
        f"{first.plan} takes {format_seconds(first.seconds)} a step, and {second.plan} {format_seconds(second.seconds)}"
        f", {gap:.1%} longer{parts}.",
        f"The first holds {holds[0]} on its fullest GPU and the second {holds[1]}, of "
        f"{first.cluster.gpu.memory / GB:.0f} GB.",
        f"A billion tokens take {cost[0]} with the first and {cost[1]} with the second.",
    ]


def lost(found: Search) -> list[str]:
    """Why each of the other best cuts lost, in one sentence each."""
    return [why_lost(one, found.winner) for one in found.best[1:]]


def why_not(found: Search, plan: Plan) -> str:
    """Why the search did not take `plan`: it is impossible, too large, or slower than the winner, and where."""
    impossible = plan.why_impossible(found.model, found.cluster.gpus)
    if impossible:
        return f"{plan} is impossible: {impossible}."
    if plan.batch != found.batch:
        return f"{plan} has a batch of {plan.batch} sequences, and the search was for {found.batch}."
    large = why_too_large(found.costs, plan)
    if large:
        return f"{plan} {large}."
    if not found.best:
        return f"{plan} fits, and was outside the space that was searched."
    mine = estimate(found.model, found.cluster, plan, costs=found.costs)
    if mine.seconds < found.winner.seconds:
        return f"{plan} is faster than the winner, and was outside the space that was searched."
    return why_lost(mine, found.winner)


def rejections(found: Search) -> dict[tuple[int, int, int, int, int], str]:
    """For each cut without a plan that fits: why the model cannot be cut so, or how much its smallest plan needs."""
    large = {cut: why_too_large(found.costs, plan) for cut, plan in found.too_large.items()}
    return {**found.refused, **large}


def nearest_that_fits(found: Search, most: int = 64) -> Search | None:
    """Where nothing fits: the search on the fewest times as many GPUs, 2, 4, ... `most`, on which something does.

    For the same batch. None if nothing fits there either.
    """
    factor = 1
    while factor <= most:
        larger = (
            found if factor == 1 else search(found.model, found.cluster.times(factor), found.batch, found.space, keep=1)
        )
        if larger.best:
            return larger
        factor *= 2
    return None
