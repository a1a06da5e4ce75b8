"""Where the time of each rank went, as a bar per rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.book.drawing.charts import marker
from labkit.book.drawing.figure import WIDTH, Figure, axis, heading, legend, plotly_spec
from labkit.book.drawing.style import INK, KINDS, ON_COLOUR, Look
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing, seconds_text, seconds_unit, short
from labkit.book.timelines.reads import Trace, longest_waits

PARTS = {  # parts of a rank's time that add up to its total, and the kind whose look they have
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


def step_breakdown(trace: Trace, step: int | None = None, *, title: str = "Where the time went") -> Figure:
    """A bar per rank, made of computing (alone, and with messages beside it), transferring, waiting and the rest.

    The numbers are those of `trace.step_breakdown()`, of training step `step` only if one is given.
    """
    raw = [{k: float(v) for k, v in row.items() if k != "rank"} for row in trace.step_breakdown(step)]
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
        who = longest_waits(range(len(raw)), [row["waiting"] for row in raw])
        said += f". {who} longest, {seconds_text(raw[worst]['waiting'])}"
    said += "."
    return Figure(
        title, trace.badge, said, rows,
        svg=_picture(parts, shown, title, trace.badge, said), spec=_spec(parts, shown, title, trace.badge),
    )  # fmt: skip


def _picture(parts: Sequence[Mapping[str, float]], shown: list[str], title: str, badge: str, said: str) -> str:
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


def _spec(parts: Sequence[Mapping[str, float]], shown: list[str], title: str, badge: str) -> dict[str, Any]:
    unit, unit_name = seconds_unit(max(row["total"] for row in parts) or 1.0)
    data: list[dict[str, Any]] = []
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
            trace["marker"]["pattern"]["fgcolor"] = trace["marker"]["line"]["color"] = INK
    return plotly_spec(title, badge, data, 34 * len(parts) + 20, barmode="stack", showlegend=True,
                       xaxis=axis(f"time ({unit_name})"), yaxis=axis(autorange="reversed", showgrid=False))  # fmt: skip
