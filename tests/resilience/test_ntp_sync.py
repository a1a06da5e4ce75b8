"""Replicas of different width have the gradients of the whole model, all alike to the bit, for the bytes stated."""

from __future__ import annotations

import pytest
import torch

from labkit import launch
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import TensorParallelGPT
from labkit.resilience.ntp import NonuniformSync, Replicas

# 12 heads do not divide by 5, 7 or 8; 61 ids by nothing; 90 columns by no 4 or 7.
CONFIG = GPTConfig(vocab=61, context=12, layers=2, heads=12, width=36, expansion=5)
GROUPED = GPTConfig(vocab=61, context=12, layers=1, heads=16, kv_heads=8, width=32, tied=False)
BATCH = 9
TOKENS = torch.arange(BATCH * 13).reshape(BATCH, 13) * 7 % 61
WIDTHS = [(4, 4), (4, 3), (4, 2), (3, 2, 4), (1, 3), (2, 1, 1), (5,), (5, 3)]


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
    model = TensorParallelGPT(config, inner, spread=replicas.computes(config, replica)).double()
    model.load_whole(whole_model(config).state_dict())
    mine = TOKENS[slices(replicas)[replica]]
    sync = NonuniformSync(model, replicas, group, share=len(mine) / BATCH, **options)
    with group.span("backward"):
        model(mine[:, :-1], mine[:, 1:]).backward()
    found = model.whole_gradients()
    sync.remove()
    return found


@pytest.mark.parametrize("config", [CONFIG, GROUPED], ids=["tied", "grouped, untied"])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
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
