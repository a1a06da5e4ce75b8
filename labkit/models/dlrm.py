"""A small DLRM, "deep learning recommendation model" (Naumov et al. 2019): will this person click on that?

Dense features go through a multilayer perceptron to a vector as wide as the rows of the embedding tables. All dot
products of pairs among it and the looked-up rows, and it itself, go through a second one to a logit. Nearly all weights
are in the tables, and nearly all work is in the perceptrons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.mlp import MLP, MLPConfig
from labkit.models.rows import uniform_rows


@dataclass(frozen=True)
class DLRMConfig:
    """rows: ids of each category. dense: features. dim: of a row. bottom, top: hidden widths of the perceptrons."""

    rows: tuple[int, ...] = (1000, 500, 100, 10)
    dense: int = 4
    dim: int = 8
    bottom: tuple[int, ...] = (16,)
    top: tuple[int, ...] = (32,)

    def __post_init__(self) -> None:
        if not self.rows or min(self.rows) < 1 or min(self.dense, self.dim, *self.bottom, *self.top) < 1:
            raise ValueError(f"{self}: needs one category or more, and sizes of at least 1")

    @property
    def bottom_widths(self) -> tuple[int, ...]:
        return (self.dense, *self.bottom, self.dim)

    @property
    def top_widths(self) -> tuple[int, ...]:
        """What goes in: the dense vector, and a product for each pair of t + 1 vectors."""
        n = len(self.rows) + 1
        return (self.dim + n * (n - 1) // 2, *self.top, 1)

    @property
    def num_parameters(self) -> int:
        perceptrons = (pair for widths in (self.bottom_widths, self.top_widths) for pair in pairwise(widths))
        return sum(self.rows) * self.dim + sum((i + 1) * o for i, o in perceptrons)


class Bags(nn.Module):
    """The tables on one device. The rows of table n are `uniform_rows` of seed + n, so that a cut one begins alike."""

    def __init__(self, config: DLRMConfig, seed: int) -> None:
        super().__init__()
        drawn = [uniform_rows(torch.arange(n), n, config.dim, seed + t).float() for t, n in enumerate(config.rows)]
        self.bags = nn.ModuleList(nn.EmbeddingBag.from_pretrained(w, freeze=False, mode="sum") for w in drawn)

    def forward(self, ids: Sequence[Tensor]) -> list[Tensor]:
        """(b, bag) for each table -> (b, d) for each."""
        return [bag(i) for bag, i in zip(self.bags, ids, strict=True)]


class DLRM(nn.Module):
    """Weights depend on `config` and `seed` only.

    tables: what looks up in place of `Bags`, such as `labkit.parallel.embedding.ShardedEmbeddings` with one table of
    mode "sum" for each of config.rows: called with a list of ids (b, bag), one for each table, it gives one of (b, d).
    """

    def __init__(self, config: DLRMConfig | None = None, seed: int = 0, tables: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config = config or DLRMConfig()
        self.bottom = MLP(MLPConfig(config.bottom_widths), seed)
        self.top = MLP(MLPConfig(config.top_widths), seed + 1)
        self.tables = Bags(config, seed) if tables is None else tables

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """dense (b, features), ids (b, t), or (b, t, bag) where an example has several of a category -> logits (b,)."""
        x_bd = F.relu(self.bottom(dense))
        bags = ids.unbind(1) if ids.dim() == 3 else [one[:, None] for one in ids.unbind(1)]
        all_btd = torch.stack([x_bd, *self.tables(bags)], 1)
        products_btt = all_btd @ all_btd.transpose(1, 2)
        left, right = torch.tril_indices(len(bags) + 1, len(bags) + 1, -1)
        return self.top(torch.cat([x_bd, products_btt[:, left, right]], 1))[:, 0]
