"""Scales: a tensor is moved into the range of a narrow format before it is cast, and back after.

    codes = encode(x * scale)        x is about decode(codes) / scale

An 8-bit format covers 4 to 9 decades, and a tensor of a model lies somewhere else: gradients of 1e-7 are all 0 in E4M3
without a scale. The scale that brings the largest number, the *amax*, to the largest of the format loses nothing above
and as little as possible below. One scale serves a tensor, a row, or a block of neighbours:

    per="tensor"     one float32 for all of it (Micikevicius et al. 2022, section 4)
    per="row"        one for each index of the first dimension: per channel, for a weight of (outputs, inputs)
    per=128          one for each block of 128 neighbours in the last dimension (DeepSeek-V3 2024, section 3.3.2)
    per=32, scales="e8m0"   MXFP8 and MXFP4: the scale is a power of two in one byte (OCP Microscaling, v1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

import torch
from torch import Tensor

from labkit.optim.compression.payload import pack, unpack
from labkit.optim.precision.formats import Format, decode, encode, named
from labkit.wire.errors import RefusedError

SCALES = ("float32", "e8m0", "e8m0-up")
Per = str | int


@dataclass(frozen=True)
class Scaled:
    """A tensor in a narrow format. codes: (blocks, numbers of a block), uint8. scale: (blocks), float32.

    What it weighs, and what it sends: `nbytes`, the codes of `shape` (4-bit codes lie two in a byte) and the scales.
    """

    codes: Tensor
    scale: Tensor
    format: Format
    shape: torch.Size
    scales: str = "float32"

    @property
    def nbytes(self) -> int:
        return -(-self.shape.numel() * self.format.bits // 8) + len(self.scale) * (4 if self.scales == "float32" else 1)

    def wide(self) -> Tensor:
        """float32 again, of `shape`."""
        blocks = decode(self.codes, self.format) / self.scale[:, None]
        return _unblocked(blocks, self.shape)

    def parts(self) -> list[Tensor]:
        """What is sent: the scales as bytes (E8M0: exponent + 127), and the codes as bytes, `nbytes` together."""
        flat = _unblocked(self.codes, self.shape).flatten()
        codes = flat if self.format.bits == 8 else pack(flat, self.format.bits)
        if self.scales == "float32":
            return [self.scale.contiguous().view(torch.uint8), codes]
        return [(torch.frexp(self.scale).exponent + 126).to(torch.uint8), codes]


def from_parts(parts: list[Tensor], format: Format, shape: torch.Size, per: Per, scales: str) -> Scaled:
    """`Scaled.parts`, put together again by a rank that knows the rest."""
    scale, codes = parts
    flat = codes if format.bits == 8 else unpack(codes, format.bits, shape.numel()).to(torch.uint8)
    known = scale.view(torch.float32) if scales == "float32" else torch.ldexp(torch.ones(len(scale)), scale.int() - 127)
    return Scaled(_blocked(flat.view(shape), per), known, format, shape, scales)


def quantize(
    x: Tensor, format: Format | str, per: Per = "tensor", scales: str = "float32", scale: Tensor | None = None,
    rounding: str = "nearest", draw: torch.Generator | None = None,
) -> Scaled:  # fmt: skip
    """x (any shape, float32) in `format`, of 8 bits or fewer, with a scale for each part; what is above saturates.

    scale: take this one (0-d) instead of one from the amax: delayed and fixed scaling; only with per="tensor".
    Raises RefusedError for an amax that is not finite, and for a scale that is not finite and positive.
    """
    format = named(format)
    _check(x, format, per, scales)
    blocks = _blocked(x, per)
    if scale is None:
        scale = scale_for(blocks.abs().amax(1) if blocks.shape[1] else blocks.new_zeros(len(blocks)), format, scales)
    else:
        if per != "tensor":
            raise RefusedError(f"a given scale with per={per!r}: it is one number, for per='tensor'")
        scale = torch.as_tensor(scale, dtype=torch.float32).reshape(1)
        if not (scale.isfinite().all() and scale > 0):
            raise RefusedError(
                f"scale {scale.item()}: x is multiplied and later divided by it; a finite number above 0"
            )
    codes = encode(blocks * scale[:, None], format, rounding, draw=draw).to(torch.uint8)
    return Scaled(codes, scale, format, x.shape, scales)


def scale_for(amax: Tensor, format: Format | str, scales: str = "float32", margin: int = 0) -> Tensor:
    """What brings each amax (any shape, float32) to the largest number of the format, over 2^margin; 1 where it is 0.

    scales: "float32", exactly so. "e8m0": a power of two, by the exponents of both alone, so that up to half of the
    last power of two above the format's largest saturates (OCP, section 6.3). "e8m0-up": the largest power of two
    with which nothing saturates (Mishra et al. 2025). Raises RefusedError where an amax is infinite or NaN.
    """
    format = named(format)
    if not amax.isfinite().all():
        raise RefusedError(
            f"the largest number of the tensor is {amax[~amax.isfinite()].flatten()[0].item()}: no scale brings that "
            "into a range. Skip this step, as for a loss that is too large, and keep the scales"
        )
    amax = amax.to(torch.float32)
    if scales == "float32":
        scale = format.max * 2.0**-margin / amax.to(torch.float64)
    else:
        if scales == "e8m0":
            exponent = floor(log2(format.max)) - margin + 1 - torch.frexp(amax).exponent
        else:
            exponent = torch.frexp(format.max * 2.0**-margin / amax.to(torch.float64)).exponent - 1
        scale = torch.ldexp(torch.ones(amax.shape, dtype=torch.float64), exponent.clamp(-126, 127))
    most = torch.finfo(torch.float32).max  # of an amax that is a subnormal number of float32
    return scale.where(amax > 0, 1).clamp(max=most).to(torch.float32)


def _check(x: Tensor, format: Format, per: Per, scales: str) -> None:
    if x.dtype != torch.float32:
        raise RefusedError(f"x is {x.dtype}: float32 is quantized; call x.float()")
    if format.bits > 8:
        raise RefusedError(
            f"{format.name} has {format.bits} bits: it needs no scale; call x.to(torch.{_short(format)})"
        )
    if scales not in SCALES:
        raise RefusedError(f"scales={scales!r}: one of {', '.join(SCALES)}")
    if per not in ("tensor", "row") and not (type(per) is int and per >= 1):
        raise RefusedError(f"per={per!r}: 'tensor', 'row', or the length of a block, a whole number of at least 1")


def _short(format: Format) -> str:
    return str(format.dtype).removeprefix("torch.")


def _blocked(x: Tensor, per: Per) -> Tensor:
    """(blocks, numbers of a block); the last block of a row is filled with zeros."""
    if per == "tensor":
        return x.reshape(1, -1)
    rows = x.shape[0] if x.dim() and per == "row" else x.shape[:-1].numel()
    wide = x.reshape(rows, x.numel() // rows if rows else 0)
    return torch.nn.functional.pad(wide, (0, -wide.shape[1] % per)).view(-1, per) if isinstance(per, int) else wide


def _unblocked(blocks: Tensor, shape: torch.Size) -> Tensor:
    """`_blocked`, undone."""
    rows = shape[:-1].numel() if blocks.numel() else 0
    return blocks.reshape(rows, -1)[:, : shape[-1] if shape else 1].reshape(shape) if rows else blocks.new_zeros(shape)
