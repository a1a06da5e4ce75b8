"""A table that is cut among ranks is the whole one: for every cut, rule and pattern of ids. And bytes, skew, moves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from slices import LONG, TRANSPORTS, few
from torch import nn

from labkit import RankFailed, cost, launch
from labkit.parallel.embedding.moving import load_by_bucket
from labkit.parallel.embedding.optimizers import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from labkit.parallel.embedding.sharded import ShardedEmbedding, ShardedEmbeddings
from labkit.parallel.embedding.table import TableConfig
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

NUM, DIM, BATCH, BAG, STEPS = 23, 5, 30, 4, 4
DOUBLE = {"dtype": torch.float64}
CUTS = {
    "range": TableConfig(NUM, DIM, "rows"),
    "modulo": TableConfig(NUM, DIM, "rows", by="modulo", buckets=7),
    "columns": TableConfig(NUM, DIM, "columns"),
    "table": TableConfig(NUM, DIM, "table", owner=1),
    "cached": TableConfig(NUM, DIM, "rows", cache=2, policy="lfu"),
    "one by one": TableConfig(NUM, DIM, "rows", by="modulo", mode=None),
    "mean": TableConfig(NUM, DIM, "columns", mode="mean"),
}
RULES = {
    "sgd": (SGD(0.3), lambda p: torch.optim.SGD(p, 0.3)),
    "adagrad": (Adagrad(0.3), lambda p: torch.optim.Adagrad(p, 0.3)),
    "adam": (LazyAdam(0.1), lambda p: torch.optim.SparseAdam(p, 0.1)),
    "rowwise": (RowwiseAdagrad(0.3), None),
}


def first_rows():
    return torch.randn(NUM, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def ids_of(step, pattern):
    """(b, bag) ids of all ranks. "many": each id many times over; "few": one id only; "any": some, and some never."""
    dice = torch.Generator().manual_seed(step)
    top = {"many": 3, "few": 1, "any": NUM}[pattern]
    return (torch.randint(top, (BATCH, BAG), generator=dice) + 5 * step) % NUM


def score(pooled, step):
    """A loss whose gradient differs in every number."""
    dice = torch.Generator().manual_seed(100 + step)
    return torch.tanh(pooled) * torch.randn(pooled.shape, dtype=torch.float64, generator=dice)


def whole(mode, rule, pattern):
    """What one device has after some steps, by PyTorch's own layers and optimizers."""
    rows = first_rows()
    layer = (
        nn.Embedding.from_pretrained(rows, freeze=False, sparse=True)
        if mode is None
        else nn.EmbeddingBag.from_pretrained(rows, freeze=False, sparse=True, mode=mode)
    )
    make = RULES[rule][1]
    optimizer = make(layer.parameters()) if make else None
    squares = torch.zeros(NUM, 1, dtype=torch.float64)
    for step in range(STEPS):
        layer.zero_grad()
        score(layer(ids_of(step, pattern)), step).mean(0).sum().backward()
        if optimizer:
            optimizer.step()
        else:  # FBGEMM's exact row-wise Adagrad, which is not in PyTorch
            g = layer.weight.grad.to_dense()
            squares += g.square().mean(1, keepdim=True)
            with torch.no_grad():
                layer.weight -= 0.3 * g / (squares.sqrt() + 1e-8)
    return layer.weight.detach()


def train(table, group, pattern, between=None):
    results = []
    for step in range(STEPS):
        mine = [x.tensor_split(group.size)[group.rank] for x in (ids_of(step, pattern),)][0]
        pooled = table(mine)
        results.append(pooled.detach())
        share = group.size * len(mine) / BATCH  # uneven batches: of the mean over all examples
        weights = score(torch.zeros(BATCH, *pooled.shape[1:], dtype=torch.float64), step)  # only its shape is used
        assert weights.shape[1:] == pooled.shape[1:]
        full = torch.zeros(BATCH, *pooled.shape[1:], dtype=torch.float64)
        start = sum(len(x) for x in full.tensor_split(group.size)[: group.rank])
        placed = torch.cat([full[:start], pooled, full[start + len(mine) :]])
        (share * score(placed, step)[start : start + len(mine)].mean(0).sum()).backward()
        table.step()
        if between:
            between(table, group, step)
    return table.table.whole(), results


def on_rank(group, cases, between=None):
    found = []
    for config, rule, pattern in cases:
        table = ShardedEmbeddings({"table": config}, group, RULES[rule][0], init={"table": first_rows().__getitem__},
                                  **DOUBLE)  # fmt: skip
        table.table = table.tables["table"]
        one = lambda ids, table=table: table([ids])[0]  # noqa: E731
        found.append(train(_One(table, one), group, pattern, between)[0])
    return found


class _One:
    def __init__(self, tables, call):
        self.table, self.step, self.tables, self._call = tables.table, tables.step, tables, call

    def __call__(self, ids):
        return self._call(ids)


@pytest.mark.parametrize("size", few([3, 1, 2, 5], 2))
def test_a_cut_table_is_the_whole_one(size):
    cases = [
        (replace(CUTS[cut], owner=CUTS[cut].owner % size), rule, pattern)
        for cut, rule, pattern in itertools.product(CUTS, RULES, ("many", "few", "any"))
    ]
    for ranks in zip(*launch(on_rank, size, cases, transport="local").results, strict=True):
        assert all(torch.equal(ranks[0], other) for other in ranks)
    for found, (config, rule, pattern) in zip(launch(on_rank, size, cases).results[0], cases, strict=True):
        off = (found - whole(config.mode, rule, pattern)).abs().max()
        assert off < 1e-12, (config, rule, pattern, off)
