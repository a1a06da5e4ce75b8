"""What chapter 15 shows of its runs and of the planner: steps, bytes by axis, signals, plans beside each other."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from labkit import book
from labkit.book.drawing.tables import Row
from labkit.chapters.c15_hybrid_parallelism import doing, same, small
from labkit.chapters.c15_hybrid_parallelism.drawings import (
    cube as cube,
    differences,
    histogram,
    joined,
    ladder as ladder,
    machines as machines,
    nested as nested_axes,
    off_by,
    stacked as stacked,
)
from labkit.cost import planner
from labkit.cost.planner import Calibration, Estimate, MeasuredStep, Plan
from labkit.cost.planner.predicted import step_parts
from labkit.cost.units import GB, format_bytes, format_seconds
from labkit.parallel import Layout

PARTS = {  # of a step, as they are drawn
    "computing": ("computing",), "recomputation": ("recomputed",), "tensor": ("tensor",), "context": ("context",),
    "experts": ("expert",), "pipeline": ("bubble", "messages", "uneven"), "data": ("data",),
    "optimizer": ("optimizer",),
}  # fmt: skip


# A step of the small cluster -------------------------------------------------------------------------------------


def took(run: Any) -> str:
    """Step, computing, and what crossed between the nodes."""
    config, k = run.results[0].config, small.per_node(run.trace.world_size)
    between = small.crossing(run, k)
    crossed = {axis: between["same rail"][axis] + between["another rail"][axis] for axis in small.NAMES}
    told = ", ".join(f"{format_bytes(n, 3)} for {axis}" for axis, n in crossed.items() if n) or "nothing"
    return (
        f"{cut_name(config)}: a step takes "
        f"{format_seconds(small.seconds(run), 3)} (emulated), and the ranks compute for {small.busy(run):.0%} of "
        f"it. Between the nodes go {told}.{_without_neighbours(config)}"
    )


def _without_neighbours(config: Any) -> str:
    """If the axis that was to lie inside a node cuts nothing: which one lies there in its place."""
    names = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    inner, *others = [axis for axis in reversed(config.order) if axis in names]
    there = next((axis for axis in others if getattr(config, axis) > 1), inner)
    if getattr(config, inner) > 1 or there == inner:
        return ""
    return f" This cut has no {names[inner]} ranks, so the neighbours are those of {names[there]} parallelism."


def each_stage(run: Any) -> book.Figure:
    """The second step of one rank of each stage: the others of a stage do the same at the same time, but for a rank
    that computes longer than all others, which is there too."""
    layout = _layout(run)
    first = {layout.coordinates(rank)["pp"]: rank for rank in reversed(range(layout.size))}
    title = "One step, of a rank of each stage" if len(first) > 1 else "One step, of one rank"
    computing = [row["compute"] for row in run.trace.step_breakdown(2)]
    longest = computing.index(max(computing))
    slow = max(computing) > 1.2 * mean(computing)
    return doing.bands(run, sorted({*first.values(), longest} if slow else first.values()),
                       title + (f", and of the slow rank {longest}" if slow else ""))  # fmt: skip


def on_nodes(run: Any) -> book.Figure:
    """The mesh of a run on its nodes: small, for it stands below a timeline."""
    drawn = book.mesh(_layout(run), small.per_node(run.trace.world_size), title="Who works with whom")
    return replace(drawn, spec=None)


def _layout(run: Any) -> Layout:
    config = run.results[0].config
    return Layout({axis: getattr(config, axis) for axis in config.order if axis != "cp" or config.cp > 1})


def partners(runs: Mapping[str, Any]) -> book.Figure:
    """name -> run of 2 x 2 x 2 ranks on four nodes of two: who sends to whom, and how much of it leaves a node."""
    drawn, told = {}, []
    for name, run in runs.items():
        lines: Counter[tuple[int, int, str]] = Counter()
        for m, axis in small.messages(run):
            if axis in small.NAMES:
                lines[min(m.src, m.dst), max(m.src, m.dst), axis] += int(m.nbytes)
        off = sum(n for (a, b, _), n in lines.items() if a // 2 != b // 2)
        words = f"{format_bytes(off, 3)} leave a node", f"a step takes {format_seconds(small.seconds(run), 3)}"
        drawn[name] = lines, words
        told.append(f"{format_bytes(off, 3)} leave a node with {name}")
    said = "The thicker a line, the more bytes go along it in a step. " + ", ".join(told) + "."
    return joined(drawn, "Which lines leave a node", said)


def placed(runs: Mapping[str, Any], title: str = "The same cut, placed in three ways") -> book.Figure:
    """name -> run: milliseconds of a step, on average: computing, waiting for messages of each axis, and idle."""
    bars = {name: {kind: 1e3 * s for kind, s in doing.shares(run).items()} for name, run in runs.items()}
    if all(bar["idle"] < 0.002 * sum(bar.values()) for bar in bars.values()):  # nobody sees that, but the legend has it
        bars = {name: {kind: ms for kind, ms in bar.items() if kind != "idle"} for name, bar in bars.items()}
    best, worst = min(runs, key=lambda n: small.seconds(runs[n])), max(runs, key=lambda n: small.seconds(runs[n]))
    said = (
        f"With {best} a step takes {format_seconds(small.seconds(runs[best]), 3)}, and with {worst} "
        f"{format_seconds(small.seconds(runs[worst]), 3)}, "
        f"{small.seconds(runs[worst]) / small.seconds(runs[best]):.2g} times as long."
    )
    return stacked(bars, unit="ms", title=title, badge="emulated", sentence=said)


# Traffic ---------------------------------------------------------------------------------------------------------


def busiest(run: Any) -> dict[str, int]:
    """Bytes that a rank sends in a step by axis, the most of any rank."""
    return {axis: max(row[axis] for row in small.sent_by_axis(run)) for axis in small.NAMES}


def grows(runs: Mapping[str, Any]) -> book.Figure:
    """`busiest` of a base run, and with each degree doubled."""
    bars = {name: {axis: n / 1e6 for axis, n in busiest(run).items()} for name, run in runs.items()}
    most = max(bars, key=lambda name: sum(bars[name].values()))
    said = f"The most is {sum(bars[most].values()):.3g} MB, with {most}."
    return stacked(bars, unit="MB", title="What the busiest rank sends", badge="measured", sentence=said)


def rails(runs: Mapping[str, Any], per_node: int) -> book.Figure:
    """name -> run: megabytes of a step, of all ranks, by where they go."""
    found = {name: small.crossing(run, per_node) for name, run in runs.items()}
    bars = {name: {where: sum(by.values()) / 1e6 for where, by in one.items()} for name, one in found.items()}
    off = {name: f"{bar['another rail']:.3g} MB" if bar["another rail"] else "nothing" for name, bar in bars.items()}
    said = "From rail to rail: " + ", ".join(f"{much} {name}" for name, much in off.items()) + "."
    return stacked(bars, unit="MB", title="Where the bytes of a step go", badge="measured", sentence=said)


# Signals ---------------------------------------------------------------------------------------------------------


def signals(run: Any, mistake: str = "none", data: str = "plain") -> str:
    """The signals of a run of `same.train`, in words; with its mistake, and how the data axis shares the state."""
    off = run.results[0].off(run.seed)
    wrong = {name: value for name, value in off.items() if value > same.NEAR}
    if not wrong and mistake == "tied matrix apart":
        return "Equal to one device: with a single stage nobody holds the matrix twice, so this is no mistake here."
    if not wrong and mistake == "averaged twice":
        return "Equal to one device: there is a single replica, so dividing by 1 is no mistake here."
    if not wrong and mistake != "none":
        return "Equal to one device: with this cut it is no mistake."
    if not wrong:
        return (
            f"Equal to one device: no signal is further off than {max(off.values()):.1e}, which is rounding in 64 bits."
        )
    quiet = [name for name in off if name not in wrong and not (data == "fsdp" and "copies" in name)]
    said = f"It does not match one device. {_listed(wrong)} {'differs' if _one(wrong) else 'differ'}."
    said += f" {_listed(quiet)} {'does' if _one(quiet) else 'do'} not show it." if quiet else ""
    if data == "fsdp":
        said += " With ZeRO-3 copies of a weight are not compared here."
    return said


def _one(names: Iterable[str]) -> bool:
    """Whether these are a single thing: "the copies of a weight" and "the weights" are several."""
    only, *more = names
    return not more and not only.startswith(("copies", "weights"))


def watched(signals: Mapping[str, same.Signals], seed: int, head: str = "mistake") -> book.Table:
    """mistake -> its signals, by how much each is off; a dash where it is not."""
    rows = [
        {head: name} | {n: f"{v:.2g}" if v > same.NEAR else "-" for n, v in each.off(seed).items()}
        for name, each in signals.items()
    ]
    one = same.on_one_device(seed)
    said = f"whose loss is {one.losses[0]:.3g} and norm {one.norms[0]:.3g}. A dash is less than a millionth"
    return book.Table(rows, caption=f"How far each signal is from that of one device, {said} (measured)")


def _listed(names: Iterable[str]) -> str:
    *most, last = (f"the {name}" for name in names)
    told = f"{', '.join(most)} and {last}" if most else last
    return told[0].upper() + told[1:]


def apart(run: Any, data: str = "plain") -> book.Figure:
    """How far each signal of a run is from that of one device; with ZeRO-3 no copies are compared."""
    off = {name: x for name, x in run.results[0].off(run.seed).items() if data != "fsdp" or "copies" not in name}
    worst = max(off, key=off.__getitem__)
    said = f"The largest absolute difference is that of the {worst}, {off[worst]:.1e}."
    return differences(off, limit=same.NEAR, told="more than this is no rounding", title="How far from one device",
                       badge="measured", sentence=said)  # fmt: skip


# The planner beside runs -----------------------------------------------------------------------------------------


ZERO = {"zero1": " ZeRO-1", "zero2": " ZeRO-2", "zero3": " ZeRO-3", "fsdp": " ZeRO-3", "hsdp": " HSDP"}


def degrees(tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1, dp: int = 1) -> str:
    """ "TP2 PP2 DP2": the degrees of a cut, without the axes that cut nothing."""
    axes = ("TP", tp), ("PP", pp), ("CP", cp), ("EP", ep), ("DP", dp)
    return " ".join(f"{axis}{n}" for axis, n in axes if n > 1) or "one rank"


def cut_name(config: Any) -> str:
    """ "TP2 PP2 DP2 ZeRO-1" of a configuration."""
    name = degrees(config.tp, config.pp, config.cp, dp=config.dp)
    kind = ZERO.get(config.data, "") if config.dp > 1 else ""
    return name + kind + (f" {config.schedule}" if config.schedule.startswith("zb") else "")


def beside(
    measured: Mapping[str, MeasuredStep], fit: Calibration | None = None, yours: Mapping[str, float] | None = None
) -> book.Figure:  # fmt: skip
    """name -> run with its plan: how far the planner is off, and the reader's formula; the seconds are in the rows."""
    off = {"planner": errors(measured, fit)}
    worst = max(off["planner"], key=lambda n: abs(off["planner"][n]))
    said = f"The planner is off by {median(map(abs, off['planner'].values())):.1%} in the median of {len(measured)} "
    said += f"plans. Its largest error is {off['planner'][worst]:+.1%}, for {worst}."
    if yours is not None:
        off["your lines"] = {name: yours[name] / one.seconds - 1 for name, one in measured.items()}
        said += f" That of your lines is {max(off['your lines'].values(), key=abs):+.0%}."
    named = {name: f"{name}: {format_seconds(one.seconds, 3)}" for name, one in measured.items()}
    rows: list[Row] = [
        {"": n, "ranks (seconds)": one.seconds, **{f"{who} (seconds)": (1 + by[n]) * one.seconds
                                                   for who, by in off.items()}}
        for n, one in measured.items()
    ]  # fmt: skip
    return off_by(off, named, title="How far each prediction is off", badge="emulated", sentence=said, rows=rows)


def errors(measured: Mapping[str, MeasuredStep], fit: Calibration | None = None) -> dict[str, float]:
    """Predicted over measured, less 1, by name. fit: its figures take the place of what each run's machine has."""
    figures: dict[str, Any] = {figure: getattr(fit.efficiency, figure) for figure in fit.fitted} if fit else {}
    return {
        name: one.predicted(replace(one.cluster.efficiency, **figures)) / one.seconds - 1
        for name, one in measured.items()
    }


def held(found: Mapping[str, tuple[Mapping[str, float], float]]) -> book.Figure:
    """name -> bytes of training state on the fullest rank by part, and all of them by the planner."""
    off = {name: computed / sum(held.values()) - 1 for name, (held, computed) in found.items()}
    worst = max(off, key=lambda n: abs(off[n]))
    said = f"The planner is at most {abs(off[worst]):.1%} away from what the fullest rank held, with {worst}."
    drawn = stacked({f"{name} (planner: {computed / 1e3:,.0f})": {part: n / 1e3 for part, n in held.items()}
                     for name, (held, computed) in found.items()}, unit="kB", badge="measured", sentence=said,
                    title="Training state of the fullest rank")  # fmt: skip
    rows: list[Row] = [
        {"in kB": name, **{part: n / 1e3 for part, n in held.items()}, "all": sum(held.values()) / 1e3,
         "planner": computed / 1e3, "off (%)": 100 * off[name]}
        for name, (held, computed) in found.items()
    ]  # fmt: skip
    return replace(drawn, rows=rows)


# Plans -----------------------------------------------------------------------------------------------------------


def parts_of(one: Estimate) -> dict[str, float]:
    """Seconds of a step, in the eight parts that are drawn."""
    return {name: sum(one.parts[part] for part in several) for name, several in PARTS.items()}


WORDS = {  # of the parts after computing
    "recomputation": "recomputation", "tensor": "the all-reduces of tensor parallelism",
    "context": "keys and values", "experts": "tokens on their way to experts", "pipeline": "the pipeline",
    "data": "gradients and parameters", "optimizer": "the optimizer",
}  # fmt: skip


def largest(one: Estimate) -> str:
    """What takes most of a step after computing, in words."""
    parts = parts_of(one)
    return WORDS[max(WORDS, key=lambda part: parts[part])]


def steps(plans: Mapping[str, Estimate], title: str = "One step") -> book.Figure:
    """name -> estimate: seconds of a step by part."""
    best = min(plans, key=lambda n: plans[n].seconds)
    told = f"The fastest is {best} with {plans[best].seconds:.3g} s and an MFU of {plans[best].mfu:.1%}."
    if not any(one.fits for one in plans.values()):
        told = f"It does not fit. If it did, {best} would take {plans[best].seconds:.3g} s."
    bars = {name: parts_of(one) for name, one in plans.items()}
    return stacked(bars, unit="s", title=title, badge="simulated", sentence=told, marked=[best])


def memory(plans: Mapping[str, Estimate], title: str = "Memory of the fullest GPU") -> book.Figure:
    """name -> estimate: gigabytes by part, and how many a GPU has."""
    one = next(iter(plans.values()))
    has = one.cluster.gpu.memory / GB
    large = [name for name, plan in plans.items() if not plan.fits]
    told = f"A plan may fill {has:.0f} GB, and {one.cluster.gpu.reserve / GB:.1f} GB of the card are kept in reserve. "
    told += f"Too large: {', '.join(large)}." if large else "All of them fit."
    bars = {name: {p: n / GB for p, n in plan.held.parts().items()} for name, plan in plans.items()}
    return stacked(bars, unit="GB", title=title, badge="simulated", sentence=told, limit=has)


def short(one: Estimate) -> str:
    """ "TP8 PP4 DP32 ZeRO-1 b2 v4" of a plan; a table in the notebook says what b2, v4 and the like mean."""
    plan = one.plan
    name = degrees(*plan.cut)
    many = f" b{plan.microbatch}" if plan.microbatch > 1 else ""
    again = {"all": "", "selective": " sel", "full": " full"}[plan.recompute]
    way = f" v{plan.chunks}" if plan.chunks > 1 else f" {plan.schedule}" if plan.schedule.startswith("zb") else ""
    return f"{name}{ZERO.get(plan.sharding, '')}{many}{way}{again}"


def all_plans(found: planner.Search) -> book.Figure:
    """Every plan of a search that fits, by its MFU, and what it loses most time to; a line at half of the best one."""
    best = found.winner
    shares = [best.mfu * best.seconds / seconds for seconds in found.seconds]
    causes = [_loses_most(step_parts(found.costs, Plan(*plan))) for plan in found.fitted]
    bad = Counter(cause for cause, s in zip(causes, found.seconds, strict=True) if s > 2 * best.seconds)
    slow = sum(bad.values()) / len(shares)
    said = (
        f"Of {found.considered:,} plans {len(shares):,} fit, and {slow:.0%} of those take more than twice as long as "
    )
    said += "the best."
    for cause, count in bad.most_common(1):
        said += f" Of these slow plans {count / sum(bad.values()):.0%} lose most to {WORDS[cause]}."
    return histogram(shares, causes, wide=best.mfu / 10, unit="MFU; above each bar: how many plans",
                     title="All plans that fit", badge="simulated", sentence=said, line=best.mfu / 2,
                     told="half as fast as the best")  # fmt: skip


def _loses_most(parts: Mapping[str, float]) -> str:
    """Which part of a step after computing is the longest, as it is drawn."""
    return max(WORDS, key=lambda name: sum(parts[part] for part in PARTS[name]))


def named(several: Sequence[Estimate]) -> dict[str, Estimate]:
    """Plans by their place and short name."""
    return {f"{n}. {short(one)}": one for n, one in enumerate(several, 1)}


@functools.cache
def published_error(of: Callable[[list[float]], float] = mean) -> float:
    """The planner's mean error over the published runs, or another figure of them."""
    return of([abs(claim.found / float(claim.said) - 1) for claim in planner.published_claims()])


def published(estimated: Mapping[planner.PublishedRun, Estimate]) -> book.Figure:
    """TFLOP/s of a GPU in published runs, and by the planner's estimate of each."""
    names = {_named_run(run): run for run in estimated}
    said = {name: run.tflops for name, run in names.items()}
    found = {name: run.tflops * run.seconds / estimated[run].seconds for name, run in names.items()}
    off = {n: found[n] / said[n] - 1 for n in names}
    worst = max(off, key=lambda n: abs(off[n]))
    sentence = (
        f"The published numbers are quoted, those of the planner are simulated. The mean error over {len(off)} runs "
        f"is {published_error():.1%}, and the largest {abs(off[worst]):.1%} ({worst}). One parameter "
        f"for each kind of machine was fitted to these same runs."
    )
    rows: list[Row] = [
        {"": name, "published": said[name], "planner": found[name], "off (%)": 100 * off[name]} for name in names
    ]
    return off_by({"planner": off}, {name: f"{name}: {said[name]:.0f}" for name in names}, left=290, rows=rows,
                  zero="what was published", ends=("planner too slow", "planner too fast"),
                  title="How far the planner is off: TFLOP/s of a GPU", badge="simulated",
                  sentence=sentence)  # fmt: skip


def _named_run(run: planner.PublishedRun) -> str:
    """ "GPT 1.7B, 32 A100s", "GPT 1,008B, 3,072 A100s" or "Llama 3 405B, 16,384 H100s, 128K tokens"."""
    size = run.model.params / 1e9
    model = f"GPT {size:,.0f}B" if size >= 10 else f"GPT {size:.1f}B"
    long = f", {run.model.sequence // 1024}K tokens" if run.context > 1 else ""
    return f"{run.model.name if run.machine == 'H100' else model}, {run.gpus:,} {run.machine}s{long}"


def links(*plans: Estimate) -> book.Figure:
    """How long the messages of each axis take in a step, and how much of that computing hides; and the computing."""
    bars: dict[str, dict[str, float]] = {}
    waits = []
    for plan in plans:
        cut = degrees(*plan.plan.cut)
        bars[f"{cut}: computing"] = {"computing": plan.parts["computing"]}
        for one in planner.bandwidth_check(plan):
            inside = plan.sent[one.axis] - one.nbytes  # what a rank of two levels sends in its node
            near = f"{format_bytes(inside, 3)} in the node + " if inside > 0.01 * one.nbytes else ""
            name = f"TP{plan.plan.tensor} {one.axis}: {near}{format_bytes(one.nbytes, 3)} over the {one.link}"
            bars[name] = {one.axis: one.waited, "hidden": one.alone - one.waited}
        waits.append(f"{sum(one.waited for one in planner.bandwidth_check(plan)):.2f} s with {cut}")
    first = plans[0]
    title = f"How long a GPU waits: {first.model.name} on {first.plan.gpus:,} {first.cluster.gpu.name}s"
    said = f"What one GPU does in a step of {first.plan.batch:,} sequences, with links at the speed that NCCL reaches. "
    said += f"It waits {' and '.join(waits)}."
    return stacked(bars, unit="s", title=title, badge="simulated", sentence=said)


def nested(plan: Estimate) -> book.Figure:
    """The axes of a plan from the inside to the outside, each with how long a GPU waits for it."""
    waits = {one.axis: one.waited for one in planner.bandwidth_check(plan)}
    return nested_axes(plan.plan.tensor, plan.plan.pipeline, plan.plan.data, waits)


def health(one: Any, budget: float = 0.75e6) -> book.Table:
    """Five signals of a run with plan C, one for each strategy and one for the machine.

    one: `run` of `small.two_steps`, and `held`, of `small.holding`. budget: bytes that a rank may hold.
    """
    seen = signals_of(one, budget)
    rows = [
        {"watches": strategy, "expected": signal, "seen": seen[strategy][0],
         "signal": "✓\u00a0fine" if seen[strategy][1] else "✗\u00a0red"}
        for strategy, signal in (
            ("the step", "ranks compute for more than half of it"),
            ("ZeRO", f"state below {format_bytes(budget, 3)}: less if it is sharded, more if it is whole"),
            ("tensor", "on average all-reduces in layers take less than a quarter of computing"),
            ("pipeline", "no rank waits more than a quarter of the step for a partner that is not ready (messages on "
             "their way are not counted)"),
            ("machine", "no rank computes more than 10% longer than the mean"),
        )
    ]  # fmt: skip
    return book.Table(rows, caption="Five signals (emulated)")


def signals_of(one: Any, budget: float = 0.75e6) -> dict[str, tuple[str, bool]]:
    """By what it watches: what a signal shows, and whether that is fine."""
    run, state = one.run, float(sum(small.fullest(one.held).values()))
    busy, told = small.busy(run), doing.shares(run)
    sums = told["tensor"] / told["computing"]
    rows = run.trace.step_breakdown(2)
    idle = max(row["waiting"] for row in rows) / small.seconds(run)
    computing = [row["compute"] for row in rows]
    uneven = max(computing) / (sum(computing) / len(computing)) - 1
    return {
        "the step": (f"{busy:.0%}", busy > 0.5), "ZeRO": (format_bytes(state, 3), state < budget),
        "tensor": (f"{sums:.0%} of it", sums < 0.25), "pipeline": (f"{idle:.0%}", idle < 0.25),
        "machine": (f"rank {computing.index(max(computing))}: {uneven:.0%} longer than the mean", uneven < 0.1),
    }  # fmt: skip
