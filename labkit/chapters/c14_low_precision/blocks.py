"""Tables and bars of chapter 14: the formats, what came through them, one scale against many, what it is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

from torch import Tensor

from labkit import book
from labkit.chapters.c14_low_precision.pictures import share_text
from labkit.optim.precision import BF16, E2M1, E4M3, E5M2, FP16, FP32, Scaled
from labkit.optim.precision.formats import Format, decode
from labkit.wire import Group

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
        "a normal number is off by": f"1/{round(2 / f.epsilon):,}",
    }  # fmt: skip


@dataclass(frozen=True)
class Others:
    """Of all numbers but the first, and of those that were not 0: the share that became 0, and that lost digits."""

    zero: float
    dull: float


def others(rows: Tensor, narrow: Scaled) -> Others:
    """What became of the others. rows: (rows, columns), and blocks divide a row. A number lost digits if it became a
    subnormal number of the format."""
    there = rows.flatten()[1:] != 0
    became = decode(narrow.codes, narrow.format).flatten()[1:][there].abs()
    zero, dull = became == 0, (became > 0) & (became < narrow.format.smallest_normal)
    return Others(*(share.float().mean().item() for share in (zero, dull)))


Cases = Sequence[Mapping[str, Any]]


def in_one(launch: Callable[..., Any], run: Callable[..., dict[str, Others]], cases: Cases) -> list[dict[str, Others]]:
    """What the reader's function returns with each of these settings, on as many ranks as the panel has."""
    found: list[dict[str, Others]] = launch(_each, 2, run, cases).results[0]
    return found


def _each(group: Group, run: Callable[..., Any], cases: Cases) -> list[Any]:
    return [run(group, **case) for case in cases]


def by_block(run: Any) -> book.Figure:
    """What became of the neighbours with each way of scaling, in percent of them."""
    found: dict[str, Others] = run.results[0]
    said = "; ".join(
        f"with a scale for {'the' if way == 'tensor' else 'each'} {way} {share_text(one.zero)} "
        f"become{'s' * (one.zero == 0)} 0 and {share_text(one.dull)} lose{'s' * (one.dull == 0)} digits"
        for way, one in found.items()
    )
    bars = {
        "fit": {way: round(100 * (1 - one.zero - one.dull), 2) for way, one in found.items()},
        "lose digits": {way: round(100 * one.dull, 2) for way, one in found.items()},
        "become 0": {way: round(100 * one.zero, 2) for way, one in found.items()},
    }
    return book.bars(bars, unit="", title="The other numbers, in percent of them", badge="measured", stacked=True,
                     sentence=f"Of all numbers but the outlier: {said}.")  # fmt: skip


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
            "bytes of a parameter": held, "all of it": f"{held * parameters / 1e9:.0f} GB",
            "a rank of many sends": f"{2 * wire * parameters / 1e9:.0f} GB a step",
        })  # fmt: skip
    return book.Table(rows, caption=f"{parameters / 1e9:.0f} billion parameters (computed)")
