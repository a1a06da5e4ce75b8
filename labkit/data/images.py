"""Images that ship inside scikit-learn: 1797 handwritten digits of 8 x 8 pixels (Alpaydin & Kaynak 1998)."""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
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
    if not 0 < validation < 1:
        raise ValueError(f"validation={validation}: give the part kept from training, between 0 and 1")
    table = _table()
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
    x = torch.from_numpy(table[:, :64]).float().div(16).view(-1, 1, 8, 8)[order]  # a pixel is 0 to 16
    y = torch.from_numpy(table[:, 64]).long()[order]
    cut = round(len(y) * (1 - validation))
    return Images(x[:cut], y[:cut]), Images(x[cut:], y[cut:])


@cache
def _table() -> np.ndarray:
    """float64 of shape (1797, 65): the pixels of each digit, and which one it is.

    Read from scikit-learn's own file, because importing scikit-learn for it takes longer than most runs of a chapter.
    """
    found = find_spec("sklearn")
    folder = next(iter(found.submodule_search_locations or []), "") if found else ""
    path = Path(folder, "datasets", "data", "digits.csv.gz")
    if path.is_file():
        return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits  # where another version keeps it elsewhere

    data = load_digits()
    return np.column_stack([data.data, data.target])


def image_batches(images: Images, batch: int, seed: int = 0, rank: int = 0, world: int = 1) -> Iterator[Images]:
    """`batch` images for this rank at each step, without end; the ranks of a step are disjoint.

    Order, promises and errors are those of `batch_indices`.
    """
    return (Images(images.x[i], images.y[i]) for i in batch_indices(len(images.y), batch, seed, rank, world))
