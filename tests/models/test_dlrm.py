"""A small DLRM: by hand, learning what can be learned, and with tables that are cut among ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from slices import few

from labkit import launch
from labkit.data import auc, batch_indices, clicks
from labkit.models import DLRM, DLRMConfig, num_parameters
from labkit.parallel import DataParallel
from labkit.parallel.embedding.optimizers import Adagrad
from labkit.parallel.embedding.sharded import ShardedEmbeddings
from labkit.parallel.embedding.table import TableConfig

CONFIG = DLRMConfig(rows=(60, 20, 7), dense=3, dim=4, bottom=(8,), top=(8,))


def test_the_logit_is_that_of_the_paper():
    model = DLRM(CONFIG, seed=1)
    assert num_parameters(model) == CONFIG.num_parameters
    dense, ids = torch.randn(5, 3), torch.stack([torch.randint(n, (5, 2)) for n in CONFIG.rows], 1)
    x = F.relu(model.bottom(dense))
    vectors = [x, *(bag.weight[ids[:, t]].sum(1) for t, bag in enumerate(model.tables.bags))]
    products = [(vectors[a] * vectors[b]).sum(1) for a in range(4) for b in range(a)]
    expected = model.top(torch.cat([x, torch.stack(products, 1)], 1))[:, 0]
    torch.testing.assert_close(model(dense, ids), expected)
    torch.testing.assert_close(model(dense, ids[:, :, 0]), model(dense, ids[:, :, :1]))
    with pytest.raises(ValueError, match="one category or more"):
        DLRMConfig(rows=())


def train(model, data, step, steps, batch, rank=0, world=1):
    order = batch_indices(len(data.y), batch, 0, rank, world)
    for _, which in zip(range(steps), order, strict=False):
        model.zero_grad()
        F.binary_cross_entropy_with_logits(model(data.dense[which], data.ids[which]), data.y[which]).backward()
        step()
    return model


def test_it_learns_what_can_be_learned():
    """Clicks of others: better than the same model without ids, and not as good as who knows the hidden model."""
    rows = (500, 100, 10)
    train_on, others = clicks(8_000, rows, seed=1), clicks(2_000, rows, seed=1, part=1)
    found = {}
    for used in (False, True):
        data, unseen = (part._replace(ids=part.ids * used) for part in (train_on, others))
        model = DLRM(DLRMConfig(rows=rows))
        train(model, data, torch.optim.Adagrad(model.parameters(), 0.1).step, 60, 256)
        found[used] = auc(model(unseen.dense, unseen.ids).detach(), others.y)
    assert 0.5 < found[False] < found[True] - 0.1 < auc(others.p, others.y) - 0.1, found


@pytest.mark.ranks
@pytest.mark.parametrize("size", few([3, 2]))
def test_with_cut_tables_and_data_parallel_perceptrons_it_is_the_model_of_one_process(size):
    data, steps, batch = clicks(300, CONFIG.rows, dense=3), 5, 12
    data = data._replace(dense=data.dense.double(), y=data.y.double())
    cuts = {"a": TableConfig(60, 4, by="modulo"), "b": TableConfig(20, 4, "columns"), "c": TableConfig(7, 4, "table")}

    def on_rank(group):
        begin = [bag.weight.detach().double() for bag in DLRM(CONFIG).tables.bags]
        narrow = ShardedEmbeddings(cuts, group, Adagrad(0.1))
        assert all(torch.equal(t.whole().double(), w) for t, w in zip(narrow.tables.values(), begin, strict=True))
        first = {name: w.__getitem__ for name, w in zip(cuts, begin, strict=True)}
        tables = ShardedEmbeddings(cuts, group, Adagrad(0.1), dtype=torch.float64, init=first)
        model = DLRM(CONFIG, tables=tables).double()
        optimizer = torch.optim.Adagrad(model.parameters(), 0.1)

        def step():
            optimizer.step()
            tables.step()

        train(DataParallel(model, group), data, step, steps, batch // group.size, group.rank, group.size)
        return [*(p.detach() for p in model.parameters()), *(t.whole() for t in tables.tables.values())]

    one = DLRM(CONFIG).double()
    train(one, data, torch.optim.Adagrad(one.parameters(), 0.1).step, steps, batch)
    for weights in launch(on_rank, size).results:
        for found, expected in zip(weights, one.parameters(), strict=True):
            assert (found - expected).abs().max() < 1e-12
