"""Bars: measured numbers beside a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, legend, plotly_spec
from labkit.book.drawing.style import INK, ON_COLOUR, Look, series
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, bytes_unit, listing, seconds_text, seconds_unit, short

Values = Mapping[str, float]
UNITS: dict[str, tuple[Callable[[float], tuple[float, str]], Callable[[float], str]]] = {
    "bytes": (bytes_unit, bytes_text),
    "seconds": (seconds_unit, seconds_text),
    "": (lambda largest: (1.0, ""), short),
}


def bars(
    values: Mapping[str, Values], *, unit: str = "bytes", title: str = "Measured and computed", badge: str = "measured",
    sentence: str | None = None, ticks: bool = False, stacked: bool = False,
) -> Figure:  # fmt: skip
    """Bars in groups: values["measured"]["ring"] is the bar of series "measured" in group "ring".

    unit: "bytes", "seconds", or "" for plain numbers. With two series the table has their ratio, first over second.
    ticks: the last series is a tick across the bar of each group, as a formula is beside what was measured. stacked:
    the others are parts of one bar, on top of each other, which has their sum above it.
    """
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}: bars are in {', '.join(map(repr, UNITS))}")
    names = list(values)
    groups = list(dict.fromkeys(group for one in values.values() for group in one))
    if not groups:
        raise ValueError("there is nothing to draw: give bars at least one series with one value")
    rows: list[Row] = []
    for group in groups:
        row: dict[str, object] = {"": group, **{f"{n} ({unit})" if unit else n: values[n].get(group) for n in names}}
        if len(names) == 2:
            first, second = (values[n].get(group) for n in names)
            row[f"{names[0]} / {names[1]}"] = None if first is None or not second else first / second
        rows.append(row)
    said = sentence if sentence is not None else _compare(values, groups, UNITS[unit][1])
    looks = [series(k) for k in range(len(names))]
    return Figure(
        title, badge, said, rows,
        svg=_grouped(values, groups, looks, unit, title, badge, said, ticks, stacked),
        spec=_grouped_spec(values, groups, looks, unit, title, badge, ticks, stacked),
    )  # fmt: skip


def _compare(values: Mapping[str, Values], groups: list[str], text: Callable[[float], str]) -> str:
    """One clause for each series: its largest and its smallest bar; and whether two series agree."""
    told = []
    for name, one in values.items():
        most, least = max(one, key=lambda g: one[g]), min(one, key=lambda g: one[g])
        told.append(f"{name} from {text(one[least])} ({least}) to {text(one[most])} ({most})")
    if len(values) == 2:
        a, b = values.values()
        differ = [g for g in groups if g in a and g in b and a[g] != b[g]]
        told.append(" equals ".join(values) + (f", except for {listing(differ)}" if differ else " everywhere"))
    return " ".join(f"{clause[0].upper()}{clause[1:]}." for clause in told)


def _grouped(
    values: Mapping[str, Values],
    groups: list[str],
    looks: list[Look],
    unit: str,
    title: str,
    badge: str,
    said: str,
    ticks: bool,
    stacked: bool,
) -> str:
    svg = Svg(WIDTH, title, said)
    drawn = [Look("none", "-", "", "") if ticks and look is looks[-1] else look for look in looks]
    items = [(name, look.colour, look.hatch, "") for name, look in zip(values, drawn, strict=True)]
    top = legend(svg, heading(svg, badge, said), items) + 18
    sums = _sums(values, groups, ticks) if stacked else {}
    most = max([v for one in values.values() for v in one.values()] + [*sums.values()]) or 1.0
    size, unit_name = UNITS[unit][0](most)
    left, high = 20.0, 220.0
    pitch = (WIDTH - left - 12) / len(groups)
    bars = 1 if stacked else len(values) - ticks
    width = min(70.0, 0.8 * pitch / bars)
    formula: Values = values[list(values)[-1]] if ticks else {}
    for g, group in enumerate(groups):
        middle, foot = left + (g + 0.5) * pitch, top + high
        for k, (name, one) in enumerate(values.items()):
            if group not in one:
                continue
            x, tall = middle + ((0 if stacked else k) - bars / 2) * width, high * one[group] / most
            if ticks and k == len(values) - 1:
                x = middle - bars / 2 * width
                svg.line(x - 6, top + high - tall, x + bars * width + 3, top + high - tall, width=2.5)
                continue
            svg.rect(x, foot - tall, width - 3, tall, fill=looks[k].colour, hatch=looks[k].hatch,
                     stroke=ON_COLOUR, stroke_width=0.7, hover=f"{group}, {name}: {one[group]:,} {unit}")  # fmt: skip
            text, above = short(one[group] / size), tall
            if stacked:
                foot -= tall
                if k < len(values) - 1 - ticks:
                    continue  # the sum stands above the last part
                text, above = short(sums[group] / size), high * sums[group] / most
                tall = above
            if ticks and tall < (mark := high * formula.get(group, 0.0) / most) < tall + 18:
                above = mark  # a tick does not run through the number of its bar
            if text_width(text, 10.5) <= width + 4:
                svg.text(x + (width - 3) / 2, top + high - above - 4, text, 10.5, "middle")
        words = group.split("_") if text_width(group, 11) > pitch else [group]
        for line, word in enumerate(words):
            svg.text(middle, top + high + 15 + 13 * line, word, 11, "middle")
    svg.line(left - 6, top + high, WIDTH - 6, top + high)
    if unit_name:
        svg.text(8, top - 8, f"in {unit_name}", 11)
    return svg.render(top + high + 15 + 13 * max(len(g.split("_")) for g in groups))


def _grouped_spec(
    values: Mapping[str, Values],
    groups: list[str],
    looks: list[Look],
    unit: str,
    title: str,
    badge: str,
    ticks: bool,
    stacked: bool,
) -> dict[str, Any]:
    sums = _sums(values, groups, ticks) if stacked else {}
    most = max([v for one in values.values() for v in one.values()] + [*sums.values()]) or 1.0
    size, unit_name = UNITS[unit][0](most)
    data: list[dict[str, Any]] = [
        {
            "type": "bar", "name": name, "x": groups,
            "y": [None if one.get(g) is None else round(one[g] / size, 6) for g in groups],
            "text": ["" if one.get(g) is None else short(one[g] / size) for g in groups],
            "textposition": "outside", "cliponaxis": False,
            "hovertext": [f"{g}, {name}: {one.get(g, 0):,} {unit}" for g in groups], "hoverinfo": "text",
            "marker": marker(look),
        }
        for (name, one), look in zip(values.items(), looks, strict=True)
    ]  # fmt: skip
    if stacked:
        *parts, last = data[: len(data) - ticks]
        for part in parts:
            part["text"] = [""] * len(groups)
        last["text"] = [short(sums[g] / size) for g in groups]
    if ticks:
        tick, formula = data[-1], values[list(values)[-1]]
        data[-1] = {key: tick[key] for key in ("name", "x", "y", "hovertext", "hoverinfo")} | {
            "type": "scatter", "mode": "markers",
            "marker": {"symbol": "line-ew", "size": 64, "line": {"width": 2.5, "color": INK}},
        }  # fmt: skip
        bar, one = (data[-2], sums) if stacked else (data[0], next(iter(values.values())))
        high = [g for g in groups if one.get(g, 0.0) < formula.get(g, 0.0) < one.get(g, 0.0) + 0.1 * most]
        if high and (stacked or len(values) == 2):  # a tick just above a bar: the number of the bar goes above the tick
            data.append({
                "type": "scatter", "mode": "text", "x": high, "y": [round(formula[g] / size, 6) for g in high],
                "text": [short(one[g] / size) for g in high], "textposition": "top center", "cliponaxis": False,
                "hoverinfo": "skip", "showlegend": False,
            })  # fmt: skip
            bar["text"] = ["" if g in high else text for g, text in zip(groups, bar["text"], strict=True)]
        elif (
            len(values) > 2 and not stacked
        ):  # of several bars below a tick, each that it runs through has its number inside
            for bar, one in zip(data[:-1], list(values.values())[:-1], strict=True):
                crossed = [one.get(g, 0.0) < formula.get(g, 0.0) < one.get(g, 0.0) + 0.1 * most for g in groups]
                bar["textposition"] = ["inside" if inside else "outside" for inside in crossed]
    names = {"type": "category"} if any(g.isdecimal() for g in groups) else {}  # which plotly would take for numbers
    return plotly_spec(title, badge, data, 300, barmode="stack" if stacked else "group", showlegend=True,
                       xaxis=axis(showgrid=False, **names), yaxis=axis(unit_name, rangemode="tozero"))  # fmt: skip


def _sums(values: Mapping[str, Values], groups: list[str], ticks: bool) -> dict[str, float]:
    """By group, what its parts add up to."""
    parts = [*values.values()][: len(values) - ticks]
    return {group: sum(one.get(group, 0.0) for one in parts) for group in groups}


def marker(look: Look) -> dict[str, Any]:
    """Plotly's description of a bar with this look."""
    return {
        "color": look.colour, "line": {"width": 0.7, "color": ON_COLOUR},
        "pattern": {"shape": look.hatch, "size": 6, "solidity": 0.06 if look.hatch == "." else 0.2,
                    "fgcolor": ON_COLOUR, "bgcolor": look.colour},
    }  # fmt: skip
