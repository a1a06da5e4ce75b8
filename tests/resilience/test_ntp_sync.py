"""Replicas of different width have the gradients of the whole model, all alike to the bit, for the bytes stated."""

from __future__ import annotations

import pytest
import torch
from slices import few

from labkit import launch
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import TensorParallelGPT
from labkit.resilience.ntp import NaiveSync, NonuniformSync, Replicas
from labkit.wire.errors import RefusedError
from labkit.wire.messenger import USER
from labkit.wire.recording import record as rec

pytestmark = pytest.mark.ranks

# 12 heads do not divide by 5, 7 or 8; 61 ids by nothing; 90 columns by no 4 or 7.
CONFIG = GPTConfig(vocab=61, context=12, layers=2, heads=12, width=36, expansion=5)
GROUPED = GPTConfig(vocab=61, context=12, layers=1, heads=16, kv_heads=8, width=32, tied=False)
BATCH = 9
TOKENS = torch.arange(BATCH * 13).reshape(BATCH, 13) * 7 % 61
WIDTHS = [(4, 3), (3, 2, 4), (4, 4), (4, 2), (1, 3), (2, 1, 1), (5,), (5, 3)]


def slices(replicas: Replicas) -> list[slice]:
    edges = [0]
    for n in replicas.shares(BATCH):
        edges.append(edges[-1] + n)
    return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]


def whole_model(config: GPTConfig) -> GPT:
    model = GPT(config, seed=3).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype), alpha=0.1)
    return model


def on_rank(group, config, replicas, **options):
    replica, position = replicas.place(group.rank)
    inner = group.subgroup(list(replicas.members[replica]))
    model = TensorParallelGPT(config, inner, placement=replicas.computes(config, replica)).double()
    model.load_whole(whole_model(config).state_dict())
    mine = TOKENS[slices(replicas)[replica]]
    sync = NonuniformSync(model, replicas, group, share=len(mine) / BATCH, **options)
    with group.span("backward"):
        model(mine[:, :-1], mine[:, 1:]).backward()
    found = model.whole_gradients()
    sync.remove()
    return found


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["tied", "grouped, untied"])
@pytest.mark.parametrize("widths", few(WIDTHS, 2, one=True), ids=str)
def test_gradients_are_those_of_the_whole_model_and_bitwise_the_same(widths, config):
    replicas = Replicas.of(*widths)
    run = launch(lambda g: on_rank(g, config, replicas, bucket_bytes=4096), sum(widths), transport="local")
    results = run.results
    model = whole_model(config)
    next_token_loss(model(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    for found in results:
        assert found.keys() == wanted.keys()
        assert max(float((found[k] - wanted[k]).abs().max()) for k in wanted) < 1e-12
        assert all(torch.equal(found[k], results[0][k]) for k in found)


def test_only_shards_that_change_place_travel_inside_a_replica_and_the_rest_between_partners():
    """An extra rank sends the gradients of all it holds, and gets them back with those that every rank has."""
    replicas = Replicas.of(4, 3)
    run = launch(lambda g: on_rank(g, CONFIG, replicas), 7, transport="local")
    sent = run.trace.events[(run.trace.events["kind"] == rec.SEND) & (run.trace.events["lane"] == USER)]
    table = [[int(sent["nbytes"][(sent["rank"] == a) & (sent["peer"] == b)].sum()) for b in range(7)] for a in range(7)]
    maps = {count: replicas.map_of(0, count) for count in (12, 180, 61)}
    d, itemsize = CONFIG.width, 8
    shard = {12: CONFIG.layers * (3 * 3 * (d + 1) + 3 * d), 180: CONFIG.layers * (d + 1 + d), 61: d}  # numbers of one
    alike = CONFIG.layers * 6 * d + 2 * d + CONFIG.context * d  # norms, biases after a sum, positions
    for a in range(7):
        for b in range(7):
            before = sum(maps[k].counts[a][b] * shard[k] for k in maps) if a < 4 and b < 4 else 0
            after = sum(maps[k].counts[b][a] * shard[k] for k in maps) if a < 4 and b < 4 else 0
            share = alike if (a, b) == (0, 3) else 0
            assert table[a][b] == itemsize * (before + after + share), (a, b)
    assert sum(maps[12].counts[3]) == 3 == 12 * (1 - 3 / 4)
    between = run.trace.bytes_between()  # a partner is the rank of the same position, and no one else
    assert [b - 4 for a in range(4) for b in range(4, 7) if between[a][b]] == [0, 1, 2]
    assert all(between[a][a + 4] > 0 for a in range(3))


def test_what_does_not_fit_is_refused_on_every_rank():
    replicas = Replicas.of(2, 1)

    def ranks(group):
        replica, _ = replicas.place(group.rank)
        inner = group.subgroup(list(replicas.members[replica]))
        told = []
        for placement in (None, replicas.computes(CONFIG, 1 - replica) if replica == 0 else None):
            try:
                model = TensorParallelGPT(CONFIG, inner, placement=placement)
                NonuniformSync(model, replicas, group, share=0.5)
            except RefusedError as why:
                told.append(str(why))
        return told

    for told in launch(ranks, 3, transport="local").results:
        assert any("is cut evenly: give its layer the shards" in text for text in told)


def test_without_overlap_the_gradients_are_the_same_bits():
    replicas = Replicas.of(3, 2)
    one, other = (
        launch(lambda g, o=overlap: on_rank(g, CONFIG, replicas, overlap=o, bucket_bytes=4096), 5, transport="local")
        for overlap in (True, False)
    )
    assert all(torch.equal(a[k], b[k]) for a, b in zip(one.results, other.results, strict=True) for k in a)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("widths", few([(4, 3), (2, 3), (4, 2)], one=True), ids=str)
def test_the_naive_sum_is_right_too(widths, joined):
    # 12 heads, 36 columns, 60 ids: the naive way needs widths that divide
    config = GPTConfig(vocab=61, context=12, layers=1, heads=12, width=36, expansion=5)
    replicas = Replicas.of(*widths)

    def ranks(group):
        replica, _ = replicas.place(group.rank)
        inner = group.subgroup(list(replicas.members[replica]))
        model = TensorParallelGPT(config, inner).double()
        model.load_whole(whole_model(config).state_dict())
        mine = TOKENS[slices(replicas)[replica]]
        model(mine[:, :-1], mine[:, 1:]).backward()
        NaiveSync(model, replicas, group, share=len(mine) / BATCH, joined=joined).sum()
        return model.whole_gradients()

    model = whole_model(config)
    next_token_loss(model(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()
    for found in launch(ranks, sum(widths), transport="local").results:
        assert max(float((found[k] - p.grad).abs().max()) for k, p in model.named_parameters()) < 1e-12
