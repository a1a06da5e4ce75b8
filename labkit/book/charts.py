"""Bars: measured numbers beside a formula, and where the time of each rank went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.book.figure import WIDTH, Figure, axis, heading, legend, plotly_spec
from labkit.book.reads import Trace
from labkit.book.style import KINDS, ON_COLOUR, Look, series
from labkit.book.svg import Svg, text_width
from labkit.book.tables import Row
from labkit.book.units import bytes_text, bytes_unit, listing, seconds_text, seconds_unit, short

Values = Mapping[str, float]
UNITS: dict[str, tuple[Callable[[float], tuple[float, str]], Callable[[float], str]]] = {
    "bytes": (bytes_unit, bytes_text),
    "seconds": (seconds_unit, seconds_text),
    "": (lambda largest: (1.0, ""), short),
}


def bars(
    values: Mapping[str, Values], *, unit: str = "bytes", title: str = "Measured and computed", badge: str = "measured",
    sentence: str | None = None,
) -> Figure:  # fmt: skip
    """Bars in groups: values["measured"]["ring"] is the bar of series "measured" in group "ring".

    unit: "bytes", "seconds", or "" for plain numbers. With two series the table has their ratio, first over second.
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
        svg=_grouped(values, groups, looks, unit, title, badge, said),
        spec=_grouped_spec(values, groups, looks, unit, title, badge, said),
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
    values: Mapping[str, Values], groups: list[str], looks: list[Look], unit: str, title: str, badge: str, said: str
) -> str:
    svg = Svg(WIDTH, title, said)
    top = legend(svg, heading(svg, badge, said),
                 [(n, look.colour, look.hatch, "") for n, look in zip(values, looks, strict=True)]) + 18  # fmt: skip
    most = max(v for one in values.values() for v in one.values()) or 1.0
    size, unit_name = UNITS[unit][0](most)
    left, high = 20.0, 220.0
    pitch = (WIDTH - left - 12) / len(groups)
    width = min(70.0, 0.8 * pitch / len(values))
    for g, group in enumerate(groups):
        middle = left + (g + 0.5) * pitch
        for k, (name, one) in enumerate(values.items()):
            if group not in one:
                continue
            x, tall = middle + (k - len(values) / 2) * width, high * one[group] / most
            svg.rect(x, top + high - tall, width - 3, tall, fill=looks[k].colour, hatch=looks[k].hatch,
                     stroke=ON_COLOUR, stroke_width=0.7, hover=f"{group}, {name}: {one[group]:,} {unit}")  # fmt: skip
            text = short(one[group] / size)
            if text_width(text, 10.5) <= width + 4:
                svg.text(x + (width - 3) / 2, top + high - tall - 4, text, 10.5, "middle")
        words = group.split("_") if text_width(group, 11) > pitch else [group]
        for line, word in enumerate(words):
            svg.text(middle, top + high + 15 + 13 * line, word, 11, "middle")
    svg.line(left - 6, top + high, WIDTH - 6, top + high)
    if unit_name:
        svg.text(8, top - 8, f"in {unit_name}", 11)
    return svg.render(top + high + 15 + 13 * max(len(g.split("_")) for g in groups))


def _grouped_spec(
    values: Mapping[str, Values], groups: list[str], looks: list[Look], unit: str, title: str, badge: str, said: str
) -> dict[str, Any]:
    most = max(v for one in values.values() for v in one.values()) or 1.0
    size, unit_name = UNITS[unit][0](most)
    data = [
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
    return plotly_spec(title, badge, said, data, 300, barmode="group", showlegend=True,
                       xaxis=axis(showgrid=False), yaxis=axis(unit_name, rangemode="tozero"))  # fmt: skip


def marker(look: Look) -> dict[str, Any]:
    """Plotly's description of a bar with this look."""
    return {
        "color": look.colour, "line": {"width": 0.7, "color": ON_COLOUR},
        "pattern": {"shape": look.hatch, "size": 6, "solidity": 0.06 if look.hatch == "." else 0.2,
                    "fgcolor": ON_COLOUR, "bgcolor": look.colour},
    }  # fmt: skip


PARTS = {  # parts of a rank's time, which add up to its total -> (look, name in the legend)
    "compute alone": "compute",
    "overlapped": "overlapped",
    "transfer": "transfer",
    "waiting": "waiting",
    "other": "other",
}
PART_NAMES = {
    "compute alone": "computing", "overlapped": "computing, messages beside", "transfer": "transferring",
    "waiting": "waiting", "other": "other",
}  # fmt: skip


def step_breakdown(trace: Trace, *, title: str = "Where the time went") -> Figure:
    """A bar per rank, made of computing (alone, and with messages beside it), transferring, waiting and the rest.

    The numbers are those of `trace.step_breakdown()`.
    """
    raw = [{k: float(v) for k, v in row.items() if k != "rank"} for row in trace.step_breakdown()]
    parts = [{**row, "compute alone": row["compute"] - row["overlapped"]} for row in raw]
    shown = [part for part in PARTS if any(row[part] > 0 for row in parts)]
    rows: list[Row] = [
        {"rank": rank, **{f"{name} (ms)": 1e3 * row[name] for name in
         ("compute", "transfer", "waiting", "overlapped", "other", "total")}}
        for rank, row in enumerate(raw)
    ]  # fmt: skip
    total = sum(row["total"] for row in raw) or 1.0
    said = "Of the ranks' time, " + listing(
        [f"{100 * sum(row[p] for row in parts) / total:.0f} % is {PART_NAMES[p]}" for p in shown]
    )
    worst = max(range(len(raw)), key=lambda r: raw[r]["waiting"])
    if raw[worst]["waiting"] > 0:
        said += f". Rank {worst} waits longest, {seconds_text(raw[worst]['waiting'])}"
    said += "."
    return Figure(
        title, trace.badge, said, rows,
        svg=_stacked(parts, shown, title, trace.badge, said), spec=_stacked_spec(parts, shown, title, trace.badge, said),
    )  # fmt: skip


def _stacked(parts: Sequence[Values], shown: list[str], title: str, badge: str, said: str) -> str:
    svg = Svg(WIDTH, title, said)
    items = [(PART_NAMES[p], KINDS[PARTS[p]].colour, KINDS[PARTS[p]].hatch, "3 2" if p == "waiting" else "")
             for p in shown]  # fmt: skip
    top = legend(svg, heading(svg, badge, said), items) + 6
    longest = max(row["total"] for row in parts) or 1.0
    unit, unit_name = seconds_unit(longest)
    left, tall = 62.0, 26.0 if len(parts) <= 16 else 14.0
    for r, row in enumerate(parts):
        y, x = top + r * (tall + 6), left
        svg.text(left - 8, y + tall / 2 + 4, f"rank {r}", anchor="end")
        for part in shown:
            width = row[part] / longest * (WIDTH - left - 70)
            look = KINDS[PARTS[part]]
            if width > 0:
                svg.rect(x, y, width, tall, fill=look.colour, hatch=look.hatch, stroke_width=0.7,
                         stroke=None if look.colour == "none" else ON_COLOUR,
                         hover=f"rank {r}, {PART_NAMES[part]}: {seconds_text(row[part])}")  # fmt: skip
                text = short(row[part] / unit)
                if text_width(text, 10.5) + 8 < width and not look.hatch:
                    svg.text(x + width / 2, y + tall / 2 + 4, text, 10.5, "middle", on_colour=True)
            x += width
        svg.text(x + 6, y + tall / 2 + 4, seconds_text(row["total"]), 11)
    return svg.render(top + len(parts) * (tall + 6) + 6)


def _stacked_spec(parts: Sequence[Values], shown: list[str], title: str, badge: str, said: str) -> dict[str, Any]:
    unit, unit_name = seconds_unit(max(row["total"] for row in parts) or 1.0)
    data = []
    for part in shown:
        look = KINDS[PARTS[part]]
        clear = look.colour == "none"
        data.append({
            "type": "bar", "orientation": "h", "name": PART_NAMES[part],
            "x": [round(row[part] / unit, 6) for row in parts], "y": [f"rank {r}" for r in range(len(parts))],
            "hovertext": [f"rank {r}, {PART_NAMES[part]}: {seconds_text(row[part])}" for r, row in enumerate(parts)],
            "hoverinfo": "text", "marker": marker(Look("rgba(0,0,0,0)", look.hatch, "", "")) if clear else marker(look),
        })  # fmt: skip
    for trace in data:
        if trace["marker"]["color"] == "rgba(0,0,0,0)":
            trace["marker"]["pattern"]["fgcolor"] = trace["marker"]["line"]["color"] = "#777"
    return plotly_spec(title, badge, said, data, 34 * len(parts) + 20, barmode="stack", showlegend=True,
                       xaxis=axis(f"time ({unit_name})"), yaxis=axis(autorange="reversed", showgrid=False))  # fmt: skip
