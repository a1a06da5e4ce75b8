"""The planner's answer to a design memo: what of a plan is impossible, too large, slow or expensive, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit import book
from labkit.chapters.c15_hybrid_parallelism import pictures
from labkit.cost import planner
from labkit.cost.parallel.pipeline import bubble_fraction
from labkit.cost.planner import MODELS, Cluster, Model, Plan, Search
from labkit.cost.units import GB, format_bytes, format_seconds


def critique(
    model: Model, cluster: Cluster, plan: Plan, tokens: float, found: Search | None = None, *, reveal: bool = True
) -> str:  # fmt: skip
    """A memo's plan, answered point by point in Markdown. tokens: of the whole run. reveal: name the planner's plan."""
    impossible = plan.why_impossible(model, cluster.gpus)
    if impossible:
        return f"**It cannot run.** {impossible[0].upper()}{impossible[1:]}."
    found = planner.search(model, cluster, plan.batch) if found is None or found.batch != plan.batch else found
    one = planner.estimate(model, cluster, plan, costs=found.costs)
    points = [
        ("Does it fit?", _fits(found, one)), ("How long is a step?", _step(one)),
        ("Is the pipeline full?", _bubble(one)),
        ("What is faster?", (_faster if reveal else _how_far)(found, one)), ("What does it cost?", _price(one, tokens)),
        ("What stops when one GPU dies?", _blast(plan)),
    ]  # fmt: skip
    told = "\n".join(f"- **{head}** {said}" for head, said in points) + f"\n\n**Do the links carry it?** {_links(one)}"
    return told.replace("one_f_one_b", "1F1B")


def _fits(found: Search, one: planner.Estimate) -> str:
    if one.fits:
        spare = (one.cluster.gpu.memory - one.held.total) / GB
        return (
            f"Yes: the fullest GPU holds {one.held.total / GB:.1f} GB, and {spare:.1f} GB are left beside the "
            f"{one.cluster.gpu.reserve / GB:.1f} GB of the card that no plan may fill."
        )
    return f"No: it {planner.why_too_large(found.costs, one.plan)}."


def _step(one: planner.Estimate) -> str:
    useful = one.parts["computing"] / one.seconds
    again = f" (with what is computed again, {one.hfu:.1%})" if one.hfu > 1.0005 * one.mfu else ""
    took = f"{'' if one.fits else 'If it did fit, '}{format_seconds(one.seconds)} for {one.tokens:,} tokens"
    return f"{took}, an MFU of {one.mfu:.1%}{again}. Of this time {useful:.0%} is computing, and the largest other " + (
        f"part goes to {pictures.largest(one)}."
    )


def _links(one: planner.Estimate) -> str:
    """A table of the axes, in Markdown."""
    checks = planner.bandwidth_check(one)
    if not checks:
        return "Nothing is sent."
    told = "What a GPU sends in a step over the slowest links of each axis, at the rate that software reaches:\n\n"
    told += "| axis | over | sends | takes | hidden by computing | the step waits |\n|---|---|---|---|---|---|\n"
    for one_axis in checks:
        hidden = 1 - one_axis.waited / one_axis.alone if one_axis.alone else 0.0
        alone, waited = format_seconds(one_axis.alone, 3), format_seconds(one_axis.waited, 3)
        told += f"| {one_axis.axis} | {one_axis.link} | {format_bytes(one_axis.nbytes)} | {alone} | {hidden:.0%} | "
        told += f"{waited} |\n"
    trusting = any(check.axis == "data" and check.waited < 0.2 * check.alone for check in checks)
    if trusting and one.plan.sharding in ("zero3", "hsdp"):
        told += "\nThat gathering hides so well is the model's most generous assumption: measure it before you trust "
        told += "this plan."
    return told


def _bubble(one: planner.Estimate) -> str:
    plan = one.plan
    if plan.pipeline == 1:
        return "There is no pipeline, so there is no bubble."
    idle = bubble_fraction(plan.pipeline, plan.microbatches, plan.chunks)
    if plan.schedule.startswith("zb"):
        return (
            f"In 1F1B {plan.microbatches} microbatches on {plan.pipeline} stages would leave {idle:.1%} of the "
            f"pipeline's time idle. The zero-bubble schedule fills a part of it with gradients of the weights, and "
            f"what stages still wait is {one.parts['bubble'] / one.seconds:.1%} of the step."
        )
    return (
        f"{plan.microbatches} microbatches on {plan.pipeline} stages leave {idle:.1%} of the pipeline's time idle, "
        f"and twice as many would leave {bubble_fraction(plan.pipeline, 2 * plan.microbatches, plan.chunks):.1%}."
    )


def _how_far(found: Search, one: planner.Estimate) -> str:
    """How much the planner's plan would save, and where to look, without naming it."""
    if not one.fits or not found.best or one.seconds <= found.winner.seconds * 1.0001:
        return "First it has to fit." if found.best and not one.fits else _faster(found, one)
    gaps = {part: seconds - found.winner.parts[part] for part, seconds in one.parts.items()}
    part = max(gaps, key=gaps.__getitem__)
    yours, its = (format_seconds(each.parts[part], 3) for each in (one, found.winner))
    return (
        f"The planner has a plan with {found.winner.seconds / one.seconds:.0%} of your step. Yours loses most in "
        f"*{part}*, {yours} where the planner's takes {its}. Change a choice, and run "
        "this again; `reveal=True` shows its plan."
    )


def _faster(found: Search, one: planner.Estimate) -> str:
    plan = one.plan
    if not found.best:
        return found.nothing_fits()[0].upper() + found.nothing_fits()[1:] + "."
    if not one.fits:
        its = format_seconds(found.winner.seconds, 3)
        best = f"the planner would take {found.winner.plan}, with a step of {its}"
        return f"Yours does not fit. Of those that do, {best}."
    if one.seconds <= found.winner.seconds * 1.0001:
        return "Nothing: the planner has found no plan that is faster."
    return f"The planner would take {found.winner.plan}. {planner.why_not(found, plan)}"


def _price(one: planner.Estimate, tokens: float) -> str:
    if not one.fits:
        return "First it has to fit."
    run = one.run(tokens)
    price = (
        f"no price of this GPU, {one.cluster.gpu.name}, is at hand" if one.cluster.price is None
        else f"they cost {_dollars(run['dollars'])} {one.cluster.price_said}".replace("$", "&#36;")  # no formula
    )  # fmt: skip
    return (
        f"{tokens / 1e9:,.0f} billion tokens take {format_seconds(3600 * run['hours'], 3)} without a failure. "
        f"These are {run['hours'] * one.plan.gpus:,.0f} GPU-hours; {price}. The GPUs use "
        f"{run['megawatt-hours']:,.3g} MWh."
    )


def _dollars(price: float) -> str:
    return f"{price / 1e6:,.2f} million dollars" if price >= 1e5 else f"{price:,.0f} dollars"


def _blast(plan: Plan) -> str:
    replica = plan.tensor * plan.pipeline * plan.context
    if plan.sharding in ("zero3", "hsdp"):
        holders = plan.gpus if plan.sharding == "zero3" else replica * (plan.shard or plan.replicas)
        return (
            f"With ZeRO-3 the parameters of a copy are spread over {holders:,} GPUs, so all of these stop at once. "
            + ("" if holders >= plan.gpus else "Others wait, unless replicas may fail by themselves (chapter 19).")
        )
    copy = f"A copy of the model is spread over {replica} GPUs" if replica > 1 else "Every GPU has a copy of the model"
    state = (
        "" if plan.sharding == "plain" or plan.replicas == 1 else
        "Its part of the optimizer's state lies nowhere else, so that must come from a checkpoint. "
    )  # fmt: skip
    return (
        f"{copy}, so if one GPU dies, 1 of {plan.replicas} copies is gone. {state}"
        "Everybody else waits, unless replicas may fail by themselves (chapter 19)."
    )


def answer(
    model: str, gpus: int, plan: Plan | Mapping[str, Any], tokens: float, *, batch: int, reveal: bool = False
) -> book.Conclusion:  # fmt: skip
    """`critique` on H100s, to show. plan: perhaps only the choices of one; what is no plan is refused in a sentence.

    batch: the sequences of a step that the job asks for; plans with others are refused.
    """
    if not tokens > 0:
        raise ValueError(f"tokens = {tokens}: take a positive number of tokens")
    if isinstance(plan, Plan):
        chosen = plan
    else:
        why = _what_is_missing(plan)
        try:
            chosen = Plan(**({} if why else plan))
        except (TypeError, ValueError) as error:  # its last words say what to change
            why = str(error).replace("Plan.__init__()", "your plan")
        if why:
            return book.conclude("{said}", said=f"**It cannot run:** {why}.")
    if chosen.gpus == gpus and chosen.batch != batch:
        said = (
            f"**That is another job.** Your plan has {chosen.batch:,} sequences in a step, data x microbatch x "
            f"microbatches, and the job says {batch:,}."
        )
        return book.conclude("{said}", said=said)
    return book.conclude(
        "{said}", said=critique(MODELS[model], planner.h100_cluster(gpus), chosen, tokens, reveal=reveal)
    )


def _what_is_missing(choices: Mapping[str, Any]) -> str:
    if choices.get("sharding") == "hsdp" and not choices.get("shard"):
        return 'sharding="hsdp" needs shard=..., over how many ranks the state is shared: take shard=8 for a node'
    if choices.get("schedule") == "interleaved" and choices.get("chunks", 1) == 1:
        return 'schedule="interleaved" needs chunks=..., in how many parts the layers of a rank are cut: 2 or more'
    return ""
