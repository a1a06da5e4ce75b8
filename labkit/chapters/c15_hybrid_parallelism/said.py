"""Sentences of chapter 15 that follow a search or a run: each is made of what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book
from labkit.chapters.c15_hybrid_parallelism import doing, pictures, small
from labkit.cost import planner
from labkit.cost.planner import Advice, AxisCheck, Estimate
from labkit.cost.units import GB, format_bandwidth, format_bytes, format_seconds

CHOICES = {
    "A": "A: it has no bubble, and nothing is sent inside a layer.",
    "B": "B: a part of the gradients, and no bubble.",
    "C": "C: the least gradients for each rank, and a bubble.",
}


def winner(ran: Mapping[str, Any]) -> str:
    """The choice of the prediction that the runs of A, B and C confirm."""
    return CHOICES[min(ran, key=lambda name: small.seconds(ran[name]))[0]]


def three(ran: Mapping[str, Any], plain: Any, ring: Any) -> book.Conclusion:
    """name -> run of A, B and C; and of data parallelism alone with two ways to sum: in nodes first, and by a ring."""
    a, b, c = (small.seconds(run) for run in ran.values())
    wide = ran["A: D8"]

    def across(run: Any) -> float:
        found = small.crossing(run, 2)
        return found["same rail"]["data"] + found["another rail"]["data"]

    sent = {max(row["data"] for row in small.sent_by_axis(run)) for run in (wide, plain)}
    return book.conclude(
        "On your ranks A takes {a_c:.2f} times and B {b_c:.2f} times as long as C. All three compute equally long. "
        "What differs is how long they wait: A for its gradients alone, {a_data}, and C for its gradients, for its "
        "stages and for sums, {c_waits} in all.\n\n"
        "<details><summary>Are the slow links the reason?</summary>\n\n"
        "Not alone, as the last two bars show. Data parallelism of 8 *without* ZeRO takes only {plain_s}, although",
        {"kinds == 1": "its ranks send exactly as many bytes, {each} each.",
         "True": "its ranks send about as many bytes."},
        "What differs is who sends them to whom. The plain sum adds up inside the nodes first, so that {plain_mb} in "
        "all cross between nodes. ZeRO-1 has another exchange: each rank gets its part of the gradient from every "
        "other one, and then all gather the new parameters around a ring, and both ignore the nodes. {wide_mb} cross, "
        "and every round waits for the slowest link.",
        {"abs(a - ring_t) < 0.01 * a": "If the plain sum goes around one ring as well, it takes {ring_s}, exactly as "
         "long as A.",
         "True": "If the plain sum goes around one ring as well, it takes {ring_s}, and A takes {a_s}."},
        "So ZeRO-1 is not slow by itself. An exchange is slow if it ignores the nodes, and there B and C have an "
        "advantage: with tensor ranks inside, each data-parallel group has one rank in a node, so a plain ring is "
        "already the best that it can do.\n\n</details>",
        a_data=format_seconds(doing.shares(wide)["data"], 3),
        c_waits=format_seconds(c - doing.shares(ran["C: T2 P2 D2"])["computing"], 3),
        a_c=a / c, b_c=b / c, a=a, plain_s=format_seconds(small.seconds(plain), 3),
        kinds=len(sent),
        each=format_bytes(max(sent), 3), plain_mb=format_bytes(across(plain), 3), wide_mb=format_bytes(across(wide), 3),
        ring_t=small.seconds(ring), ring_s=format_seconds(small.seconds(ring), 3), a_s=format_seconds(a, 3),
    )  # fmt: skip


def links(checks: Mapping[tuple[str, str], AxisCheck], microbatches: int = 64) -> book.Conclusion:
    """(cut, axis) -> check of two cuts, of which the second has its tensor ranks on two nodes."""
    narrow, wide = dict.fromkeys(name for name, _ in checks)
    inside, across, hop = checks[narrow, "tensor"], checks[wide, "tensor"], checks[narrow, "pipeline"]
    data = checks[narrow, "data"]
    return book.conclude(
        "At the full rate of NVLink the sums of TP 8 would take {inside:.0%} of the time of computing, and as software "
        "sends them it is {waits:.0%}. With TP 16 a part of each sum must leave the node. (The table counts only that "
        "part, which goes over the slower links.) A step then waits {longer:.2g} times as long. Half as many stages "
        "mean twice as many layers on a rank, which explains a factor of 2; the rest is the slow link. Messages "
        "between stages take {hop:.1%}. This axis is so modest that stages are what one puts furthest apart: "
        "Alibaba's network HPN lets only pipelines cross from one pod to another, where links are shared "
        "([Qian et al. 2024](https://doi.org/10.1145/3651890.3672265), chapter 21).\n\n"
        "And the data axis? A gradient is final only when the last microbatch has added to it, so its sum can hide "
        "behind the backward pass of this one microbatch and no other. With {m} microbatches in a step that is not "
        "much, and only {hidden:.0%} of the exchange is hidden here. With fewer and larger microbatches it would be "
        "more. Such a *feasibility check* needs no run, and "
        "rules out most of the bad plans. The first question below is about the two rows of the "
        "tensor axis, so look at which links each of them names.",
        inside=inside.share, waits=inside.share * inside.waited / inside.seconds,
        longer=across.waited / inside.waited, hop=hop.share, m=microbatches,
        hidden=1 - data.waited / data.alone,
    )  # fmt: skip


def rails(dense: Any, experts: Any) -> book.Conclusion:
    """What goes from rail to rail, of a dense cut with tensor ranks inside the nodes, and of eight experts."""
    off, left = (sum(small.crossing(run, 2)["another rail"].values()) for run in (dense, experts))
    return book.conclude(
        "With tensor ranks as neighbours,",
        {"off == 0": "no byte goes from one rail to another, since all other axes connect equal places.",
         "True": "{off_b} go from one rail to another."},
        "A **rail-optimized network** makes use of that: the network cards with the same number in all nodes share a "
        "switch, and the way from rail to rail may be thin or missing. In a *fat tree* all are equally wide, which "
        "costs more. The second bar shows who needs it: with eight experts on the eight ranks, rows go to any rank "
        "(chapter 12), and {left} go from rail to rail in a step.",
        off=off, off_b=format_bytes(off, 3), left=format_bytes(left, 3),
    )  # fmt: skip


def fitted(fit: Any, others: Mapping[str, Any]) -> book.Conclusion:
    """What was fitted, and how far off it is on the runs that it was fitted to and on others."""
    return book.conclude(
        "The fit finds that kernels reach {products:.0%} of what we called their peak, and links between nodes "
        "{across:.0%} of their bandwidth. The true values are both 100%. On the runs that it was fitted to "
        "it is off by at most {seen:.1%}, and on the others by up to {unseen:.1%}.",
        {"unseen > seen": "That is the usual order, and only the second number tells you how far to trust the model.",
         "True": "Here the second number is even the smaller one, which is luck: it is the one that tells you how far "
         "to trust the model."},
        products=fit.efficiency.products, across=fit.efficiency.across, seen=fit.worst,
        unseen=max(map(abs, pictures.errors(others, fit).values())),
    )  # fmt: skip


def guide(asked: Sequence[tuple[str, int, Advice]]) -> book.Conclusion:
    """What the rule of thumb costs, for several jobs from small to large."""
    costs = [price(given) for _, _, given in asked]
    return book.conclude(
        "The rule is a good way to begin, since it names something that works.",
        {"costs[-1] > 1.5 * max(costs[:-1])": "For the first four jobs it costs {low:.0%} to {high:.0%}, and for "
         "the largest one {last:.0%}, because *fits* and *fast* are different questions.",
         "True": "It costs from {low:.0%} to {last:.0%}, because *fits* and *fast* are different questions."},
        "For the smaller of these jobs the fastest plans share the state by ZeRO-3: that leaves room for the "
        "activations, so that little or nothing is computed again. (It also rests on what the planner takes for "
        "granted, that gathering hides behind computing. No run of FSDP alone is among those that it was held "
        "against.) For the largest job the fastest plans mix the axes. But with another batch or other links the "
        "planner above may say otherwise: a rule has a price, and it depends on the job.",
        costs=costs, low=min(costs[:-1]), high=max(costs[:-1]), last=costs[-1],
    )  # fmt: skip


def price(given: Advice) -> float:
    """By which part a step is longer if one stops at the first rung on which something fits."""
    assert given.first is not None and given.first.best is not None
    return given.first.best.seconds / given.found.winner.seconds - 1


def fallacy(tensor: Estimate, pipeline: Estimate, claim: Any) -> book.Conclusion:
    """Two plans that both fit, how far they are apart, and under which assumptions that is the quoted number."""
    share = tensor.parts["data"] / tensor.seconds
    found = {case: planner.pipeline_over_tensor(*case) for case in ((1, False), (1, True), (2, True))}
    return book.conclude(
        "The 175B model on 64 A100s is cut here in equally many parts, once by tensor parallelism of 8 and once by a "
        "pipeline of 8, both with ZeRO-3 on the axis that is left.",
        {"fits": "They hold {t_gb:.0f} and {p_gb:.0f} GB, and both fit.", "True": "Not both of them fit."},
        "But the pipeline has {found:.0f}% more throughput.\n\nThe "
        "bars say why. With ZeRO-3 every microbatch gathers all parameters anew. With tensor parallelism in the "
        "node, the data axis must do that across the nodes, and {share:.0%} of the step goes to it. With the "
        "pipeline, stages lie on different nodes, and the data axis stays inside, where gathering is fast.\n\n"
        "How much faster depends on what the software hides, so a number without its assumptions says little. The "
        "textbook chapter *Distributed Training* has {said}% for this comparison [quoted], and names neither batch "
        "nor software. If gathering is hidden "
        "behind computing, the planner finds {hidden:.0f}% instead of {found:.0f}%.",
        {"abs(larger - quoted) < 6": "If a microbatch has two sequences as well, so that everything is gathered half "
         "as often, it finds {larger:.0f}%, which is near the quoted number.",
         "True": "With two sequences in a microbatch as well it finds {larger:.0f}%, so none of these assumptions "
         "gives the quoted number."},
        t_gb=tensor.held.total / GB, p_gb=pipeline.held.total / GB, found=claim.found, said=claim.said,
        share=share, hidden=found[1, True], larger=found[2, True], quoted=float(claim.said),
        fits=tensor.fits and pipeline.fits,
    )  # fmt: skip


def sixteen_nodes(four: Mapping[str, Estimate]) -> book.Conclusion:
    """Four proposals for one job: tensor over all, a pipeline, sharding, and everything."""
    wide, deep, shards, mix = four.values()
    return book.conclude(
        "Here are four proposals for a model of 120 billion parameters on 16 nodes. The picture has three of them, "
        "because the bar of the fourth would be {times:.2g} times as long as the shortest.",
        {"all(fits)": "All of them fit.", "True": "Not all of them fit."},
        "Tensor parallelism over all 128 GPUs is the finest cut, and takes {times:.2g} times as long as the "
        "mixture, because the sums of every layer cross the network. The pipeline reaches an MFU of {deep:.0%}, "
        "since a batch of 128 sequences leaves few microbatches for each replica, and to fit it computes activations "
        "again. Sharding alone reaches {shards:.0%}: it computes again as well, and a GPU must gather all layers to "
        "work on a single sequence. The mixture, {plan}, reaches "
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
         "parameters must be gathered, and most of that stays inside the domains now. In smaller "
         "domains it goes over the network, and is too slow.",
         "True": "The stages have gone from {stages} to {stages_after}."},
        {"first_lost == last_lost": "After computing, most time goes to {first_lost}, before and after. That is the "
         "next limit.",
         "True": "After computing, most time goes to {first_lost} at first, and to {last_lost} at the end."},
        "With TP 16 and PP 32, in domains of 16, the same step takes {theirs:.2f} s, so "
        "a domain that *allows* wide tensor parallelism is no reason to use all of it.\n\nThat also answers a "
        "question about money. Suppose that the network is an eighth of the price of a cluster, and that its "
        "price goes with its bandwidth. Then half a network saves {saved:.1%}. GPT-3 on 1,024 H100s then loses "
        "{lost:.1%} of its throughput, with the best plan for the slower network, so a token",
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
