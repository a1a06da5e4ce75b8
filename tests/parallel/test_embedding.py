"""A table that is cut among ranks is the whole one: for every cut, rule and pattern of ids. And bytes, skew, moves."""

from __future__ import annotations

import functools
from dataclasses import replace

import psutil
import pytest
import torch
from slices import WIRES, few
from torch import nn

from labkit import Link, Network, cost, launch
from labkit.collectives import all_gather
from labkit.cost.collectives.ring import ring_all_reduce
from labkit.data import zipf_ids
from labkit.parallel.embedding.hot import hottest
from labkit.parallel.embedding.moving import load_by_bucket
from labkit.parallel.embedding.optimizers import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from labkit.parallel.embedding.sharded import ShardedEmbedding, ShardedEmbeddings
from labkit.parallel.embedding.table import TableConfig
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

NUM, DIM, BATCH, BAG, STEPS = 23, 5, 20, 4, 3
CUTS = {
    "range": TableConfig(NUM, DIM),
    "modulo": TableConfig(NUM, DIM, by="modulo", buckets=7),
    "columns": TableConfig(NUM, DIM, "columns"),
    "mean of columns": TableConfig(NUM, DIM, "columns", mode="mean"),
    "table": TableConfig(NUM, DIM, "table"),
    "cached": TableConfig(NUM, DIM, cache=2, policy="lfu"),
    "one by one": TableConfig(NUM, DIM, by="modulo", mode=None),
}
RULES = {
    "rowwise": (RowwiseAdagrad(0.3), None),
    "adam": (LazyAdam(0.1), lambda p: torch.optim.SparseAdam(p, 0.1)),
    "adagrad": (Adagrad(0.3), lambda p: torch.optim.Adagrad(p, 0.3)),
    "sgd": (SGD(0.3), lambda p: torch.optim.SGD(p, 0.3)),
}


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ids_of(step):
    """(b, bag) ids of all ranks: each many times over, then one alone, then any, so that some rest for a while."""
    ids = torch.randint((3, 1, NUM)[step % 3], (BATCH, BAG), generator=torch.Generator().manual_seed(step))
    return (ids + 5 * step) % NUM


def loss_of(looked_up, step):
    """The sum over the examples of a loss whose gradient differs in every number."""
    return (torch.tanh(looked_up) * drawn(BATCH, BAG, DIM, seed=9 + step).mean(1)).sum()


@functools.cache
def whole(mode, rule):
    """What one device has after some steps, by PyTorch's own layers and optimizers."""
    kind = nn.Embedding if mode is None else nn.EmbeddingBag
    layer = kind.from_pretrained(drawn(NUM, DIM), freeze=False, sparse=True, **({"mode": mode} if mode else {}))
    make = RULES[rule][1]
    optimizer = make(layer.parameters()) if make else None
    squares = torch.zeros(NUM, 1, dtype=torch.float64)
    for step in range(STEPS):
        layer.zero_grad()
        out = layer(ids_of(step))
        loss_of(out if mode else out.sum(1), step).backward()
        if optimizer:
            optimizer.step()
        else:  # FBGEMM's exact row-wise Adagrad, which PyTorch itself does not have
            g = layer.weight.grad.to_dense()
            squares += g.square().mean(1, keepdim=True)
            layer.weight.data -= 0.3 * g / (squares.sqrt() + 1e-8)
    return layer.weight.detach()


def steps_of(tables, group, steps, after=lambda tables, step: None):
    """Train tables by this rank's part of the examples."""
    for step in steps:
        group.step(step + 1)
        mine = torch.arange(BATCH).tensor_split(group.size)[group.rank]
        outs = tables([ids_of(step)[mine] for _ in tables.tables])
        for out, table in zip(outs, tables.tables.values(), strict=True):
            pooled = out if table.config.mode else out.sum(1)
            rows = torch.zeros(BATCH, DIM, dtype=torch.float64).index_copy(0, mine, pooled)
            loss_of(rows, step).backward(retain_graph=True)  # those of others are zeros, and tanh(0) is 0
        tables.step()
        after(tables, step)
    return tables


def made(group, configs, rule=RULES["sgd"][0]):
    begin = dict.fromkeys(configs, drawn(NUM, DIM).__getitem__)
    return ShardedEmbeddings(configs, group, rule, average=False, dtype=torch.float64, init=begin)


def all_cuts(group):
    """All tables at once, which share every message."""
    found = {}
    for name, (rule, _) in RULES.items():
        cuts = {cut: replace(config, owner=(group.size - 1)) for cut, config in CUTS.items()}
        tables = steps_of(made(group, cuts, rule), group, range(STEPS))
        found |= {(cut, name): table.whole() for cut, table in tables.tables.items()}
    return found


@pytest.mark.parametrize("size", few([3, 1, 2, 5], 2))
def test_a_cut_table_is_the_whole_one_for_every_cut_and_rule(size):
    for found in launch(all_cuts, size, transport="local").results:
        for (cut, rule), table in found.items():
            off = (table - whole(CUTS[cut].mode, rule)).abs().max()
            assert off < 1e-12, (cut, rule, off)


# -- bytes ---------------------------------------------------------------------------------------------------------


def owners(cut, size):
    """Who is asked for each id, by the plain definition; None: everybody."""
    ids = torch.arange(NUM)
    if cut == "columns":
        return None
    if cut == "table":
        return torch.zeros(NUM, dtype=torch.int64)
    if cut == "modulo":
        return ids % 7 % size
    return torch.cat([torch.full((len(part),), r) for r, part in enumerate(ids.tensor_split(size))])


def asked(cut, size, step=0, hot=()):
    """asked[r][s]: different ids that rank r asks of rank s."""
    found = []
    for ids in ids_of(step).tensor_split(size):
        unique = torch.tensor(sorted(set(ids.flatten().tolist()) - set(hot)), dtype=torch.int64)
        owner = owners(cut, size)
        found.append([len(unique)] * size if owner is None else owner[unique].bincount(minlength=size).tolist())
    return found


def sent_in(run, step):
    return [sum(m.nbytes for m in run.trace.sends if (m.src, m.step) == (r, step)) for r in range(run.trace.world_size)]


@pytest.mark.parametrize("transport", few(WIRES))
def test_bytes_are_those_of_the_rows_that_a_batch_touches(transport):
    size, cuts = 3, ("range", "modulo", "columns", "table")

    def on_rank(group):
        tables = made(group, {cut: CUTS[cut] for cut in cuts})
        steps_of(tables, group, [2])
        with torch.no_grad():  # evaluation: nothing is pushed, and nothing stays open
            group.step(10)
            tables([ids_of(2).tensor_split(group.size)[group.rank] for _ in cuts])
        group.step(20)
        assert not tables._open

    run = launch(on_rank, size, transport=transport)
    widths = [[len(c) for c in torch.arange(DIM).tensor_split(size)] if cut == "columns" else [DIM] * size
              for cut in cuts]  # fmt: skip
    by_table = [asked(cut, size, 2) for cut in cuts]
    assert sent_in(run, 3) == cost.embedding_bytes_by_rank(by_table, widths, itemsize=8)
    assert sent_in(run, 10) == cost.embedding_bytes_by_rank(by_table, widths, itemsize=8, passes=1)


def test_row_wise_adagrad_of_columns_sends_a_number_for_each_touched_row():
    run = launch(lambda g: steps_of(made(g, {"t": CUTS["columns"]}, RowwiseAdagrad(0.1)), g, [2]).nbytes, 3)
    widths = [len(c) for c in torch.arange(DIM).tensor_split(3)]
    pulled = cost.embedding_bytes_by_rank([asked("columns", 3, 2)], [widths], itemsize=8)
    means = ring_all_reduce.bytes_by_rank(len(ids_of(2).unique()), 8, 3)
    assert sent_in(run, 3) == [a + b for a, b in zip(pulled, means, strict=True)]


# -- skew ----------------------------------------------------------------------------------------------------------

HOT = {0: [0, 1, 2], 1: [5, 6, 11], 2: []}  # held by all from the end of a step on


def test_hot_rows_that_all_ranks_hold_change_nothing_but_the_bytes():
    cuts = {cut: CUTS[cut] for cut in ("range", "modulo", "cached", "one by one")}

    def replicate(tables, step):
        for name in tables.tables:
            tables.replicate(name, HOT[step])
            hot = tables.tables[name].hot
            same = [] if hot is None else all_gather(hot.rows[None], tables.group)
            assert all(torch.equal(rows, hot.rows) for rows in same)

    def on_rank(group):
        tables = steps_of(made(group, cuts, LazyAdam(0.1)), group, range(STEPS), replicate)
        return {name: table.whole() for name, table in tables.tables.items()}

    run = launch(on_rank, 3)
    for found in run.results:
        for cut, table in found.items():
            assert (table - whole(CUTS[cut].mode, "adam")).abs().max() < 1e-12, cut

    def one(group):
        tables = made(group, {"range": CUTS["range"]})
        tables.replicate("range", [7, 3])
        return steps_of(tables, group, [2]).tables["range"].nbytes

    run = launch(one, 3)
    pulled = cost.embedding_bytes_by_rank([asked("range", 3, 2, hot=(3, 7))], [[DIM] * 3], itemsize=8)
    reduced = cost.hot_rows_bytes_by_rank(2, DIM, 3, itemsize=8)
    assert sent_in(run, 3) == [a + b for a, b in zip(pulled, reduced, strict=True)]


def test_popular_rows_make_a_shard_hot_unless_they_are_spread_or_held_by_all():
    """What each shard is asked for is Zipf's law, within 5 standard errors (of a sum of few that are not alike, so less
    than Poisson's); and the slower the link of the hottest rank, the longer all wait for it."""
    rows, batch, steps, size = 200, 60, 20, 3
    network = Network(1, size, Link(bandwidth=1e7, latency=0.0), Link(bandwidth=1e7, latency=0.0))

    def on_rank(group, by, hot):
        table = ShardedEmbedding(rows, 16, group, SGD(0.1), by=by)
        table.replicate("table", range(hot))
        dice = torch.Generator().manual_seed(group.rank)
        group.step(1)
        for _ in range(steps):
            table(zipf_ids((batch, 1), rows, 1.1, dice)).sum().backward()
            table.step()
        group.step(2)
        return load_by_bucket(table.table), hottest(table.table, 3)

    times = {}
    for by, hot in (("range", 0), ("modulo", 0), ("range", 10)):
        run = launch(on_rank, size, by, hot, clock="virtual", network=network)
        begin, end = run.trace.during_step(1)
        times[by, hot] = end - begin
        if not hot:
            lookups = cost.zipf_unique(rows, 1.1, batch) * steps * size
            for load, share in zip(run.results[0][0], cost.zipf_shard_loads(rows, 1.1, size, by, batch), strict=True):
                assert abs(load - share * lookups) < 5 * (share * lookups) ** 0.5
            assert all(top == [0, 1, 2] for _, top in run.results)
    assert times["range", 0] > 1.2 * max(times["modulo", 0], times["range", 10]), times


@pytest.mark.parametrize("cut", few(["modulo", "cached"]))
def test_rows_move_while_training_with_their_state_and_nothing_is_lost(cut):
    first, then = [1, 1, 1, 2, 1, 0, 0], [2, 2, 0, 2, 2, 0, 0]  # at last rank 1 has nothing

    seen = []

    def move(tables, step):
        group, table = tables.group, tables.tables["t"]
        before, loads = table.whole(), load_by_bucket(table)
        group.step(100 + step)
        if step < 2:
            seen.append((loads, tables.rebalance("t", (first, then)[step])))
        group.step(200 + step)
        assert torch.equal(before, table.whole())

    def on_rank(group):
        tables = made(group, {"t": replace(CUTS[cut], by="modulo", buckets=7)}, LazyAdam(0.1))
        steps_of(tables, group, range(STEPS), move)
        return tables.tables["t"].whole(), seen, tables.tables["t"].asked.numel()

    run = launch(on_rank, 3)
    rows = [len(range(b, NUM, 7)) for b in range(7)]
    for n, (old, new) in enumerate((([b % 3 for b in range(7)], first), (first, then))):
        moved = cost.moved_bytes_by_rank(rows, old, new, 3 * DIM * 8, 3)
        assert [seen[n][1] for _, seen, _ in run.results] == moved and sum(moved)
        agreed = 2 * (8 + 16)  # that all ask for the same
        assert sent_in(run, 100 + n) == [sent + agreed for sent in moved]
    uniques = [ids.unique() for ids in ids_of(0).tensor_split(3)]
    counted = sum((ids % 7).bincount(minlength=7) for ids in uniques).tolist()
    for table, seen, _ in run.results:
        assert (table - whole("sum", "adam")).abs().max() < 1e-12
        assert seen[0][0] == counted
    held = [sum(n for n, owner in zip(rows, then, strict=True) if owner == r) for r in range(3)]
    assert [found for *_, found in run.results] == held and held[1] == 0


def test_two_look_ups_before_a_step_are_one_batch_of_both_and_repeats_are_equal_to_the_bit():
    def on_rank(group):
        tables = []
        for parts in (1, 2, 2):
            table = ShardedEmbedding(NUM, DIM, group, Adagrad(0.1), by="modulo", dtype=torch.float64)
            for ids in ids_of(group.rank)[:8].tensor_split(parts):
                torch.sin(3e3 * table(ids)).sum().backward()
            table.step()
            tables.append(table.table.whole())
        return tables

    for once, twice, again in launch(on_rank, 3).results:
        assert (once - twice).abs().max() < 1e-12 and torch.equal(twice, again)


def test_first_rows_are_the_same_for_every_number_of_ranks_and_every_cut():
    def on_rank(group):
        tables = ShardedEmbeddings({"a": CUTS["modulo"], "b": CUTS["columns"]}, group, SGD(1.0), seed=5)
        return [table.whole() for table in tables.tables.values()]

    one, three = (launch(on_rank, size).results[0] for size in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
    assert not torch.equal(one[0], one[1]) and one[0].abs().max() <= NUM**-0.5


@pytest.mark.long
def test_ten_million_rows_on_eight_ranks_take_the_memory_of_the_formula():
    num, dim, size = 10_000_000, 16, 8

    def on_rank(group):
        before = psutil.Process().memory_info().rss
        table = ShardedEmbedding(num, dim, group, RowwiseAdagrad(0.1), by="modulo")
        dice = torch.Generator().manual_seed(group.rank)
        for _ in range(2):
            table(torch.randint(num, (64, 4), generator=dice)).square().sum().backward()
            table.step()
        return table.nbytes, psutil.Process().memory_info().rss - before

    held = cost.table_bytes(num // size, dim)
    for nbytes, grown in launch(on_rank, size).results:
        assert nbytes == held and held < grown < 1.5 * held  # what it takes to draw the rows is given back in part


# -- offsets and bad input -----------------------------------------------------------------------------------------


def test_bags_by_offsets_with_empty_ones_and_a_rank_without_any_id():
    ids, offsets = torch.tensor([3, 3, 22, 0, 7], dtype=torch.int32), torch.tensor([0, 2, 2, 5])

    def on_rank(group):
        table = ShardedEmbedding(NUM, DIM, group, SGD(1.0), mode="mean", init=drawn(NUM, DIM).__getitem__,
                                 average=False, dtype=torch.float64)  # fmt: skip
        mine = (ids, offsets) if group.rank else (ids[:0], offsets[:2] * 0)
        out = table(*mine)
        (out * out).sum().backward()
        table.step()
        return out.detach(), table.table.whole()

    layer = nn.EmbeddingBag.from_pretrained(drawn(NUM, DIM), freeze=False, mode="mean")
    out = layer(ids, offsets)
    (out * out).sum().backward()
    results = launch(on_rank, 2).results
    assert torch.equal(results[0][0], torch.zeros(2, DIM, dtype=torch.float64)) and torch.equal(results[1][0], out)
    assert (results[0][1] - (layer.weight - layer.weight.grad)).abs().max() < 1e-12


def good(tables, group):
    """A step that is as it should be."""
    return steps_of(tables, group, [0])


def nan(tables, group):
    (tables([ids_of(0), ids_of(0)])[1] * (float("nan") if group.rank == 1 else 1.0)).sum().backward()
    tables.step()


def open_look_up(tables, group):
    tables([ids_of(0), ids_of(0)])
    try:
        tables.rebalance("a", [0, 0, 0])
    finally:
        tables.step()


def one_odd(change):
    """A look-up in which rank 1 brings other ids than it may."""
    return lambda tables, group: tables([ids_of(0), change(ids_of(0)) if group.rank == 1 else ids_of(0)])


BAD = {
    "on rank 1: table 'b': id 23 is not among its 23 rows, 0 to 22": one_odd(lambda i: i.where(i != i[0, 0], NUM)),
    "on rank 1: table 'b': id -1 is not": one_odd(lambda i: i.where(i != i[0, 0], -1)),
    "on rank 1: table 'b': ids are a tensor of int64 or int32, not torch.float32": one_odd(lambda i: i.float()),
    "on rank 1: table 'b': ids of shape (80,) without offsets": one_odd(lambda i: i.flatten()),
    "1 tensors of ids, and 2 tables": lambda tables, group: tables([ids_of(0)]),
    "offsets begin with 0, rise": lambda tables, group: tables(
        [ids_of(0).flatten()] * 2, [torch.tensor([0, 9]), torch.tensor([0, 9, 7])]
    ),
    "no table was looked up with gradients": lambda tables, group: tables.step(),
    "on rank 1: rank 1: 15 of the 15 numbers in the gradient of 'b'": nan,
    "gradients of a look-up are still to be pushed": open_look_up,
    "cut by columns, and every rank": lambda tables, group: tables.replicate("b", [1]),
    "the tables are 'a', 'b'": lambda tables, group: tables.rebalance("c", [1]),
    "2 owners for 3 buckets": lambda tables, group: tables.rebalance("a", [0, 1]),
    "needs a rank from 0 to 2 for each bucket": lambda tables, group: tables.rebalance("a", [0, 1, 3]),
    "the ranks did not bring the same": lambda tables, group: tables.rebalance("a", [0, 1, group.rank]),
    "id 23 is not among the rows 0 to 22": lambda tables, group: tables.replicate("a", [NUM]),
    "shard='columns' of 2 columns on 3": lambda tables, group: ShardedEmbedding(NUM, 2, group, SGD(1.0), "columns"),
    "rank 1: rule is SGD(lr=2)": lambda tables, group: ShardedEmbedding(NUM, 2, group, SGD(1 + (group.rank == 1))),
}  # fmt: skip


def test_what_cannot_be_is_refused_by_all_ranks_alike_and_training_goes_on():
    def on_rank(group):
        tables, said = made(group, {"a": CUTS["range"], "b": CUTS["columns"]}), []
        for bad in BAD.values():
            try:
                bad(tables, group)
            except RefusedError as refusal:
                said.append(str(refusal))
            else:
                said.append("not refused")
            tables.zero_grad()  # the batch is dropped
        plain = tables.tables["a"].whole()
        return said, plain, good(tables, group).tables["a"].whole()

    run = launch(on_rank, 3, timeout=60)
    for words, *said in zip(BAD, *(said for said, _, _ in run.results), strict=True):
        assert len(set(said)) == 1 and words in said[0], (words, said)
    assert all(not torch.equal(before, after) for _, before, after in run.results)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TableConfig(0, 4), "num=0"),
        (lambda: TableConfig(4, 4, "row"), "shard='row': 'rows', 'columns', 'table'"),
        (lambda: TableConfig(4, 4, mode="max"), "mode='max'"),
        (lambda: TableConfig(4, 4, by="hash").layout(2), "by='hash'"),
        (lambda: TableConfig(4, 4, "table", owner=2).layout(2), "a rank from 0 to 1"),
        (lambda: SGD(0.0), "lr is a number above 0"),
        (lambda: LazyAdam(0.1, (0.9, 1.0)), "betas"),
    ],
)
def test_options_that_cannot_be(make, words):
    with pytest.raises(RefusedError, match=words):
        make()
