"""The planner's answer to a design memo: what of a plan is impossible, too large, slow or expensive, in numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from labkit import book
from labkit.book.drawing.units import listing
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
    useful = one.parts["computing"] / one.seconds
    again = f"; with recomputation, {one.hfu:.1%}" if one.hfu > 1.0005 * one.mfu else ""
    points = [
        ("Does it fit?", _fits(found, one)),
        ("A step", f"{'' if one.fits else 'If it did fit, '}{format_seconds(one.seconds)} for {one.tokens:,} tokens"),
        ("MFU", f"{one.mfu:.1%}{again}"),
        ("Computing", f"{useful:.0%} of the step; the largest other part goes to {_named(one, pictures.largest(one))}"),
        ("Bubble", _bubble(one)), ("What is faster?", (_faster if reveal else _how_far)(found, one)),
        *_price(one, tokens), *_watched(one), ("If one GPU dies", _blast(plan)),
    ]  # fmt: skip
    told = "| your plan | |\n|---|---|\n" + "".join(f"| {head} | {said} |\n" for head, said in points)
    return f"{told}\n**Do the links carry it?** {_links(one)}".replace("one_f_one_b", "1F1B")


def _fits(found: Search, one: planner.Estimate) -> str:
    if one.fits:
        spare = (one.cluster.gpu.memory - one.held.total) / GB
        return (
            f"Yes: the fullest GPU holds {one.held.total / GB:.1f} GB. {spare:.1f} GB are left, and "
            f"{one.cluster.gpu.reserve / GB:.1f} GB more that no plan may fill."
        )
    return f"No: it {planner.why_too_large(found.costs, one.plan)}."


def _links(one: planner.Estimate) -> str:
    """A table of the axes, in Markdown."""
    checks = planner.bandwidth_check(one)
    if not checks:
        return "Nothing is sent."
    told = "For a GPU and a step, over the slowest links of each axis:\n\n"
    told += "| axis | over | sends | takes | hidden by computing | the step waits |\n|---|---|---|---|---|---|\n"
    for one_axis in checks:
        hidden = 1 - one_axis.waited / one_axis.alone if one_axis.alone else 0.0
        alone, waited = format_seconds(one_axis.alone, 3), format_seconds(one_axis.waited, 3)
        told += f"| {one_axis.axis} | {one_axis.link} | {format_bytes(one_axis.nbytes)} | {alone} | {hidden:.0%} | "
        told += f"{waited} |\n"
    if _hides(one):
        told += "\nThat gathering hides so well is the planner's most optimistic assumption. Measure it first."
    return told


def _bubble(one: planner.Estimate) -> str:
    plan = one.plan
    if plan.pipeline == 1:
        return "None: there is no pipeline."
    idle = bubble_fraction(plan.pipeline, plan.microbatches, plan.chunks)
    if plan.schedule.startswith("zb"):
        return (
            f"In 1F1B the pipeline would be idle for {idle:.1%} of its time. The zero-bubble schedule fills a part of "
            f"that, and what stages still wait is {one.parts['bubble'] / one.seconds:.1%} of the step."
        )
    return (
        f"{idle:.1%} of the pipeline's time idle; with twice as many microbatches, "
        f"{bubble_fraction(plan.pipeline, 2 * plan.microbatches, plan.chunks):.1%}"
    )


def _how_far(found: Search, one: planner.Estimate) -> str:
    """How much the planner's plan would save, and where to look, without naming it."""
    if not one.fits or not found.best or one.seconds <= found.winner.seconds * 1.0001:
        return "First it has to fit." if found.best and not one.fits else _faster(found, one)
    mine, its = (pictures.parts_of(each) for each in (one, found.winner))
    part = max(mine, key=lambda part: mine[part] - its[part])
    yours, best = (format_seconds(each[part], 3) for each in (mine, its))
    return (
        f"Your step takes {_longer(one, found.winner)} that of the planner's plan. Yours loses most in "
        f"{_named(one, pictures.WORDS.get(part, part))}: {yours}, where the planner's takes {best}."
        f"{_without_hiding(found, one, reveal=False)}"
    )


def _named(one: planner.Estimate, words: str) -> str:
    """The same words; of the pipeline also what most of its time goes to."""
    if words != pictures.WORDS["pipeline"]:
        return words
    why = {"bubble": "its bubble", "messages": "messages between stages", "uneven": "waiting for the fullest stage"}
    return f"{words} (mostly {why[max(why, key=lambda part: one.parts[part])]})"


def _hides(one: planner.Estimate) -> bool:
    """Whether a plan rests on hiding nearly all that it gathers of its parameters."""
    checks = planner.bandwidth_check(one) if one.plan.sharding in ("zero3", "hsdp") else []
    return any(check.axis == "data" and check.waited < 0.2 * check.alone for check in checks)


@functools.cache
def _with_zero1(model: Model, cluster: Cluster, batch: int) -> Search:
    """The search over plans that exchange along the data axis only once a step."""
    return planner.search(model, cluster, batch, planner.Space(sharding=("plain", "zero1")), keep=1)


def _without_hiding(found: Search, one: planner.Estimate, reveal: bool) -> str:
    """If the winner rests on hiding what it gathers, the best plan with ZeRO-1 at most; "" if it does not."""
    if not _hides(found.winner):
        return ""
    said = " But the planner's plan is the fastest only under one optimistic assumption, that gathering parameters in "
    said += "each microbatch hides behind computing. "
    others = _with_zero1(found.model, found.cluster, found.batch)
    if not others.best:
        return said + "With ZeRO-1 no plan fits."
    best = others.winner
    named = f", {best.plan}," if reveal else ""
    return (
        f"{said}The best plan with ZeRO-1{named} does not need it, and your step takes {_longer(one, best)} its step."
    )


def _longer(one: planner.Estimate, other: planner.Estimate) -> str:
    """ "12% longer than": how a step compares with another."""
    part = one.seconds / other.seconds - 1
    return f"{abs(part):.0%} {'longer' if part >= 0 else 'less'} than"


def _with_zero1_said(found: Search) -> str:
    """The best plan with ZeRO-1 at most, if the winner is another one."""
    others = _with_zero1(found.model, found.cluster, found.batch)
    if not others.best or others.winner.plan == found.winner.plan:
        return ""
    return f" With ZeRO-1 it would take {others.winner.plan}, with {format_seconds(others.winner.seconds, 3)}."


def _faster(found: Search, one: planner.Estimate) -> str:
    plan = one.plan
    if not found.best:
        return found.nothing_fits()[0].upper() + found.nothing_fits()[1:] + "."
    if not one.fits:
        its = format_seconds(found.winner.seconds, 3)
        best = f"the planner would take {found.winner.plan}, with a step of {its}"
        return f"Yours does not fit. Of those that do, {best}.{_with_zero1_said(found)}"
    if one.seconds <= found.winner.seconds * 1.0001:
        return "Nothing: the planner has found no plan that is faster."
    safe = _without_hiding(found, one, reveal=True)
    return f"The planner would take {found.winner.plan}. {planner.why_not(found, plan)}{safe}"


def _price(one: planner.Estimate, tokens: float) -> list[tuple[str, str]]:
    """Rows: how long the run takes, and what it costs; none for a plan that cannot run."""
    if not one.fits:
        return []
    run = one.run(tokens)
    price = (
        f"no price of the {one.cluster.gpu.name} is at hand" if one.cluster.price is None
        else f"{_dollars(run['dollars'])}, {one.cluster.price_said}".replace("$", "&#36;")  # no formula
    )  # fmt: skip
    took = f"{format_seconds(3600 * run['hours'], 3)} without a failure, {run['hours'] * one.plan.gpus:,.0f} GPU-hours"
    return [
        (f"{tokens / 1e12:,.3g} trillion tokens" if tokens >= 1e12 else f"{tokens / 1e9:,.0f} billion tokens", took),
        ("Price", price),
        ("Energy of the GPUs", f"{run['megawatt-hours']:{',.0f' if run['megawatt-hours'] >= 100 else '.3g'}} MWh"),
    ]


def _watched(one: planner.Estimate) -> list[tuple[str, str]]:
    """Rows: numbers of the first step and of the first hour that a plan is held to; none for one that cannot run."""
    if not one.fits:
        return []
    parts, off = pictures.parts_of(one), pictures.published_error(max)
    waits = [f"{format_seconds(parts[axis], 2)} for {pictures.WORDS.get(axis, axis)}"
             for axis in ("tensor", "context", "pipeline", "data") if parts[axis] > 0.001 * one.seconds]  # fmt: skip
    low, high = (format_seconds((1 + way * off) * one.seconds, 3) for way in (-1, 1))
    return [
        ("In the first step", f"A loss near ln({one.model.vocabulary:,}) = {math.log(one.model.vocabulary):.1f}, since "
         "an untrained model knows nothing. Compare loss and gradient norm with those of a cut that you trust, and "
         f"check that no GPU holds more than {one.held.total / GB:.1f} GB."),
        ("In the first hour", f"Steps of {low} to {high}: on published runs the planner was off by up to {off:.0%}. "
         + (f"In each a GPU waits about {listing(waits)}. The part that is longer names the axis to look at."
            if waits else "Hardly any of it is waiting.")),
    ]  # fmt: skip


def _dollars(price: float) -> str:
    return f"{price / 1e6:,.2f} million dollars" if price >= 1e5 else f"{price:,.0f} dollars"


def _blast(plan: Plan) -> str:
    replica = plan.tensor * plan.pipeline * plan.context
    if plan.sharding in ("zero3", "hsdp"):
        holders = plan.gpus if plan.sharding == "zero3" else replica * (plan.shard or plan.replicas)
        return f"The {holders:,} GPUs that share its parameters stop at once." + (
            "" if holders >= plan.gpus else " The others wait (unless replicas may fail alone, chapter 19)."
        )
    state = (
        "" if plan.sharding == "plain" or plan.replicas == 1 else
        "Its part of the optimizer's state lies nowhere else, so that must come from a checkpoint. "
    )  # fmt: skip
    copies = f"1 of {plan.replicas} copies of the model is" if plan.replicas > 1 else "the only copy of the model is"
    return f"{copies[0].upper()}{copies[1:]} gone ({replica} GPU{'s' * (replica > 1)}). {state}" + (
        "The others wait, unless replicas may fail alone (chapter 19)." if plan.replicas > 1 else ""
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
        if plan.get("recompute") == "none":  # as the page says it: all activations are kept
            plan = {**plan, "recompute": "all"}
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
    known = [field.name for field in dataclasses.fields(Plan)]
    if unknown := [name for name in choices if name not in known]:
        return f"there is no choice {unknown[0]!r}: a plan has {listing(known)}"
    if choices.get("sharding") == "hsdp" and not choices.get("shard"):
        return 'sharding="hsdp" needs shard=..., over how many ranks the state is shared: take shard=8 for a node'
    if choices.get("schedule") == "interleaved" and choices.get("chunks", 1) == 1:
        return 'schedule="interleaved" needs chunks=..., in how many parts the layers of a rank are cut: 2 or more'
    return ""
