"""How much a sample counts where ranks have different numbers of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row


def counting(sizes: Sequence[int]) -> book.Figure:
    """Samples of ranks with unequal batches, each as large as it counts: in the plain average, and by samples."""
    whole, n = sum(sizes), len(sizes)
    ways = {"every rank alike": [1 / (n * size) for size in sizes], "every sample alike": [1 / whole] * n}
    most = max(ways["every rank alike"]) * whole
    said = (
        f"The ranks have {', '.join(map(str, sizes))} samples. In the plain average a sample of rank 0 counts "
        f"{sizes[-1] / sizes[0]:.3g} times as much as one of rank {n - 1}."
    )
    svg = Svg(WIDTH, "How much a sample counts", said)
    y = heading(svg, "simulated", said)
    for name, weights in ways.items():
        svg.text(8, y + 14, name, bold=True)
        x, room = 150.0, WIDTH - 150.0 - 14 - 18 * (n - 1)
        pitch = room / whole
        for rank, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
            wide = size * pitch + 14
            label = f"rank {rank}" if text_width(f"rank {rank}", 11) < wide else f"{rank}"
            svg.text(x + size * pitch / 2, y + 14, label, 11, "middle")
            for _ in range(size):
                side = (pitch - 2) * (weight * whole / most) ** 0.5
                middle = x + pitch / 2
                svg.rect(middle - side / 2, y + 38 - side / 2, side, side, SERIES[rank % 8].colour,
                         SERIES[rank % 8].hatch, ON_COLOUR, stroke_width=0.6)  # fmt: skip
                x += pitch
            x += 18
        y += 70
    rows: list[Row] = [
        {"rank": r, "samples": sizes[r]} | {f"weight of a sample, {w}": ways[w][r] for w in ways} for r in range(n)
    ]
    return book.Figure("How much a sample counts", "simulated", said, rows, svg.render(y + 6))


def errors(off: Mapping[tuple[str, torch.dtype], float], ranks: int) -> book.Table:
    """How far averages are from the gradient that one rank computes, as a part of its norm: a row for each average."""
    rows: dict[str, dict[str, object]] = {name: {"average": name} for name, _ in off}
    for (name, dtype), error in off.items():
        rows[name][f"relative error in {str(dtype).removeprefix('torch.')}"] = f"{error:.1e}"
    return book.Table([*rows.values()], caption=f"{ranks} ranks against one (measured)")
