"""The first weights of an embedding table, each row by itself: whoever holds a row can draw it without the others."""

from __future__ import annotations

import torch
from torch import Tensor


def uniform_rows(ids: Tensor, num: int, dim: int, seed: int = 0) -> Tensor:
    """Rows `ids` (u,) of a table of `num` rows, float64 (u, dim), uniform from -1/sqrt(num) to 1/sqrt(num).

    The bounds are those of Naumov et al. 2019 (DLRM). A number depends on (seed, id, column) only: it is the mixed
    value of a counter (SplitMix64; Steele, Lea & Flood 2014), of whose bits the upper 53 are taken.
    """
    counter = (ids[:, None] * dim + torch.arange(dim, device=ids.device)) + (seed << 40) + 1
    mixed = counter * -0x61C8864680B583EB  # all products modulo 2^64
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ _right(mixed, shift)) * factor
    unit = _right(mixed ^ _right(mixed, 31), 11).double() * 2.0**-53
    return (2 * unit - 1) / num**0.5


def _right(x: Tensor, by: int) -> Tensor:
    """x >> by of the 64 bits without their sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
