"""Images that ship inside scikit-learn: 1797 handwritten digits of 8 x 8 pixels (Alpaydin & Kaynak 1998)."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.data.order import batch_indices


class Images(NamedTuple):
    """x: float32 of shape (n, 1, 8, 8) from 0 to 1. y: int64 of shape (n,), the digit 0 to 9."""

    x: Tensor
    y: Tensor


def digits(validation: float = 0.2, seed: int = 0) -> tuple[Images, Images]:
    """The digits as (train, validation), mixed by `seed` before the cut.

    Raises ValueError unless 0 < validation < 1.
    """
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    if not 0 < validation < 1:
        raise ValueError(f"validation={validation}: give the part kept from training, between 0 and 1")
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(seed))
    x = torch.from_numpy(data.images).float().div(16).unsqueeze(1)[order]  # a pixel is 0 to 16
    y = torch.from_numpy(data.target).long()[order]
    cut = round(len(y) * (1 - validation))
    return Images(x[:cut], y[:cut]), Images(x[cut:], y[cut:])


def image_batches(images: Images, batch: int, seed: int = 0, rank: int = 0, world: int = 1) -> Iterator[Images]:
    """`batch` images for this rank at each step, without end; the ranks of a step are disjoint.

    Order, promises and errors are those of `batch_indices`.
    """
    return (Images(images.x[i], images.y[i]) for i in batch_indices(len(images.y), batch, seed, rank, world))
