"""Matrix products of tensors in few bits, added up in as many bits as the accumulator has.

The product of two numbers with p significant bits has 2 p: 8 for E4M3, so a float32 holds it exactly, and 65,536 of
them in the worst case before it must round. What makes products of 8 bits differ from those of 32 is therefore the
rounding of the factors, and the accumulator. On an H100 the latter keeps about 14 bits and not 24 (DeepSeek-V3 2024,
section 3.3.2), so long sums lose what is small beside them; adding up in float32 every 128 products brings it back.

This shows what numbers become. It is no faster than float32 here, and says nothing of how fast a GPU is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.optim.precision.formats import FP32, Format, round_to
from labkit.optim.precision.scaling import Scaled
from labkit.wire.errors import RefusedError


def multiply(
    a_mk: Scaled | Tensor, b_kn: Scaled | Tensor, accumulator: Format = FP32, promote: int | None = None
) -> Tensor:
    """(m, k) @ (k, n), float32. Each product is exact; sums are rounded to the `accumulator` after every addition.

    promote: after so many products the accumulator is added to a float32 and starts anew. With FP32 the order of the
    additions is PyTorch's. With another format products are added one by one, in order: k steps of (m, n) numbers.
    What is beyond the accumulator's range becomes infinite, as on the device.
    """
    a_mk, b_kn = (x.wide() if isinstance(x, Scaled) else x for x in (a_mk, b_kn))
    if accumulator == FP32:
        return a_mk @ b_kn
    if promote is not None and not (type(promote) is int and promote >= 1):
        raise RefusedError(f"promote={promote!r}: after how many products; a whole number of at least 1, or None")
    a_mk, b_kn = a_mk.double(), b_kn.double()  # so that each sum is rounded once, to the accumulator
    total = torch.zeros(a_mk.shape[0], b_kn.shape[1])
    for chunk_mk, chunk_kn in zip(
        a_mk.split(promote or a_mk.shape[1], 1), b_kn.split(promote or len(b_kn)), strict=True
    ):
        partial = total.new_zeros(total.shape, dtype=torch.float64)
        for column_m, row_n in zip(chunk_mk.unbind(1), chunk_kn.unbind(0), strict=True):
            partial = round_to(partial.addr(column_m, row_n), accumulator, overflow="special")
        total = total + partial.float()
    return total


def summed(terms: Tensor, format: Format, rounding: str = "nearest") -> Tensor:
    """terms (n, ...) added up one by one in `format`: what a buffer of gradients does over n microbatches.

    Where a term is less than half a step of what is there already, the sum does not move any more ("swamping").
    """
    total = terms.new_zeros(terms.shape[1:])
    for term in terms:
        total = round_to(total + round_to(term, format, rounding, "special"), format, rounding, "special")
    return total
