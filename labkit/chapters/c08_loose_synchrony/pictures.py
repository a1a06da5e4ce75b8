"""What chapter 8 shows of its runs: loss by time and by bytes, staleness, leads, agreement, and what was sent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import INK, ON_COLOUR, ORANGE, SERIES, Look
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, seconds_text
from labkit.chapters.c08_loose_synchrony import drawings
from labkit.chapters.c08_loose_synchrony.methods import Contest, Race
from labkit.chapters.c08_loose_synchrony.task import LAST, Served
from labkit.optim.synchrony import graphs

Runs = Mapping[str, Served]


def by_time(runs: Runs) -> book.Figure:
    """The loss by the time of the virtual clock, one line a policy."""
    told = ", ".join(f"{name} {served.last():.2f} ({served.updates()} gradients)" for name, served in runs.items())
    return book.lines(
        {name: _thinned(served.curve()) for name, served in runs.items()}, x="milliseconds",
        y="loss on digits kept back", title="Loss by time", badge="emulated",
        sentence=f"Mean loss over the last {seconds_text(LAST)}, and gradients until then: {told}.",
    )  # fmt: skip


def _thinned(curve: Sequence[tuple[float, float]], most: int = 40) -> list[tuple[float, float]]:
    step = max(1, math.ceil(len(curve) / most))
    return [*curve[:-1:step], curve[-1]] if curve else []


def raced(runs: Runs) -> book.Figure:
    return by_time(runs)


NEAR = 1.05  # losses that are nearer to each other than that are taken for equal


def who_won(runs: Runs) -> str:
    """Which policy has the lowest loss."""
    best, *others = sorted(runs, key=lambda name: runs[name].last())
    near = [name for name in others if runs[name].last() < NEAR * runs[best].last()]
    won = f"{' and '.join(f'**{name}**' for name in (best, *near))}" + (
        f" are within {NEAR - 1:.0%} of each other, which one run cannot tell apart" if near else ""
    )
    return f"Lowest loss in the same time: {won}. (One run, emulated time.)"


def ages(runs: Runs) -> book.Figure:
    """How many gradients were how stale: a strip for each run, with its mean."""
    title, most, tall = "Staleness: updates that came in between", 12, 46.0
    counts = {name: Counter(served.taus()) for name, served in runs.items()}
    told = "; ".join(
        f"{name}: most often {c.most_common(1)[0][0]}, at most {max(c)}" for name, c in counts.items() if c
    )
    said = f"Staleness of each gradient. {told[:1].upper()}{told[1:]}."
    oldest = max((max(c) for c in counts.values() if c), default=0)
    each = oldest // (most + 1) + 1  # how many ages a bar has
    svg, left = Svg(WIDTH, title, said), 126.0
    y, wide = heading(svg, "emulated", said) + 10, (WIDTH - left - 90) / (most + 1)
    for (name, count), look in zip(counts.items(), SERIES, strict=False):
        drawn = Counter({t: sum(n for tau, n in count.items() if tau // each == t) for t in range(most + 1)})
        y += tall + 26
        svg.text(left - 10, y - 8, name, 12, "end", bold=True)
        svg.line(left, y, left + wide * (most + 1), y, faint=True)
        for place, n in drawn.items():
            if n:
                up, x = tall * n / max(drawn.values()), left + place * wide
                svg.rect(x + 3, y - up, wide - 6, up, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7)
                svg.text(x + wide / 2, y - up - 3, str(n), 10.5, "middle")
        mean = _mean(runs[name].taus())
        if count:
            at = left + (mean + 0.5) / each * wide
            svg.marker(at, y + 7, "triangle-up", look.colour, 5)
            svg.text(left + wide * (most + 1) + 8, y - 8, f"mean {mean:.2f}", 11.5)
    for place in range(most + 1):
        ages = f"{place}" if each == 1 else f"{each * place}-{each * (place + 1) - 1}"
        svg.text(left + (place + 0.5) * wide, y + 25, ages, 11, "middle")
    svg.text(8, y + 43, "A triangle stands at the mean.", 11)
    rows: list[Row] = [
        {"staleness": tau} | {name: count[tau] for name, count in counts.items()}
        for tau in sorted(set().union(*counts.values()))
    ]
    return book.Figure(title, "emulated", said, rows, svg=svg.render(y + 52))


def held_up_said(run: Any, s: str) -> str:
    """Of the workbench of bounds: the largest lead, how long workers waited, and how old gradients got."""
    served: Served = run.results[0]
    lead, oldest = served.lead(), max(served.taus())
    allowed = (served.workers - 1) * (2 * int(s) + 1) if s != "no bound" else 0
    most = f"; with this s at most {allowed} is possible, as the next cell explains" if allowed else ""
    return (
        f"The largest lead at the start of a gradient was **{lead}**, and the workers waited for "
        f"{drawings.waiting(run.trace):.0%} of their time. "
        f"The server got {served.updates() / served.seconds:.0f} gradients per second. The largest staleness "
        f"was {oldest}{most}."
    )


def held_up_curve(run: Any, s: str) -> book.Figure:
    return by_time({s if s == "no bound" else f"s = {s}": run.results[0]})


def pace(runs: Mapping[str, Mapping[str, Served]]) -> book.Figure:
    """Gradients in a second, by who is late (outer key) and policy."""
    names = list(next(iter(runs.values())))
    values = {n: {late: some[n].updates() / some[n].seconds for late, some in runs.items()} for n in names}
    said = "; ".join(f"{late}: " + ", ".join(f"{n} {values[n][late]:.0f}" for n in names) for late in runs)
    return book.bars(values, unit="", title="Gradients in a second, by who is late", badge="emulated",
                     sentence=f"Gradients in a second. {said[0].upper()}{said[1:]}.")  # fmt: skip


def spread(
    values: Mapping[str, Sequence[float]], title: str, what: str, badge: str = "emulated", low: float = 0.0
) -> book.Figure:
    """A row for each name: its runs as marks, and their range as a line, on an axis that begins at `low`."""
    every = [v for some in values.values() for v in some]
    top_value = max(every) * 1.05
    said = "; ".join(f"{name} {min(v):.2f} to {max(v):.2f}" for name, v in values.items())
    said = f"{what[0].upper()}{what[1:]}, {len(next(iter(values.values())))} seeds each: {said}."
    svg = Svg(WIDTH, title, said)
    y, left, right = heading(svg, badge, said) + 10, 220.0, 70.0
    scale = (WIDTH - left - right) / (top_value - low)
    for look, (name, some) in zip(SERIES * 2, values.items(), strict=False):
        svg.text(left - 10, y + 13, name, 12, "end")
        svg.line(left, y + 9, WIDTH - right, y + 9, faint=True)
        marks = [left + (v - low) * scale for v in some]
        svg.line(min(marks), y + 9, max(marks), y + 9, width=4, colour=look.colour)
        for x in marks:
            svg.marker(x, y + 9, look.marker, look.colour, 5)
        svg.text(WIDTH - right + 8, y + 13, f"{_mean(some):.2f}", 11.5, bold=True)
        y += 28
    svg.text(left, y + 10, f"{low:g}", 11)
    svg.text(WIDTH - right, y + 10, f"{top_value:.2g}", 11, "end")
    svg.text(WIDTH - right + 8, y + 10, "mean", 11)
    rows: list[Row] = [{"what": name} | {f"seed {i}": v for i, v in enumerate(some)} for name, some in values.items()]
    return book.Figure(title, badge, said, rows, svg=svg.render(y + 20))


def price(aged: Mapping[str, Sequence[float]]) -> book.Figure:
    return spread(aged, "The same number of gradients, fresh or stale", "loss in the end")


PUSH = 0.2  # how far a constant gradient moves the weights in the end, as a part of the distance, at either momentum


def swing(tau: int, momentum: float, count: int) -> list[float]:
    """SGD on a parabola from 1 towards its minimum at 0, with every gradient tau updates old."""
    walk, velocity = [1.0], 0.0
    for t in range(count):
        velocity = momentum * velocity + walk[max(0, t - tau)]
        walk.append(walk[-1] - PUSH * (1 - momentum) * velocity)
    return walk


def swings(old: int = 3, most: int = 7, count: int = 60) -> book.Player:
    """Two descents of a parabola at one rate, without momentum and with it: a picture for each staleness."""
    title, frames, rows = "Down a parabola with stale gradients", [], list[Row]()
    for tau in range(most + 1):
        walks = {name: swing(tau, m, count) for name, m in (("no momentum", 0.0), ("momentum 0.9", 0.9))}
        plain, pushed = (_calm(swing(tau, m, 999)) for m in (0.0, 0.9))
        said = (
            f"tau = {tau}. Within a tenth of the first distance for good: without momentum {plain}, with 0.9 {pushed}."
        )
        lines = {name: [(float(t), x) for t, x in enumerate(walk)] for name, walk in walks.items()}
        drawn = book.lines(lines, x="update", y="position, minimum = 0", title=title, badge="simulated", sentence=said,
                           within=(-1.75, 1.75))  # fmt: skip
        frames.append((drawn.svg, said))
        rows.append({"tau": tau, "no momentum": plain, "momentum 0.9": pushed})
    return book.play(frames, title=title, badge="simulated", rows=rows, still=min(old, most), begin=0)


def _calm(walk: Sequence[float]) -> str:
    """From which update on a walk stays within a tenth of its first distance."""
    last = max(t for t, x in enumerate(walk) if abs(x) > TENTH)
    return f"after {last + 1} updates" if last + 1 < len(walk) else "never"


def losses(
    values: Mapping[str, Sequence[tuple[float, float]]], x: str, title: str, badge: str = "emulated",
    what: str = "text", within: tuple[float, float] | None = None,
) -> book.Figure:  # fmt: skip
    """Several trainings over one axis. within: where the axis of the loss begins and ends."""
    told = ", ".join(f"{name} at {line[-1][1]:.2f}" for name, line in values.items() if line)
    return book.lines({n: _thinned(v, 24) for n, v in values.items()}, x=x, y=f"loss on {what} kept back", title=title,
                      badge=badge, sentence=f"In the end: {told} (one run).", within=within)  # fmt: skip


def rounds_said(result: Any) -> str:
    """Of the workbench of rounds: bytes by formula, time, and the loss."""
    return (
        f"Each rank sent {bytes_text(result['sent'])}; by the formula it is {bytes_text(result['formula'])}. The "
        f"{result['steps']} steps took {seconds_text(result['seconds'])} of the virtual clock, "
        f"{seconds_text(result['computing'])} of it computing."
    )


def rounds_curve(result: Any) -> book.Figure:
    return losses({result["name"]: result["curve"]}, "milliseconds", "Loss by time")


def drift(distances: Mapping[float, Mapping[float, float]]) -> book.Figure:
    """How far the ranks' weights are apart in a training with gossip. distances: of a rate, by step."""
    told = " and ".join(f"{some[max(some)]:.2f} at a rate of {rate:g}" for rate, some in distances.items())
    return book.lines({f"rate {rate:g}": dict(some) for rate, some in distances.items()}, x="step",
                      y="consensus distance", title="How far the ranks are apart", badge="measured",
                      sentence=f"After the last step the consensus distance is {told}.")  # fmt: skip


def rounds(runs: Mapping[str, Any]) -> book.Figure:
    """When rank 0 computes and when it averages, in several runs of local SGD, until the first of them is through."""
    seen = {name: run.results[0] for name, run in runs.items()}
    quick = min(seen, key=lambda name: seen[name].seconds)
    end, lanes, rows = seen[quick].seconds, dict[str, list[Piece]](), list[Row]()
    for name, run in runs.items():
        lanes[name] = _computing(run.trace, 0)
        busy = sum(b - a for a, b in lanes[name])
        rows.append(
            {
                "averages": name,
                "all steps (ms)": 1e3 * seen[name].seconds,
                "computing (ms)": 1e3 * busy,
                "all-reduces (ms)": 1e3 * (seen[name].seconds - busy),
                "loss in the end": seen[name].last(),
            }
        )
    done = {name: sum(b <= end + 1e-9 for _, b in lane) for name, lane in lanes.items()}
    steps = len(lanes[quick])
    title = f"{steps} steps over a far link"
    said = f"After {seconds_text(end)}: " + ", ".join(
        f"{name} has computed {n} step{'s' * (n != 1)}" for name, n in done.items()
    )
    said += (
        f". Loss after all {steps}: " + ", ".join(f"{one.last():.2f} with {name}" for name, one in seen.items()) + "."
    )
    svg, left, right = Svg(WIDTH, title, said), 70.0, 150.0
    y = legend(svg, heading(svg, "emulated", said), [("a step of rank 0", ORANGE, "", ""),
               ("an all-reduce of the weights", "none", "/", "3 2")]) + 6  # fmt: skip
    scale = (WIDTH - left - right) / end
    for name, lane in lanes.items():
        svg.text(left - 10, y + 17, name, 12, "end", bold=True)
        _strip(svg, lane, end, left, y, scale, 24.0)
        svg.text(WIDTH - right + 8, y + 10, f"{done[name]} of {len(lane)} steps", 11.5, bold=True)
        svg.text(WIDTH - right + 8, y + 25, f"all after {seconds_text(seen[name].seconds)}", 11)
        y += 42
    svg.text(left, y + 4, "0 ms", 11)
    svg.text(WIDTH - right, y + 4, f"{1e3 * end:.0f} ms", 11, "end")
    return book.Figure(title, "emulated", said, rows, svg=svg.render(y + 14))


Piece = tuple[float, float]  # from, to, in seconds


def _computing(trace: Any, rank: int) -> list[Piece]:
    """When the rank computed."""
    return sorted((s.start, s.end) for s in trace.spans("compute") if s.rank == rank)


def _strip(svg: Svg, lane: Sequence[Piece], end: float, left: float, y: float, scale: float, high: float) -> None:
    """What is computed is filled, and what lies between is hatched, up to `end`."""
    before = 0.0
    for a, b in [*(piece for piece in lane if piece[0] < end), (end, end)]:
        if a - before > 1e-6:
            svg.rect(left + before * scale, y + 2, (a - before) * scale - 0.7, high - 4, "none", "/", dash="3 2",
                     stroke_width=0.6)  # fmt: skip
        if b > a:
            svg.rect(left + a * scale, y, (min(b, end) - a) * scale - 0.7, high, ORANGE, stroke_width=0.6)
        before = b


def agreement(measured: Sequence[float], rate: float, name: str, neighbours: int = 0) -> book.Figure:
    """How far the ranks are apart, round by round, beside the mixing rate; and the rounds until a tenth is left.

    neighbours: to how many others a rank sends.
    """
    part, last = [v / measured[0] for v in measured], len(measured) - 1
    said = f"{name[0].upper()}{name[1:]}: "
    there = next((k for k, v in enumerate(part) if v <= TENTH), None)
    if there is None:
        said += f"after {last} rounds {part[-1]:.0%} of the distance is left, which is more than a tenth."
    else:
        said += f"a tenth of the distance or less is left after {there} round{'s' * (there != 1)}."
        said += f" In each a rank sends {neighbours} message{'s' * (neighbours != 1)}." if neighbours else ""
    said += (
        " The mixing rate is 0: after one round all ranks agree, up to rounding."
        if rate < 1e-6
        else f" By the mixing rate, {rate:.2f} a round, {_at_most(rate**last)} may be left after {last} rounds."
    )
    bound = _down_to([rate**k for k in range(last + 1)])
    lines = {"measured": _down_to(part)} | ({f"mixing rate: {rate:.2f} a round": bound} if rate > 1e-6 else {})
    lines["a tenth"] = [(0.0, TENTH), (float(last), TENTH)]
    figure = book.lines(lines, x="round", y="consensus distance, first = 1", title="How fast the ranks agree",
                        sentence=said, log="y", within=(FLOOR, 1.5))  # fmt: skip
    rows: list[Row] = [{"round": k, "measured": v, "mixing rate": rate**k} for k, v in enumerate(part)]
    return replace(figure, rows=rows)


def _at_most(part: float) -> str:
    return "less than 0.1%" if part < 5e-4 else f"at most {part:.1%}"


TENTH, FLOOR = 0.1, 0.01


def _down_to(part: Sequence[float]) -> list[tuple[float, float]]:
    """By round, to where the line leaves the picture at its foot."""
    end = next((k for k, v in enumerate(part) if v < FLOOR), len(part) - 1)
    return [(float(k), max(v, FLOOR)) for k, v in enumerate(part[: end + 1])]


def steps_of_ranks(runs: Mapping[str, Any], end: float = 0.12) -> book.Figure:
    """When each rank computes and when it waits, with neighbours and in pairs. end: seconds that are drawn."""
    title, took = "Time of a step on each rank", {way: run.results for way, run in runs.items()}
    told = "; ".join(
        f"{way}: " + (f"{1e3 * min(x):.1f} to " if max(x) > 1.001 * min(x) else "") + f"{1e3 * max(x):.1f} ms"
        for way, x in took.items()
    )
    said = f"The last rank is four times as slow. Time of a step: {told}."
    svg, left, right, high = Svg(WIDTH, title, said), 70.0, 110.0, 17.0
    y = legend(svg, heading(svg, "emulated", said), [("a step's gradient", ORANGE, "", ""),
               ("waiting", "none", "/", "3 2")])  # fmt: skip
    scale, rows = (WIDTH - left - right) / end, list[Row]()
    for way, run in runs.items():
        svg.text(8, y + 18, way, 12, bold=True)
        y += 26
        for rank, seconds in enumerate(took[way]):
            svg.text(left - 10, y + 12, f"rank {rank}", 11, "end")
            _strip(svg, _computing(run.trace, rank), end, left, y + 1, scale, high - 3)
            svg.text(WIDTH - right + 8, y + 12, f"{1e3 * seconds:.0f} ms a step", 11.5)
            rows.append({"way": way, "rank": rank, "a step (ms)": 1e3 * seconds})
            y += high
    svg.text(left, y + 14, "0 ms", 11)
    svg.text(WIDTH - right, y + 14, f"{1e3 * end:.0f} ms", 11, "end")
    return book.Figure(title, "emulated", said, rows, svg=svg.render(y + 24))


def mixed(run: Any, name: str) -> book.Figure:
    """How far apart the numbers of all ranks were after each round: each rank returned its own, round by round."""
    held = [torch.stack(row) for row in zip(*run.results, strict=True)]
    apart = [float((x - x.mean(0)).square().sum(1).mean().sqrt()) for x in held]
    w = drawings.graph(name, len(run.results))
    rate = graphs.mixing_rate(w)
    sent = max(int((w[:, r] > 0).sum()) - 1 for r in range(len(w)))  # a rank hears itself, too
    return agreement(apart, rate, name, sent)


def sent_by_ranks(lines: Mapping[str, Mapping[int, int]]) -> book.Figure:
    """What a rank sends in a step, by the number of ranks, as a part of what it sends uncompressed."""
    whole = lines["whole"]
    share = {name: {float(n): v / whole[n] for n, v in line.items()} for name, line in lines.items()}
    first, last = min(whole), max(whole)
    grow = [name for name, line in share.items() if line[last] > 2 * line[first]]
    keep = [name for name in share if name not in (*grow, "whole")]
    return book.lines(
        share, x="ranks", y="bytes that a rank sends, whole = 1", title="Compressed bytes by ranks", badge="simulated",
        sentence=f"A larger part with more ranks: {', '.join(grow)}. About the same part on any number of "
        f"ranks: {', '.join(keep)}.", log="xy",
    )  # fmt: skip


def less_said(result: Any) -> str:
    """Of the workbench of compressed gradients: bytes, time, and the loss."""
    return (
        f"A rank sent {bytes_text(result['sent'])} in a step. For whole gradients a ring all-reduce sends "
        f"{bytes_text(result['whole'])}. "
        f"The {result['steps']} steps took {seconds_text(result['seconds'])} of the virtual clock."
    )


def less_curve(result: Any) -> book.Figure:
    return losses({result["name"]: result["curve"]}, "step", "Loss by steps", what="digits", within=(0.5, 2.5))


def tuned_said(result: Any) -> str:
    """Of the workbench of methods: bytes, time, and whether it has learned anything."""
    *_, line = result["lines"].values()
    said = f"A rank sent {bytes_text(result['sent'])} in a step, and sixty steps took {seconds_text(result['seconds'])}"
    return said + (" (emulated)." if line[-1][1] < 2.25 else " (emulated). At this rate it has learned nothing.")


def tuned_curve(result: Any) -> book.Figure:
    return losses(result["lines"], "milliseconds", "Loss by time", what="digits", within=(0.0, 2.6))


def beside_formula(prediction: Any, *results: Any) -> book.Table:
    """What was predicted beside what a formula says: there is no run."""
    table = prediction.compare(*results, mark="simulated")
    rows = [{name.replace("outcome (simulated)", "by the formula"): x for name, x in row.items()} for row in table]
    return book.Table(rows, caption=table.caption)


def decibel(x: float) -> float:
    return math.log10(max(x, 1e-12))


Box = tuple[float, float, float, float]  # left, top, right, bottom


LOOKS = (*SERIES, Look(INK, "", "solid", "square"))  # of the contest: each has its name beside it, too


def trade_off(contest: Contest) -> book.Figure:
    """Communication against convergence: bytes a step and loss after the same steps, a point and a range each."""
    title = "Communication against convergence, your own points"
    points = {name: (some[0].nbytes, [one.last() for one in some]) for name, some in contest.items()}
    most, least = (f(b for b, _ in points.values()) for f in (max, min))
    every = [v for _, some in points.values() for v in some]
    low, high = min(every) - 0.08 * (max(every) - min(every)), max(every) + 0.08 * (max(every) - min(every))
    few, whole = min(points, key=lambda n: points[n][0]), next(iter(points))
    said = (
        f"Left: fewer bytes; down: a lower loss, over {len(points[whole][1])} seeds. {few[0].upper()}{few[1:]} sends "
        f"least, {bytes_text(points[few][0])} a step, and ends at a mean loss of {_mean(points[few][1]):.2f}. "
        f"{whole[0].upper()}{whole[1:]} are {bytes_text(points[whole][0])}, and end at {_mean(points[whole][1]):.2f}."
    )
    svg = Svg(WIDTH, title, said)
    top = heading(svg, "measured", said) + 8
    left, wide, tall = 60.0, WIDTH - 76.0, 330.0
    span = decibel(most * 1.6) - decibel(least / 1.6)

    def place(b: float, v: float) -> tuple[float, float]:
        return left + wide * (decibel(b) - decibel(least / 1.6)) / span, top + tall * (high - v) / (high - low)

    svg.rect(left, top, wide, tall, stroke_width=0.8)
    for k in range(math.ceil(decibel(least / 1.6)), math.floor(decibel(most * 1.6)) + 1):
        x, _ = place(10.0**k, low)
        svg.line(x, top, x, top + tall, faint=True)
        svg.text(x, top + tall + 15, bytes_text(10.0**k), 10.5, "middle")
    step = 0.05 if high - low < 0.45 else 0.1 if high - low < 0.9 else 0.5
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        v = k * step
        _, y = place(most, v)
        svg.line(left, y, left + wide, y, faint=True)
        svg.text(left - 6, y + 4, f"{v:.2f}", 10.5, "end")
    svg.text(left + wide / 2, top + tall + 32, "bytes that a rank sends in a step (logarithmic)", 11.5, "middle")
    svg.text(left - 50, top - 4, "loss", 11.5)
    marks: list[tuple[str, float, float]] = []
    upright: list[float] = []  # where the lines stand
    taken: list[Box] = []  # by marks, lines and names
    for look, (name, (b, some)) in zip(LOOKS, points.items(), strict=False):
        (x, y), (_, y1), (_, y2) = place(b, _mean(some)), place(b, min(some)), place(b, max(some))
        while any(abs(x - other) < 6 for other in upright):
            x += 3  # two lines at one place would be one
        upright.append(x)
        svg.line(x, y1, x, y2, width=5, colour=ON_COLOUR)  # an edge, for yellow on white
        svg.line(x, y1, x, y2, width=3.4, colour=look.colour)
        svg.marker(x, y, look.marker, look.colour, 6)
        taken += [(x - 7, y - 7, x + 7, y + 7), (x - 3, y2, x + 3, y1)]
        marks.append((name, x, y))
    for look, (name, x, y) in zip(LOOKS, marks, strict=False):
        long = 1.08 * text_width(name, 12)
        box = _room(x, y, long, taken, (left, top, left + wide, top + tall))
        taken.append((box[0] - 14, box[1], box[2] + 14, box[3]))  # two names in a row are not to read as one
        near, middle = box[0] - 2 if box[0] > x else box[0] + long + 2, box[3] - 7
        if abs(middle - y) > 8:  # not beside its mark: a line leads there
            svg.line(x, y, near, middle, width=1.2, colour=look.colour)
            svg.marker(x, y, look.marker, look.colour, 6)
        svg.text(box[0], box[3] - 3, name, 12, bold=True)
    rows: list[Row] = [
        {"method": name, "bytes a step": round(b), "loss": _mean(some), "least": min(some), "most": max(some)}
        for name, (b, some) in points.items()
    ]
    return book.Figure(title, "measured", said, rows, svg=svg.render(top + tall + 40))


def _room(x: float, y: float, wide: float, taken: Sequence[Box], frame: Box) -> Box:
    """Where a name fits beside its mark: on the right, else on the left, a little higher or lower."""
    sides = (x + 11, x - 11 - wide)
    boxes = [(a, y - 8 + up, a + wide, y + 7 + up) for up in (0, -15, 15, -30, 30, -45, 45) for a in sides]

    def cost(box: Box) -> float:
        a, b, c, d = box
        out = max(0.0, frame[0] - a) + max(0.0, c - frame[2]) + max(0.0, frame[1] - b) + max(0.0, d - frame[3])
        return 1e3 * out + sum(
            max(0.0, min(c, r) - max(a, p)) * max(0.0, min(d, s) - max(b, q)) for p, q, r, s in taken
        )

    return min(boxes, key=cost)


def links(race: Race) -> book.Figure:
    """How many times as fast as whole gradients each method comes to the same loss: by link, the fastest first."""
    best = {link: race.best(link) for link in race.times}
    told = "; ".join(f"{link}: {name}, {race.told(link, name)} times as fast" for link, name in best.items())
    title, said = f"To a loss of {race.target:.2f}: how many times as fast?", f"Fastest by {told}."
    svg, left, right, lane = Svg(WIDTH, title, said), 170.0, 60.0, 17.0
    y = heading(svg, "emulated", said) + 6
    base = {link: _mean(some[race.whole]) for link, some in race.times.items()}
    speed = {
        link: {name: [base[link] / t for t in some] for name, some in of.items()} for link, of in race.times.items()
    }
    every = [v for of in speed.values() for some in of.values() for v in some]
    low, high = decibel(min(0.5, *every)) - 0.05, decibel(max(2.0, *every)) + 0.05
    top, looks = y, dict(zip(race.reached, LOOKS, strict=False))

    def place(v: float) -> float:
        return left + (WIDTH - left - right) * (decibel(v) - low) / (high - low)

    for link, of in speed.items():
        svg.text(8, y + 15, link, 12, bold=True)
        y += 20
        for name in sorted(of, key=lambda name, link=link: -race.gain(link, name)):  # type: ignore[misc]
            look, x, ends = looks[name], place(race.gain(link, name)), [place(v) for v in of[name]]
            svg.line(min(ends), y + 9, max(ends), y + 9, width=3, colour=look.colour)
            svg.marker(x, y + 9, look.marker, look.colour, 5)
            svg.text(left - 12, y + 13, name, 11, "end")
            svg.text(WIDTH - right + 12, y + 13, race.told(link, name), 11.5, bold=True)
            y += lane
        y += 6
        svg.line(8, y, WIDTH - 8, y, faint=True)
    for v in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0):
        if low <= decibel(v) <= high:
            svg.line(place(v), top, place(v), y, faint=v != 1.0, dash="" if v != 1.0 else "5 4")
            svg.text(place(v), y + 15, f"{v:g}", 11, "middle")
    svg.text(left, y + 32, "times as fast as whole gradients (logarithmic): the mean, and a line over three seeds", 11)
    rows: list[Row] = [
        {"method": name} | {link: round(race.gain(link, name), 2) for link in speed} for name in speed["free link"]
    ]
    return book.Figure(title, "emulated", said, rows, svg=svg.render(y + 42))


def _mean(values: Iterable[float]) -> float:
    some = list(values)
    return sum(some) / len(some) if some else math.nan
