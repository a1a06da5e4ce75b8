"""Rows that lie in segments, such as those for each rank and in it for each expert, and their order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def in_order(sizes: Tensor, axes: Sequence[int]) -> Tensor:
    """Where each row comes from when segments are put into the order of other `axes`: an index of rows.

    sizes: of the segments, with an axis for each thing they are sorted by, the outermost first. Rows of one segment
    keep their order. sizes (2, 3) and axes (1, 0): what was sorted by a and then b is sorted by b and then a.
    """
    flat = sizes.flatten()
    begins = (flat.cumsum(0) - flat).view(sizes.shape).permute(*axes).flatten()
    new = sizes.permute(*axes).flatten()
    here = new.cumsum(0) - new
    return torch.arange(int(flat.sum()), device=sizes.device) + (begins - here).repeat_interleave(new)


def back(index: Tensor) -> Tensor:
    """The index that undoes `index`."""
    return torch.empty_like(index).index_put_((index,), torch.arange(len(index), device=index.device))
