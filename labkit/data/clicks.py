"""Click data that is made up, and says so: a hidden model decides who clicks, so the best possible result is known.

Real click logs (Criteo's, say) are large and are not on this machine. These have what makes such data hard for a
system: categories of very different sizes, ids that Zipf's law (1949) makes very unequal, and a label that depends on
pairs of ids. They say nothing about how people click.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

PAIRS = 4  # numbers that the hidden model has for each id, by whose products ids like each other or not


class Clicks(NamedTuple):
    """dense: float32 (n, d). ids: int64 (n, t), one for each category. y: float32 (n,), 1 where there was a click.

    p: float32 (n,), the hidden probability of a click: `auc(p, y)` is what no model can beat but by chance.
    """

    dense: Tensor
    ids: Tensor
    y: Tensor
    p: Tensor


def zipf_ids(shape: Sequence[int], rows: int, skew: float, generator: torch.Generator) -> Tensor:
    """int64 ids below `rows`, id k in proportion to (k + 1)^-skew: exact, by the inverse of the distribution."""
    if rows < 1 or not skew >= 0:
        raise ValueError(f"rows={rows}, skew={skew}: needs a row or more, and a skew of 0 (uniform) or more")
    below = torch.arange(1, rows + 1, dtype=torch.float64).pow(-skew).cumsum(0)
    where = torch.rand(*shape, dtype=torch.float64, generator=generator) * below[-1]
    return torch.searchsorted(below, where, right=True).clamp_max(rows - 1)


def clicks(count: int, rows: Sequence[int], dense: int = 4, skew: float = 1.1, seed: int = 0, part: int = 0) -> Clicks:
    """`count` examples with an id of each category, of rows[t] ids.

    The hidden logit is a bias, a weight for each dense feature, one for each id, and a product for each pair of ids.
    It depends on `rows`, `dense` and `seed`; the examples on `part` too: 0 to train with and 1 to test with, say.
    """
    if count < 1 or not rows or dense < 1:
        raise ValueError(f"count={count}, rows={list(rows)}, dense={dense}: needs an example, a category and a feature")
    hidden = torch.Generator().manual_seed(seed)
    slope = torch.randn(dense, generator=hidden) / (4 * dense) ** 0.5  # who it is says less than what is shown
    alone = [torch.randn(n, generator=hidden) for n in rows]
    in_pairs = [torch.randn(n, PAIRS, generator=hidden) / PAIRS**0.5 for n in rows]

    dice = torch.Generator().manual_seed(seed + 1_000_003 * (part + 1))
    x = torch.randn(count, dense, generator=dice)
    ids = torch.stack([zipf_ids((count,), n, skew, dice) for n in rows], 1)
    effects = [a[i] for a, i in zip(alone, ids.T, strict=True)]
    places = [v[i] for v, i in zip(in_pairs, ids.T, strict=True)]
    pairs = [(a * b).sum(1) for n, a in enumerate(places) for b in places[:n]]
    logit = x @ slope + torch.stack(effects).sum(0) / len(rows) ** 0.5 - 1  # fewer clicks than not
    if pairs:
        logit = logit + torch.stack(pairs).sum(0) / len(pairs) ** 0.5
    p = torch.sigmoid(logit)
    return Clicks(x, ids, (torch.rand(count, generator=dice) < p).float(), p)


def auc(score: Tensor, y: Tensor) -> float:
    """The area under the ROC curve: how often an example with a click scores higher than one without; a tie is half.

    Exact, by the ranks of the scores (Mann & Whitney 1947), in integers. score, y: (n,), y of zeros and ones.
    """
    if score.shape != y.shape or score.dim() != 1:
        raise ValueError(f"auc of scores {tuple(score.shape)} and labels {tuple(y.shape)}: both are (n,)")
    bad = int(score.isnan().sum())
    if bad:
        raise ValueError(f"{bad} of {len(score)} scores are NaN, and have no rank")
    if not ((y == 0) | (y == 1)).all():
        raise ValueError("labels are 0 or 1")
    ones = int(y.sum())
    if ones in (0, len(y)):
        raise ValueError(f"{ones} of {len(y)} labels are 1: an area needs some of both")
    _, where, times = score.unique(return_inverse=True, return_counts=True)
    twice_rank = 2 * times.cumsum(0) - times + 1  # the mean rank of each score, doubled: a whole number
    twice = int(twice_rank[where][y == 1].sum()) - ones * (ones + 1)
    return twice / (2 * ones * (len(y) - ones))
