"""What chapter 15 shows of searches: each function draws the plans that were found, and says why the others lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from IPython.display import display

from labkit import book
from labkit.chapters.c15_hybrid_parallelism import cases, drawings, pictures
from labkit.cost.planner import Advice, Estimate

# 5: the reader's search and the planner's ----------------------------------------------------------------------------


def own_planner(
    job: cases.Job, own: tuple[int, int, int] | None, seconds: Callable[..., float], cut: tuple[int, int, int],
    best_cut: Callable[..., Any],
) -> book.Conclusion:  # fmt: skip
    """The cut of the reader's own planner and what its `seconds` promise, beside that of a search by the planner's."""
    yours, whose = job.of(*cut), book.whose(best_cut)
    made = yours if own is None else job.of(*own)
    found, promised = job.all_cuts(), seconds(*own) if own else 0.0
    marked = {} if own is None else {f"{whose} own planner takes {pictures.degrees(*made.plan.cut)}": own[:2]}
    marked[f"with labkit's seconds the search takes {pictures.degrees(*yours.plan.cut)}"] = cut[:2]
    fitting = sum(seconds is not None for seconds in found.values())
    display(
        drawings.cuts(
            found,
            marked,
            "All cuts of three degrees",
            f"Of {len(found)} cuts {fitting} fit, with ZeRO-1 and attention recomputed. d is what is left of the GPUs.",
        )
    )
    return book.conclude(
        {"own is None": "{whose} own planner has found no cut that fits: look at `state_bytes`.",
         "made > 1.02 * promised": "{whose} own planner promised {promised:.2f} s for its cut. labkit's planner says "
         "{made:.2f} s.",
         "True": "{whose} own planner promised {promised:.2f} s for its cut, and labkit's planner agrees."},
        {"own and made > 1.02 * promised and uneven": "The two lines give each of {stages} stages {share:.3g} of the "
         "{layers} layers. But a real stage has a whole number of layers, and all stages wait for the fullest. And the "
         "lines leave out the messages between stages.",
         "own and made > 1.02 * promised": "The two lines leave out the messages between stages.",
         "True": ""},
        {"own and made > 1.02 * promised": "**A search tends to find those plans of which its model is too "
         "optimistic.** With labkit's seconds the same search takes {name}, with {yours:.2f} s.",
         "True": "With labkit's seconds the same search takes {name}, with {yours:.2f} s."},
        whose=whose.capitalize(), own=own, promised=promised, made=made.seconds, stages=made.plan.pipeline,
        share=job.layers / made.plan.pipeline, layers=job.layers, uneven=job.layers % made.plan.pipeline,
        name=pictures.degrees(*yours.plan.cut), yours=yours.seconds,
    )  # fmt: skip


def search(
    job: cases.Job, yours: Estimate, without_cp: Estimate, best: Estimate, best_cut: Callable[..., Any]
) -> book.Conclusion:  # fmt: skip
    """The best of three degrees beside the planner's best plans, without context ranks and of all."""
    whose = book.whose(best_cut)
    eight = min(job.with_tensor(8), key=lambda one: one.seconds, default=None)
    bars = {f"three degrees, labkit's seconds: {pictures.short(yours)}": yours}
    bars |= {} if without_cp is best else {f"the planner without CP: {pictures.short(without_cp)}": without_cp}
    display(pictures.steps({**bars, f"the planner: {pictures.short(best)}": best}))
    return book.conclude(
        "{whose} search with labkit's seconds has varied the three degrees, with ZeRO-1 and `sel` in all "
        "plans. The planner looks at {considered:,} plans, and its step is {gain:.0%} shorter.\n\n",
        {"chunks > 1 and pipe[1] < pipe[0]": "- *Interleaved stages* (`v{chunks}`): its plan waits {pipe[1]:.2f} s for "
         "the pipeline, and yours {pipe[0]:.2f} s.\n", "True": ""},
        {"sums[1] < sums[0]": "- *Fewer tensor ranks*: its plan waits {sums[1]:.2f} s for all-reduces inside layers, "
         "and yours {sums[0]:.2f} s.\n", "True": ""},
        {"context > 1 and without > 0": "- *Context parallelism* (`CP{context}`) divides the activations, so nothing "
         "has to be recomputed. But without it the step takes only {without:.1%} longer, as the bar in the middle "
         "shows.\n", "True": ""},
        {"widest < 8 and eight": "- *TP8 is in none of them*, although a node of 8 has room for it. Inside a node, "
         "too, more tensor ranks wait longer: the fastest cut with TP8 of {whose_low} search takes {eight_s:.2f} s, "
         "and {eight_sums:.2f} s of this is waiting for all-reduces.\n", "True": ""},
        "\nEven while it computes, a GPU reaches only {peak:.0%} of its peak, so MFU is lower than the share of "
        "computing.\n\n"
        "<details><summary>Then why do many large runs use TP8?</summary>\n\n"
        "Llama 3 405B, for example, was trained with TP8. This planner lets a GPU wait for every message inside a "
        "layer. Megatron can hide a part of these messages behind matrix products (`--tp-comm-overlap`), and then "
        "tensor parallelism costs less than here. A larger model also needs more parts to fit, a longer sequence has "
        "larger activations, and a small batch leaves few microbatches for a pipeline. Ask the panel below for Llama 3 "
        "405B on 1,024 A100s: there a plan with TP8 comes first.\n\n</details>",
        whose=whose.capitalize(), whose_low=whose, considered=job.found.considered,
        gain=1 - best.seconds / yours.seconds, peak=best.mfu * best.seconds / best.parts["computing"],
        context=best.plan.context, without=without_cp.seconds / best.seconds - 1, chunks=best.plan.chunks,
        pipe=_of_parts("pipeline", yours, best), sums=_of_parts("tensor", yours, best),
        widest=max(one.plan.tensor for one in (yours, without_cp, best)), eight=eight is not None,
        eight_s=eight.seconds if eight else 0.0, eight_sums=eight.parts["tensor"] if eight else 0.0,
    )  # fmt: skip


def _of_parts(part: str, *several: Estimate) -> list[float]:
    """Seconds of one part of a step, as it is drawn."""
    return [pictures.parts_of(one)[part] for one in several]


# 8: more questions ---------------------------------------------------------------------------------------------------


def rule_of_thumb(given: Advice, smaller: Advice) -> book.Conclusion:
    """The rungs of a job, and what stopping on the first that fits costs there and for a smaller job."""
    display(pictures.ladder(given, pictures.short))
    return book.conclude(
        "The rule finds something that works, so it is a good way to begin. But a plan that fits need not be fast. If "
        "you stop at the first rung that fits, a step of {job} ({first}) takes {large:.0%} longer than with the best "
        "plan. For {other} ({other_first}) it takes {small:.0%} longer.",
        job=_job(given), other=_job(smaller), large=price(given), small=price(smaller),
        first=given.first.name if given.first else "", other_first=smaller.first.name if smaller.first else "",
    )  # fmt: skip


def _job(given: Advice) -> str:
    return f"{given.found.model.name} on {given.found.cluster.gpus:,} GPUs"


def price(given: Advice) -> float:
    """By which part a step is longer if one stops at the first rung on which something fits."""
    assert given.first is not None and given.first.best is not None
    return given.first.best.seconds / given.found.winner.seconds - 1


def sixteen_nodes(four: Mapping[str, Estimate]) -> book.Conclusion:
    """Four proposals for one job: tensor over all, a pipeline, sharding, and everything."""
    wide, deep, shards, mix = four.values()
    display(pictures.steps({f"{name}: {pictures.short(one)}": one for name, one in four.items()}, "Four proposals"))
    return book.conclude(
        "No strategy is the best in general, because each one has a limit.",
        {"all(fits)": "All four plans fit (simulated).", "True": "Not all four plans fit (simulated)."},
        "\n\n- *Tensor parallelism over all GPUs* takes {times:.2g} times as long as the mixture, because the "
        "all-reduces of every layer cross the network.\n"
        "- *The pipeline* reaches an MFU of {deep:.0%}. Its step takes {deep_more:.2f} s longer than its computing. Of "
        "this time {deep_again:.0%} is recomputation, which saves memory, and {deep_bubble:.0%} is the bubble, because "
        "so small a batch leaves few microbatches for each replica. Another {deep_other:.0%} goes to messages between "
        "stages and to uneven stages.\n"
        "- *Sharding alone* reaches {shards:.0%}, and its step takes {shards_more:.2f} s longer than its computing. Of "
        "this time {shards_again:.0%} is recomputation. {shards_data:.0%} is gathering, because a GPU must gather all "
        "layers to work on a single sequence.\n"
        "- *The mixture* reaches {mix:.0%}.\n\n"
        "**How many GPUs do the fast links connect?** Step through three real machines. The NPUs of the last one are "
        "Huawei's processors for neural networks.",
        times=wide.seconds / mix.seconds, deep=deep.mfu, shards=shards.mfu, mix=mix.mfu,
        fits=[one.fits for one in four.values()], deep_again=_lost(deep, "recomputed"),
        deep_bubble=_lost(deep, "bubble"), shards_again=_lost(shards, "recomputed"),
        deep_other=_lost(deep, "messages") + _lost(deep, "uneven"), shards_data=_lost(shards, "data"),
        deep_more=deep.seconds - deep.parts["computing"], shards_more=shards.seconds - shards.parts["computing"],
    )  # fmt: skip


def _lost(one: Estimate, part: str) -> float:
    """The share of a part in what is not computing."""
    return one.parts[part] / (one.seconds - one.parts["computing"])


def machines() -> book.Conclusion:
    """Three real machines, and what is asked of a larger domain next."""
    display(pictures.machines())
    return book.conclude(
        "**What changes with a larger fast domain?** A trillion parameters are trained on 2,048 B200s. The network "
        "between the domains stays the same, and only the number of GPUs on one NVLink network grows. The last bar "
        "below is for comparison: in domains of 16 it cuts each layer among all 16 GPUs."
    )


def shift(domains: Mapping[int, Estimate], theirs: Estimate) -> book.Conclusion:
    """domain -> its best plan; and a source's plan, with tensor parallelism over a domain of 16."""
    few, middle, many = sorted(domains)
    first, last = domains[few], domains[many]
    shown = {f"{n} GPUs in a domain: {pictures.short(one)}": one for n, one in domains.items()}
    wide = f"all {theirs.plan.tensor} for tensor: {pictures.short(theirs)}"
    display(pictures.steps({**shown, wide: theirs}, "A step in larger domains"))
    return book.conclude(
        {"middle_plan == first_plan": "From {few} to {middle} GPUs in a domain the best plan stays the same, and a "
         "step gets {middle_gain:.0%} shorter.",
         "True": "From {few} to {middle} GPUs in a domain the best plan changes, and a step gets {middle_gain:.0%} "
         "shorter."},
        {"stages > 1 and stages_after == 1": "With {many} the pipeline has disappeared. All GPUs now share the state "
         "by ZeRO-3, because most of the gathering stays inside the domains. But a step is only {gain:.0%} shorter "
         "than with {few}.",
         "True": "With {many} the stages have gone from {stages} to {stages_after}, and a step is {gain:.0%} shorter "
         "than with {few}."},
        {"first_lost == last_lost": "In small domains and in large ones, the largest part after computing goes to "
         "{first_lost}, so these are the next limit.",
         "True": "After computing, the largest part goes to {first_lost} in the smallest domains, and to {last_lost} "
         "in the largest."},
        "\n\nA domain that *allows* wide tensor parallelism is no reason to use all of it. The last bar does so in "
        "domains of {t}, and a step takes {theirs:.1f} s.\n\n"
        "**Must a network connect everybody with everybody?** Two ranks with the same place in their nodes are on one "
        "*rail*. The next cell counts the bytes that go from rail to rail in one step on eight real ranks, two to a "
        "node: of a dense model on all three axes, and of one with eight experts.",
        few=few, middle=middle, gain=1 - last.seconds / first.seconds, first_plan=pictures.short(first),
        middle_plan=pictures.short(domains[middle]), middle_gain=1 - domains[middle].seconds / first.seconds,
        many=many,
        first_lost=pictures.largest(first), last_lost=pictures.largest(last),
        stages=first.plan.pipeline, stages_after=last.plan.pipeline, theirs=theirs.seconds,
        t=theirs.plan.tensor,
    )  # fmt: skip
