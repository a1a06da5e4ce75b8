"""What the first two parts of chapter 1 show: what ranks hold beside what a GPU has, and where a step's time goes."""

from __future__ import annotations

from typing import Any

from labkit import book, cost
from labkit.book.drawing.charts import marker
from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, legend, plotly_spec
from labkit.book.drawing.style import INK, ON_COLOUR, series
from labkit.book.drawing.svg import Svg, number, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, listing
from labkit.chapters.c01_why_distribute.memory import DEVICE, PARTS, Moment, Trial, total
from labkit.cost.units import GB, MB, format_seconds

LOOKS = {part: series(k) for k, part in enumerate(PARTS)}
STEP = 1  # which the ranks mark; what they send before it (the first weights) belongs to step 0
STATE = {"parameters": "parameters", "gradients": "gradients", "Adam's state": "optimizer"}


def fits(trial: Trial) -> Figure:
    """What every rank holds of a large model, as measured on the small one, with the formula and a GPU's memory."""
    held = [{name: getattr(rank, part) for name, part in STATE.items()} for rank in trial.held]
    most, room = max(sum(rank.values()) for rank in held), cost.GPU_MEMORY
    said = (
        f"The fullest rank holds {most / GB:,.4g} GB of training state, and by the formula it is "
        f"{trial.formula.total / GB:,.4g} GB. A GPU has {room / GB:g} GB, "
    )
    said += (
        f"so it does not fit: {bytes_text(most - room)} too much."
        if most > room
        else f"so it fits, and leaves {bytes_text(room - most)} for the activations."
    )
    rows: list[Row] = [
        {"rank": r, **{f"{name} (GB)": n / GB for name, n in rank.items()}, "together (GB)": sum(rank.values()) / GB,
         "by the formula (GB)": trial.formula.total / GB} for r, rank in enumerate(held)
    ]  # fmt: skip
    title = "Training state on each rank"
    return Figure(title, "emulated", said, rows, svg=_fits_svg(title, said, held, trial.formula.total),
                  spec=_fits_spec(title, held, trial.formula.total))  # fmt: skip


def _fits_svg(title: str, said: str, held: list[dict[str, float]], formula: float) -> str:
    svg = Svg(WIDTH, title, said)
    looks = [(name, LOOKS[name].colour, LOOKS[name].hatch, "") for name in STATE]
    top = legend(svg, heading(svg, "emulated", said), looks) + 14
    left, right, high, room = 70.0, WIDTH - 110.0, 220.0, cost.GPU_MEMORY
    scale = high / (1.1 * max(room, formula, *(sum(rank.values()) for rank in held)))
    bottom, pitch = top + high, (right - left) / len(held)
    for r, rank in enumerate(held):
        x, y, wide = left + (r + 0.2) * pitch, bottom, 0.6 * pitch
        for name, n in rank.items():
            y -= n * scale
            svg.rect(x, y, wide, n * scale, LOOKS[name].colour, LOOKS[name].hatch, stroke=ON_COLOUR, stroke_width=0.7)
        svg.marker(x + wide / 2, bottom - formula * scale, "diamond", "#ffffff")
        svg.text(x + wide / 2, bottom + 16, f"rank {r}", anchor="middle")
    svg.line(left, bottom, right, bottom)
    svg.line(left, bottom - room * scale, right, bottom - room * scale, dash="7 4", width=2.5)
    svg.text(right + 6, bottom - room * scale + 4, f"{room / GB:g} GB: one GPU")
    svg.marker(left + 4, bottom + 32, "diamond", "#ffffff")
    svg.text(left + 14, bottom + 36, "by the formula")
    return svg.render(bottom + 44)


def _fits_spec(title: str, held: list[dict[str, float]], formula: float) -> dict[str, Any]:
    x = [f"rank {r}" for r in range(len(held))]
    data: list[dict[str, Any]] = [
        {"type": "bar", "name": name, "x": x, "y": [rank[name] / GB for rank in held], "marker": marker(LOOKS[name]),
         "hovertemplate": "%{x}: %{y:.4g} GB of " + name + "<extra></extra>"} for name in STATE
    ]  # fmt: skip
    dots = {"symbol": "diamond", "size": 11, "color": "#ffffff", "line": {"width": 1.5, "color": ON_COLOUR}}
    data.append({"type": "scatter", "mode": "markers", "name": "by the formula", "x": x,
                 "y": [formula / GB] * len(x), "marker": dots})  # fmt: skip
    room = cost.GPU_MEMORY / GB
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": room, "y1": room,
            "line": {"dash": "dash", "width": 2.5, "color": INK}}  # fmt: skip
    words = {"xref": "paper", "x": 0.01, "y": room, "yshift": 13, "xanchor": "left", "showarrow": False,
             "text": f"{room:g} GB: one GPU", "font": {"color": ON_COLOUR}, "bgcolor": "#ffffff"}  # fmt: skip
    return plotly_spec(
        title, "emulated", data, 280, barmode="stack", xaxis=axis(""), yaxis=axis("GB") | {"rangemode": "tozero"},
        shapes=[line], annotations=[words], showlegend=True,
    )  # fmt: skip


def also_alive(trial: Trial) -> str:
    """What labkit found from outside: all tensors that were alive at the end of the step."""
    held, found = max(sum(parts) for parts in trial.run.results), max(trial.trace.peak_bytes())
    return (
        f"Every rank trained a small model, cut in the same way, and the bars count its bytes times "
        f"{trial.times:,.0f}. Its own training state takes {bytes_text(held)} on the fullest rank. All tensors that "
        f"labkit found alive there at the end of the step take {bytes_text(found)}"
        + (", with what the run before has left." if found > 1.5 * held else ".")
    )


def filling(run: Any, room: float = DEVICE) -> book.Player:
    """The memory of one device, moment by moment through a step, from the moments that rank 0 returned."""
    moments: list[Moment] = run.results[0]
    fullest = max(range(len(moments)), key=lambda k: total(moments[k]))
    at, most = moments[fullest]["at"], bytes_text(total(moments[fullest]))
    said = f"The fullest moment is “{at}”, with {most}. The device of {bytes_text(room)} is large enough."
    if full := total(moments[-1]) > room:
        where = at if at.startswith("before") else f"at “{at}”"
        said = (
            f"Out of memory {where}: {most} are needed, and the device has {bytes_text(room)}. The run stopped there."
        )
    words = [
        f"{m['at'][0].upper()}{m['at'][1:]}: {bytes_text(total(m))} are held: "
        + ", ".join(f"{part} {bytes_text(m[part])}" for part in PARTS)
        + "."
        for m in moments
    ]
    words[-1] = said if full else words[-1]
    title = "The memory of one device through a step"
    rows: list[Row] = [
        {"after": m["at"], **{f"{p} (MB)": m[p] / MB for p in PARTS}, "together (MB)": total(m) / MB} for m in moments
    ]

    pictures = [(_tank(title, text, moments, k, room), text) for k, text in enumerate(words)]
    return book.play(pictures, title=title, badge="measured", rows=rows, sentence=said, still=fullest)


def _tank(title: str, said: str, moments: list[Moment], now: int, room: float) -> str:
    """The device as a tank that fills, and beside it all moments so far."""
    svg = Svg(WIDTH, title, said)
    looks = [(part, LOOKS[part].colour, LOOKS[part].hatch, "") for part in PARTS]
    top = legend(svg, max(heading(svg, "measured", said), 67), looks) + 16
    high, left, wide = 250.0, 14.0, 190.0
    scale = high / (1.08 * max(room, *map(total, moments)))
    bottom = top + high

    def pile(x: float, width: float, moment: Moment, label: bool) -> None:
        y = bottom
        for part in PARTS:
            tall = moment[part] * scale
            if not tall:
                continue
            y -= tall
            svg.rect(x, y, width, tall, LOOKS[part].colour, LOOKS[part].hatch, stroke=ON_COLOUR, stroke_width=0.7,
                     hover=f"{moment['at']}: {part} {bytes_text(moment[part])}")  # fmt: skip
            if label and tall > 15:
                _label(svg, x + width / 2, y + tall / 2, f"{part} {bytes_text(moment[part])}")

    pile(left, wide, moments[now], True)
    svg.rect(left, bottom - room * scale, wide, room * scale, stroke_width=2.5)
    svg.text(left + wide + 6, bottom - room * scale + 4, f"{bytes_text(room)}: full", 11, bold=True)
    if total(moments[now]) > room:
        svg.text(left + wide + 6, bottom - room * scale - 12, "out of memory", 12, bold=True)
    start, end = 300.0, WIDTH - 10.0
    pitch = (end - start) / len(moments)
    for k, moment in enumerate(moments[: now + 1]):
        pile(start + k * pitch, 0.8 * pitch, moment, False)
    svg.line(start, bottom, end, bottom)
    svg.line(start, bottom - room * scale, end, bottom - room * scale, dash="7 4", width=2)
    at = start + (now + 0.4) * pitch
    svg.add("path", d=f"M{number(at)} {number(bottom + 3)} l-6 10 h12 Z", klass="lk-head")
    svg.text(min(max(at, start + 60), end - 60), bottom + 28, moments[now]["at"], 12, "middle", bold=True)
    svg.text(left + wide / 2, bottom + 28, "now", 12, "middle", bold=True)
    return svg.render(bottom + 38)


def _label(svg: Svg, x: float, y: float, text: str) -> None:
    """Dark words on a light strip: readable on every hatch."""
    wide = text_width(text, 11.5) + 8
    svg.rect(x - wide / 2, y - 8, wide, 16, "#ffffff", stroke="none", radius=3)
    svg.text(x, y + 4, text, 11.5, "middle", on_colour=True)


def took(run: Any) -> str:
    """How long a step took beside the formula, and what that is worth; the ranks return a `Job`."""
    job, n, seconds = run.results[0], len(run.results), run.trace.duration
    fast = f"{job.compute / seconds:.3g} times as fast as" if seconds <= job.compute else "slower than"
    return (
        f"The run took {format_seconds(seconds, 3)}; by the formula it takes {format_seconds(job.step(n), 3)} "
        f"({run.trace.badge}). That is {fast} one rank, which would need {format_seconds(job.compute, 3)}: of the time "
        f"of {n} rank{'s' * (n > 1)} {100 * job.compute / (n * seconds):.0f} % is computing."
    )


def speed_up(run: Any) -> Figure:
    """The speed-up of this run, on the curve of the formula, with the line that everybody hopes for."""
    job, n, sizes = run.results[0], len(run.results), range(1, 17)
    by_formula = {float(size): job.compute / job.step(size) for size in sizes}
    best = max(by_formula, key=lambda size: by_formula[size])
    said = f"By the formula the best number of ranks up to 16 is {best:g}: {by_formula[best]:.3g} times as fast as one."
    if best == 1:
        said = "By the formula no number of ranks up to 16 is faster than one."
    curves: dict[str, dict[float, float]] = {
        "as hoped": {float(size): float(size) for size in sizes}, "by the formula": by_formula,
        "this run": {float(n): job.compute / run.trace.duration},
    }  # fmt: skip
    return book.lines(curves, x="ranks", y="times as fast", title="Speed-up", badge="emulated", sentence=said)


def timeline(run: Any) -> Figure:
    """The whole run, from its first kernel to its last message."""
    return book.timeline(run.trace, title="Who does what when", arrows=False)


def diagnosis(run: Any) -> str:
    """How long the step takes, and what each rank's own time says about it."""
    found: dict[str, list[int]] = {}
    parts = run.trace.step_breakdown(STEP)
    for rank, row in enumerate(parts):
        found.setdefault(cost.regime(row["compute"], row["transfer"], row["waiting"]), []).append(rank)
    told = listing([f"{plural_ranks(ranks)} {regime}" for regime, ranks in found.items()])
    longest = max(row["total"] for row in parts)
    return f"The step takes {format_seconds(longest, 3)} ({run.trace.badge}). By its largest part, {told}."


def plural_ranks(ranks: list[int]) -> str:
    """rank 1 is; ranks 0, 2 and 3 are."""
    names = listing([str(r) for r in ranks])
    return f"rank {names} is" if len(ranks) == 1 else f"ranks {names} are"


def breakdown(run: Any) -> Figure:
    """The parts of the time of each rank in the step."""
    return book.step_breakdown(run.trace, STEP, title="Where the time of the step went")


def step_timeline(run: Any) -> Figure:
    """The step, from its first kernel to its last message."""
    return book.timeline(run.trace, step=STEP, title="Who does what when", arrows=False)
