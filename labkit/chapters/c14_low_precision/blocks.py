"""Tables and bars of chapter 14: the formats, what came through them, one scale against many, what it is worth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log10
from typing import Any

from torch import Tensor

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.svg import Svg, number
from labkit.book.drawing.tables import Row
from labkit.chapters.c14_low_precision.pictures import FATES, share_text
from labkit.optim.precision import BF16, E2M1, E4M3, E5M2, FP16, FP32, Scaled
from labkit.optim.precision.formats import Format, decode
from labkit.wire import Group

DRAWN, TALL = 9, 15.0  # rows of the map, and how high each is
LEFT = (0.1, 0.5, 0.95)  # of that: a number that became 0, lost digits, fits
WAYS = {"tensor": ("tensor", "float32"), "row": ("row", "float32"), "block of 32": (32, "e8m0-up")}


def formats() -> book.Table:
    """Bits, reach and steps of the formats that training uses."""
    return book.Table([_row(f) for f in (FP32, BF16, FP16, E5M2, E4M3, E2M1)], caption="Formats (computed)")


def _row(f: Format) -> dict[str, Any]:
    return {
        "format": f.name, "bits": f.bits, "exponent": f.exponent, "mantissa": f.mantissa,
        "largest": f"{f.max:,g}" if f.max < 1e6 else f"{f.max:.1e}", "smallest above 0": f"{f.smallest:.2g}",
        "smallest normal": f"{f.smallest_normal:.2g}",
        "normal numbers, powers of ten": round(log10(f.max / f.smallest_normal), 2),
        "off by at most": f"1/{round(2 / f.epsilon):,}",
    }  # fmt: skip


@dataclass(frozen=True)
class Others:
    """Of all numbers but the first, and of those that were not 0: the share that became 0, and that lost digits.

    map: what became of all numbers of the first rows, a text a row, each number as its place in `FATES`."""

    zero: float
    dull: float
    map: tuple[str, ...] = field(default=(), compare=False, repr=False)


def others(rows: Tensor, narrow: Scaled) -> Others:
    """What became of the others. rows: (rows, columns), and blocks divide a row. A number lost digits if it became a
    subnormal number of the format."""
    became = decode(narrow.codes, narrow.format).view(rows.shape).abs()
    fates = 2 - (became < narrow.format.smallest_normal).int() - (became == 0).int()
    fates[rows == 0] = 2  # 0 is what it was
    there = fates.flatten()[1:][rows.flatten()[1:] != 0]
    zero, dull = ((there == fate).float().mean().item() for fate in (0, 1))
    return Others(zero, dull, tuple("".join(map(str, row)) for row in fates[:DRAWN].tolist()))


Cases = Sequence[Mapping[str, Any]]


def in_one(launch: Callable[..., Any], run: Callable[..., dict[str, Others]], cases: Cases) -> list[dict[str, Others]]:
    """What the reader's function returns with each of these settings, on as many ranks as the panel has."""
    found: list[dict[str, Others]] = launch(_each, 2, run, cases).results[0]
    return found


def _each(group: Group, run: Callable[..., Any], cases: Cases) -> list[Any]:
    return [run(group, **case) for case in cases]


def by_block(run: Any) -> book.Figure:
    """A map of the first rows, a number a cell, for each way of scaling; and what became of all, in percent."""
    found: dict[str, Others] = run.results[0]
    said = "; ".join(
        f"with a scale for {'the' if way == 'tensor' else 'each'} {way} {share_text(one.zero)} "
        f"become{'s' * (one.zero == 0)} 0 and {share_text(one.dull)} lose{'s' * (one.dull == 0)} digits"
        for way, one in found.items()
    )
    said = (
        f"Of all numbers but the outlier, {said}. The maps show the first {DRAWN} rows, and the outlier is the first "
        "number of the first row. A number that fits is as high as its row, one that loses digits half as high, and "
        "one that becomes 0 is only a line."
    )
    rows: list[Row] = [
        {"a scale for each": way, "fit": round(100 * (1 - one.zero - one.dull), 2),
         "lose digits": round(100 * one.dull, 2), "become 0": round(100 * one.zero, 2)}
        for way, one in found.items()
    ]  # fmt: skip
    title = "What becomes of the other numbers"
    svg = Svg(WIDTH, title, said)
    top = heading(svg, "measured", said) + 14
    room = (WIDTH - 16) / len(found)
    for n, (way, one) in enumerate(found.items()):
        x = 8 + n * room
        svg.text(x, top, f"a scale for {'the' if way == 'tensor' else 'each'} {way}", 12, bold=True)
        svg.text(x, top + 16, f"{share_text(one.zero)} become{'s' * (one.zero == 0)} 0", 11.5)
        svg.arrow_head(x + 1, top + 36, 0, 1, 9)
        svg.text(x + 9, top + 34, "the outlier", 11)
        _map(svg, x, top + 38, (room - 14) / max(map(len, one.map), default=1), one.map)
    bottom = legend(svg, top + 50 + TALL * DRAWN, [(name, colour, "", "") for name, colour, _ in FATES[:3]])
    return book.Figure(title, "measured", said, rows, svg.render(bottom))


def _map(svg: Svg, x: float, y: float, wide: float, fates: Sequence[str]) -> None:
    """A bar for each run of numbers with one fate, as high as what is left of them."""
    for fate, (_, colour, _) in enumerate(FATES[:3]):
        high, path = TALL * LEFT[fate], ""
        for row, line in enumerate(fates):
            for run in re.finditer(f"{fate}+", line):
                begin, long = number(x + run.start() * wide), number(len(run[0]) * wide)
                path += f"M{begin} {number(y + (row + 1) * TALL - high)}h{long}v{number(high)}h-{long}z"
        if path:
            svg.add("path", d=path, fill=colour)


def worth(parameters: float) -> book.Table:
    """Bytes of a parameter in three ways of training with Adam, and what data parallelism sends for it in a step."""
    ways = {  # weights and gradients as they are computed with, master weights, Adam's two states, on the wire
        "BF16": (2, 2, 4, 8, 2), "FP8, gradients in BF16": (1, 2, 4, 8, 2), "FP8, gradients too": (1, 1, 4, 8, 1),
        "FP8, and Adam in 8 bits": (1, 1, 4, 2, 1),
    }  # fmt: skip
    rows = []
    for name, (weights, gradients, master, states, wire) in ways.items():
        held = weights + gradients + master + states
        rows.append({
            "training in": name, "weights": weights, "gradients": gradients, "master": master, "Adam": states,
            "together": held, "memory": f"{held * parameters / 1e9:.0f} GB",
            "sent": f"{2 * wire * parameters / 1e9:.0f} GB",
        })  # fmt: skip
    return book.Table(rows, caption=f"{parameters / 1e9:.0f} billion parameters (computed)")
