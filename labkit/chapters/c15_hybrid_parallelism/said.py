"""Sentences of chapter 15 that follow a search or a run: each is made of what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book
from labkit.chapters.c15_hybrid_parallelism import pictures, small
from labkit.cost.planner import Advice, AxisCheck, Estimate
from labkit.cost.units import GB, format_bandwidth

CHOICES = {
    "A": "A: it has no bubble, and nothing is sent inside a layer.",
    "B": "B: a part of the gradients, and no bubble.",
    "C": "C: the least gradients for each rank, and a bubble.",
}


def winner(ran: Mapping[str, Any]) -> str:
    """The choice of the prediction that the runs of A, B and C confirm."""
    return CHOICES[min(ran, key=lambda name: small.seconds(ran[name]))[0]]


def links(checks: Mapping[tuple[str, str], AxisCheck]) -> book.Conclusion:
    """(cut, axis) -> check of two cuts, of which the second has its tensor ranks on two nodes."""
    narrow, wide = dict.fromkeys(name for name, _ in checks)
    inside, across, hop = checks[narrow, "tensor"], checks[wide, "tensor"], checks[narrow, "pipeline"]
    return book.conclude(
        "The sums of TP 8 take {inside:.0%} of the time of computing on NVLink. With TP 16 a part of each sum must "
        "leave the node, and a step waits {longer:.2g} times as long for them. Messages between stages take "
        "{hop:.1%}. This axis is so modest that stages are what one puts furthest apart: Alibaba's HPN lets only "
        "pipelines cross from one pod to another, where links are shared (chapter 21). Such a *feasibility check* "
        "needs no run, and rules out most of the bad plans.",
        inside=inside.share, longer=across.waited / inside.waited, hop=hop.share,
    )  # fmt: skip


def guide(asked: Sequence[tuple[str, int, Advice]]) -> book.Conclusion:
    """What the rule of thumb costs, for several jobs from small to large."""
    costs = [price(given) for _, _, given in asked]
    return book.conclude(
        "The rule is a good way to begin, since it names something that works.",
        {"costs[-1] > 1.5 * max(costs[:-1])": "For the first four jobs it costs {low:.0%} to {high:.0%}, and for "
         "the largest one {last:.0%}, because *fits* and *fast* are different questions.",
         "True": "It costs from {low:.0%} to {last:.0%}, because *fits* and *fast* are different questions."},
        "So the usual advice, up to some tens of billions of parameters on a small cluster take FSDP, and at the "
        "frontier take all three axes with ZeRO on the data axis, can be derived here, and you get its price with "
        "it.",
        costs=costs, low=min(costs[:-1]), high=max(costs[:-1]), last=costs[-1],
    )  # fmt: skip


def price(given: Advice) -> float:
    """By which part a step is longer if one stops at the first rung on which something fits."""
    assert given.first is not None and given.first.best is not None
    return given.first.best.seconds / given.found.winner.seconds - 1


def fallacy(tensor: Estimate, pipeline: Estimate, claim: Any) -> book.Conclusion:
    """Two plans that both fit, and how far they are apart."""
    share = tensor.parts["data"] / tensor.seconds
    return book.conclude(
        "The sharpest form of that mistake is to let memory *alone* decide. The 175B model on 64 A100s is cut here "
        "in equally many parts, once by tensor parallelism of 8 and once by a pipeline of 8, both with ZeRO-3 on "
        "the axis that is left. They hold {t_gb:.0f} and {p_gb:.0f} GB, and both fit. A textbook says that the "
        "pipeline is {said}% faster [quoted]. The planner agrees about who is faster, and finds {found:.0f}%.\n\nThe "
        "bars say why. With ZeRO-3 every microbatch gathers all parameters anew. With tensor parallelism in the "
        "node, the data axis must do that across the nodes, and {share:.0%} of the step goes to it. With the "
        "pipeline, stages lie on different nodes, and the data axis stays inside, where gathering is cheap.",
        t_gb=tensor.held.total / GB, p_gb=pipeline.held.total / GB, found=claim.found, said=claim.said,
        share=share,
    )  # fmt: skip


def sixteen_nodes(four: Mapping[str, Estimate]) -> book.Conclusion:
    """Four proposals for one job: tensor over all, a pipeline, sharding, and everything."""
    wide, deep, shards, mix = four.values()
    return book.conclude(
        "Here are four proposals for a model of 120 billion parameters on 16 nodes.",
        {"all(fits)": "All of them fit.", "True": "Not all of them fit."},
        "Tensor parallelism over all 128 GPUs is the finest cut, and takes {times:.2g} times as long as the "
        "mixture, because the sums of every layer cross the network. The pipeline reaches an MFU of {deep:.0%}, "
        "since a batch of 128 sequences leaves few microbatches for each replica. Sharding alone reaches "
        "{shards:.0%}: a GPU must gather all layers to work on a single sequence. The mixture, {plan}, reaches "
        "{mix:.0%}. No strategy is better than the others in general, and each one becomes wrong where its own "
        "limit binds.",
        times=wide.seconds / mix.seconds, deep=deep.mfu, shards=shards.mfu, mix=mix.mfu, plan=pictures.short(mix),
        fits=[one.fits for one in four.values()],
    )  # fmt: skip


def shift(domains: Mapping[int, Estimate], theirs: Estimate, thin: Mapping[str, float]) -> book.Conclusion:
    """domain -> its best plan; a source's plan for domains of 16; and what half of a network is worth."""
    few, many = min(domains), max(domains)
    first, last = domains[few], domains[many]
    lost = {n: _largest(domains[n]) for n in (few, many)}
    return book.conclude(
        "A B200 has NVLink 5, with {nvlink} each way [quoted]. It is two dies joined at 10 TB/s [quoted], which "
        "software sees as one GPU. (It can also multiply in 4 bits. Whether one may train so is a question for chapter "
        "14, and the planner stays with 16.)\n\n"
        "The network between the domains is the same each time, and only the fast domain grows. From {few} to "
        "{many} GPUs in a domain, the best step goes from {first:.2f} to {last:.2f} s, and the plan from {before} "
        "to {after}.",
        {"stages > 1 and stages_after == 1": "The pipeline has disappeared. With ZeRO-3 all GPUs share the state, so "
         "parameters must be gathered, and most of that stays inside the domains now. It used to be too slow.",
         "True": "The stages have gone from {stages} to {stages_after}."},
        {"first_lost == last_lost": "After computing, most time goes to {first_lost}, before and after. That is the "
         "next limit.",
         "True": "After computing, most time goes to {first_lost} at first, and to {last_lost} at the end."},
        "A source of this book proposes TP 16 and PP 32 for such a model. The planner gives that {theirs:.2f} s, so "
        "a domain that *allows* wide tensor parallelism is no reason to use all of it.\n\nThat also answers a "
        "question about money. The network is 10 to 15% of the price of a cluster [quoted]. If its price goes with "
        "its bandwidth, half a network saves {saved:.1%}. GPT-3 on 1,024 H100s then loses {lost:.1%} of its "
        "throughput, with the best plan for the slower network, so a token",
        {"dearer > 0": "costs {dearer:.1%} more: it is no saving.",
         "True": "costs {cheaper:.1%} less. For this dense model with a large batch it is a small saving. For "
         "experts, or for fewer tokens in a batch, ask again."},
        few=few, many=many, nvlink=format_bandwidth(last.cluster.topology.levels[0].bandwidth),
        first=first.seconds, last=last.seconds, before=pictures.short(first),
        after=pictures.short(last), first_lost=lost[few], last_lost=lost[many], stages=first.plan.pipeline,
        stages_after=last.plan.pipeline, theirs=theirs.seconds, saved=thin["saved"], lost=thin["lost"],
        dearer=thin["a token costs more"], cheaper=-thin["a token costs more"],
    )  # fmt: skip


def _largest(one: Estimate) -> str:
    parts = pictures.parts_of(one)
    words = {
        "computing again": "computing again", "tensor": "the sums of tensor parallelism",
        "context": "keys and values", "experts": "tokens on their way to experts", "pipeline": "the bubble",
        "data": "gradients and parameters", "optimizer": "the optimizer",
    }  # fmt: skip
    return words[max(words, key=lambda p: parts[p])]
