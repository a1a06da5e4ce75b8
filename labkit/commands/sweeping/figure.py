"""The picture of a sweep: a panel for each recorded number, over the first parameter that varies."""

import math
from dataclasses import dataclass
from typing import Any

from labkit.book.drawing.style import SERIES, series
from labkit.book.drawing.svg import Svg, dash_array, number, text_width
from labkit.book.drawing.tables import cell
from labkit.commands.sweeping.run import SweepRun

WIDTH, PANEL, LEFT, RIGHT, TOP = 760, 190, 90, 20, 34
MOST_PANELS = 12


@dataclass(frozen=True)
class Picture:
    """An SVG and the sentence that says the same."""

    svg: str
    sentence: str


def draw(runs: list[SweepRun], title: str) -> Picture | None:
    """What the runs recorded, over the first parameter with several values; a line for each combination of the others.

    None when no parameter varies, or no number was recorded by two runs. Panels beyond `MOST_PANELS` and lines beyond
    the eight that can be told apart are left out, and the sentence says so.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.values))
    varying = [name for name in names if len({repr(run.values.get(name)) for run in runs}) > 1]
    recorded = list(dict.fromkeys(name for run in runs for name in run.records))
    panels = [name for name in recorded if sum(_is_number(run.records.get(name)) for run in runs) > 1]
    if not varying or not panels:
        return None
    across, others = varying[0], varying[1:]
    lines: dict[str, list[SweepRun]] = {}
    for run in runs:
        lines.setdefault(", ".join(f"{name}={run.values[name]}" for name in others), []).append(run)
    left_out = len(panels) - MOST_PANELS, len(lines) - len(SERIES)
    panels, lines = panels[:MOST_PANELS], dict(list(lines.items())[: len(SERIES)])
    sentence = _sentence(panels, lines, across, left_out)
    svg = Svg(WIDTH, title, sentence)
    svg.text(0, 16, f"{title}, by {across}", size=14, bold=True)
    top = _legend(svg, list(lines)) if others else 28.0
    for name in panels:
        _panel(svg, name, lines, across, top)
        top += PANEL + TOP
    return Picture(svg.render(top + 26), sentence)


def _panel(svg: Svg, name: str, lines: dict[str, list[SweepRun]], across: str, top: float) -> None:
    """One recorded number: axes, a line and markers for each combination."""
    places, ticks = _places([run.values[across] for runs in lines.values() for run in runs])
    heights = [run.records[name] for runs in lines.values() for run in runs if _is_number(run.records.get(name))]
    marks = nice_ticks(min(0.0, *heights), max(0.0, *heights))
    low, high = marks[0], marks[-1]
    bottom = top + TOP + PANEL - 50

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (PANEL - 50)

    svg.text(LEFT, top + 20, name, bold=True)
    for mark in marks:
        svg.line(LEFT, y(mark), WIDTH - RIGHT, y(mark), faint=True)
        label = f"{mark:,.0f}" if 1e4 <= abs(mark) < 1e8 else f"{mark:.4g}"
        svg.text(LEFT - 8, y(mark) + 4, label, anchor="end")
    for label, x in ticks:
        svg.text(x, bottom + 18, label, anchor="middle")
    svg.text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, across, anchor="middle")
    for index, (label, runs) in enumerate(lines.items()):
        look = series(index)
        points = [(places[repr(run.values[across])], run) for run in runs if _is_number(run.records.get(name))]
        points.sort(key=lambda point: point[0])
        path = " ".join(
            f"{'M' if i == 0 else 'L'}{number(x)} {number(y(run.records[name]))}" for i, (x, run) in enumerate(points)
        )
        svg.path(path, colour=look.colour, width=2, dash=dash_array(look.dash))
        for x, run in points:
            said = f"{label + ', ' if label else ''}{across}={run.values[across]}: {cell(run.records[name])}"
            svg.marker(x, y(run.records[name]), look.marker, look.colour)
            svg.add("circle", hover=said, cx=x, cy=y(run.records[name]), r=9, fill="transparent")


def _places(values: list[object]) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """Where each value lies from left to right, by its repr; and the labels. Numbers keep their distances.

    Numbers that span a factor of eight or more are spaced by their logarithm, other things evenly.
    """
    different = list({repr(value): value for value in values}.values())
    room = WIDTH - RIGHT - LEFT - 60
    if all(_is_number(value) for value in different):
        numbers: list[Any] = sorted(different, key=float)
        logarithmic = numbers[0] > 0 and numbers[-1] / numbers[0] >= 8
        at = [math.log(value) if logarithmic else float(value) for value in numbers]
        share = [(a - at[0]) / ((at[-1] - at[0]) or 1) for a in at]
        different = numbers
    else:
        share = [i / max(1, len(different) - 1) for i in range(len(different))]
    xs = {repr(value): LEFT + 30 + part * room for value, part in zip(different, share, strict=True)}
    labels: list[tuple[str, float]] = []
    right = -math.inf
    for value in different:
        x, text = xs[repr(value)], str(value)
        half = text_width(text, 12) / 2 + 4
        if x - half >= right:  # a label that would run into the last one is left out; the point stays
            labels.append((text, x))
            right = x + half
    return xs, labels


def nice_ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers from at most `low` to at least `high`."""
    if high - low <= 0:
        return [low, low + 1]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, last + 1)]


def _legend(svg: Svg, labels: list[str]) -> float:
    """Draw the legend and return where it ends."""
    x, y = 0.0, 38.0
    for index, label in enumerate(labels):
        look, width = series(index), text_width(label, 12) + 56
        if x + width > WIDTH and x:
            x, y = 0.0, y + 20
        svg.line(x, y - 4, x + 30, y - 4, dash=dash_array(look.dash), width=2, colour=look.colour)
        svg.marker(x + 15, y - 4, look.marker, look.colour)
        svg.text(x + 36, y, label)
        x += width
    return y + 6


def _sentence(panels: list[str], lines: dict[str, list[SweepRun]], across: str, left_out: tuple[int, int]) -> str:
    """Each number's smallest and largest value, and where."""
    told = []
    for name in panels:
        having = [run for runs in lines.values() for run in runs if _is_number(run.records.get(name))]
        least, most = (pick(having, key=lambda run: run.records[name]) for pick in (min, max))
        told.append(
            f"{name} goes from {cell(least.records[name])} ({least.label}) to {cell(most.records[name])} ({most.label})"
        )
    missing = [f"{count} more {what}" for count, what in zip(left_out, ("numbers", "lines"), strict=True) if count > 0]
    more = f" Only in the table: {' and '.join(missing)}." if missing else ""
    return (
        f"{len(panels)} recorded {'number' if len(panels) == 1 else 'numbers'} over {across}. {'; '.join(told)}.{more}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
