"""Tables and bars of chapter 14: the formats, what came through them, one scale against many, what it is worth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log10
from typing import Any

from torch import Tensor

from labkit import book
from labkit.optim.precision import BF16, E2M1, E4M3, E5M2, FP16, FP32, Scaled
from labkit.optim.precision.formats import Format

WAYS = {"tensor": ("tensor", "float32"), "row": ("row", "float32"), "block of 32": (32, "e8m0-up")}


def formats() -> book.Table:
    """Bits, reach and steps of the formats that training uses."""
    return book.Table([_row(f) for f in (FP32, BF16, FP16, E5M2, E4M3, E2M1)], caption="Formats (computed)")


def _row(f: Format) -> dict[str, Any]:
    return {
        "format": f.name, "bits": f.bits, "exponent": f.exponent, "mantissa": f.mantissa,
        "largest": f"{f.max:,g}" if f.max < 1e6 else f"{f.max:.1e}", "smallest above 0": f"{f.smallest:.2g}",
        "powers of ten": round(log10(f.max / f.smallest), 1),
        "a normal number is off by": f"1/{round(2 / f.epsilon):,}",
    }  # fmt: skip


Offs = dict[str, float]


def errors(rows: Tensor, narrow_to: str, quantize: Callable[..., Scaled]) -> Offs:
    """By way of scaling: the root mean square of the error over that of the numbers, all but the first."""
    return {
        way: _off(rows.flatten()[1:], quantize(rows, narrow_to, per, scales).wide().flatten()[1:])
        for way, (per, scales) in WAYS.items()
    }


def both(launch: Callable[..., Any], run: Callable[..., Offs], times: int) -> dict[str, Offs]:
    """Of gradients, in eight and in four bits, with an outlier so many times as large."""
    ways = {f.name: partial(run, kind="gradients", narrow_to=f.name, times=times) for f in (E4M3, E2M1)}
    return {name: launch(way, 1).results[0] for name, way in ways.items()}


def _off(x: Tensor, narrow: Tensor) -> float:
    return ((x - narrow).square().sum() / x.square().sum()).sqrt().item()


def by_block(run: Any) -> book.Figure:
    """A bar for each way of scaling."""
    offs: Offs = run.results[0]
    said = "All numbers but the outlier are " + ", ".join(
        f"{off:.1%} off with a scale for {'the' if way == 'tensor' else 'each'} {way}" for way, off in offs.items()
    )
    return book.bars({"off": offs}, unit="", title="One scale, or many", badge="measured", sentence=f"{said}.")


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
