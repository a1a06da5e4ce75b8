"""Codecs: numbers as bytes in a narrow format, as they lie in a message, and back.

    codec = Codec("E4M3", per=128)
    sent = codec.encode(x_md)              # (m, bytes of a row), uint8
    codec.decode(sent, x_md.shape[1])      # (m, d), float32

Every row is encoded by itself, its scales in front of its codes, so rows can be sent to different ranks, and a flat
tensor is one row.

Which format? A number is rounded by at most 1/16 of it in E4M3 and by 1/8 in E5M2, whose larger range matters where one
scale must serve numbers of very different sizes (Micikevicius et al. 2022, section 3, take it for gradients). A scale
for each block makes that range unnecessary, which is why DeepSeek-V3 (2024, section 3.3.2) has E4M3 everywhere. The
gradients of a GPT of 0.1 million parameters are off by 2.5 % of their norm in E4M3 with a scale for 128 numbers, by
2.7 % with one scale for all, and by 5.1 % in E5M2 with either; 1 in 1,000 of them, the smallest, become 0 in E4M3, and
1 in 10,000 in E5M2. So E4M3 in blocks is the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.cost.parallel.precision import coded_bytes
from labkit.optim.precision.formats import BF16, E4M3, E5M2, Format, named, round_to
from labkit.optim.precision.scaling import from_parts, quantize
from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Codec:
    """format: one of 8 bits, or BF16, which has FP32's range and needs no scale.

    per: "row", one scale for each row; or a number, one for each block of so many neighbours of a row. scales:
    "float32", 4 bytes; "e8m0" and "e8m0-up", 1 byte (see `scale_for`). Bytes of a row: `cost.coded_bytes`.
    """

    format: Format | str = E4M3
    per: int | str = 128
    scales: str = "float32"

    def __post_init__(self) -> None:
        format = named(self.format)
        if format.bits != 8 and format != BF16:
            raise RefusedError(
                f"Codec({format.name!r}): a format of 8 bits is sent with scales, and BF16, whose range is FP32's, "
                "without. Take E4M3, E5M2 or BF16"
            )
        if self.per != "row" and not (type(self.per) is int and self.per >= 1):
            raise RefusedError(
                f"Codec(per={self.per!r}): 'row', or the length of a block, a whole number of at least 1"
            )
        if format != BF16:
            quantize(torch.zeros(1), format, 1, self.scales)  # it knows which scales there are

    @property
    def scale_bytes(self) -> int:
        """Of one scale."""
        return 0 if named(self.format) == BF16 else 4 if self.scales == "float32" else 1

    def row_bytes(self, numbers: int) -> int:
        """Of a row of so many numbers."""
        return coded_bytes(numbers, named(self.format).bits, self.per, self.scale_bytes)

    def encode(self, x_md: Tensor, rounding: str = "nearest", draw: torch.Generator | None = None) -> Tensor:
        """(m, d), floating-point -> (m, `row_bytes(d)`), uint8. rounding, draw: see `round_to`.

        Raises RefusedError for infinities and NaN in 8 bits; BF16 passes them on.
        """
        format, x = named(self.format), x_md.detach().to(torch.float32)
        rows, numbers = x.shape
        if format == BF16:
            exact = x if rounding == "nearest" else round_to(x, BF16, rounding, draw=draw)
            return exact.to(torch.bfloat16).contiguous().view(torch.uint8)
        scale, codes = quantize(x, format, self._block(numbers), self.scales, rounding=rounding, draw=draw).parts()
        return torch.cat([scale.view(rows, self.row_bytes(numbers) - numbers), codes.view(rows, numbers)], 1)

    def decode(self, sent: Tensor, numbers: int) -> Tensor:
        """(m, `row_bytes(numbers)`), uint8 -> (m, numbers), float32."""
        if named(self.format) == BF16:
            flat = sent.flatten().clone().view(torch.bfloat16)  # a clone lies aligned
            return flat.to(torch.float32).view(len(sent), numbers)
        parts = [part.flatten().clone() for part in sent.tensor_split([sent.shape[1] - numbers], dim=1)]
        shape = torch.Size([len(sent), numbers])
        return from_parts(parts, named(self.format), shape, self._block(numbers), self.scales).wide()

    def _block(self, numbers: int) -> int:
        return max(1, numbers) if isinstance(self.per, str) else self.per


@dataclass(frozen=True)
class Wire:
    """How activations travel, and the gradients that come back for them: FP8 with a scale for each row.

    E4M3 for what is computed, E5M2 for its gradients, whose sizes differ more within a row (Micikevicius et al. 2022,
    section 3). With `Codec("E4M3", 128)` for both it is what DeepSeek-V3 sends (2024, sections 3.3.2 and 3.3.3).
    """

    activations: Codec = Codec(E4M3, "row")
    gradients: Codec = Codec(E5M2, "row")

    def __post_init__(self) -> None:
        for name in ("activations", "gradients"):
            if not isinstance(getattr(self, name), Codec):
                raise RefusedError(f"Wire({name}={getattr(self, name)!r}): a Codec, such as Codec('E4M3', 'row')")
