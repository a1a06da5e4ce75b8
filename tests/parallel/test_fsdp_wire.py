"""`FullyShard` that gathers its parameters in 8 bits: what is computed with, what is kept, bytes, and training."""

from __future__ import annotations

import pytest
import torch
from slices import few

from labkit import Network, cost, launch
from labkit.cost.collectives.ring import ring_reduce_scatter
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.optim.precision import Codec
from labkit.parallel import FullyShard
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=16, layers=2, width=36, heads=4, vocab=61)  # 61 * 36 and others do not divide by 4
TOKENS = torch.arange(12 * 17).reshape(12, 17) * 7 % 61
FP8 = Codec("E4M3", 128)
CODECS = {FP8: (8, 128, 4), Codec("E4M3", 32, "e8m0-up"): (8, 32, 1), Codec("E5M2", "row"): (8, "row", 4),
          Codec("BF16"): (16, 128, 0)}  # fmt: skip


def batch(group):
    mine = TOKENS.tensor_split(group.size)[group.rank]
    return mine[:, :-1], mine[:, 1:]


@pytest.mark.parametrize("size", few([3, 1, 2, 4, 5], 2))
def test_bytes_of_a_step_are_two_coded_gathers_and_the_reduce_scatter_as_ever(size):
    def on_rank(group):
        x, y = batch(group)
        for n, codec in enumerate(CODECS):
            model = FullyShard(GPT(CONFIG), group, param_wire=codec)
            for _ in range(2):  # also before the order of units is known
                group.step(n + 1)
                next_token_loss(model(x), y).backward()
                group.step(0)
        return [f.flat.numel for f in model.flat_params]

    run = launch(on_rank, size, transport="local")
    numels = run.results[0]
    assert sum(numels) == CONFIG.num_parameters
    for n, form in enumerate(CODECS.values()):
        sent = [0] * size
        for m in run.trace.sends:
            sent[m.src] += m.nbytes if m.step == n + 1 else 0
        gather = cost.coded_all_gather_bytes_by_rank(numels, size, *form)
        scatter = [ring_reduce_scatter.bytes_by_rank(numel, 4, size) for numel in numels]
        expected = [2 * (2 * g + sum(each)) for g, *each in zip(gather, *scatter, strict=True)]
        assert sent == expected, form
        assert any(sent) == (size > 1)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_units_are_what_the_shards_become_and_the_shards_keep_their_bits(dtype):
    def on_rank(group):
        model = FullyShard(GPT(CONFIG), group, param_wire=FP8, param_dtype=dtype)
        wholes = [f.wait().clone() for f in model.flat_params]
        return [f.flat.names for f in model.flat_params], wholes, model.state_dict()

    plain = GPT(CONFIG).state_dict()
    for names, wholes, state in launch(on_rank, 3, transport="local").results:
        assert all(torch.equal(state[name], x) for name, x in plain.items())
        for unit, whole in zip(names, wholes, strict=True):
            flat = torch.cat([plain[name].flatten() for name in unit])
            shards = [FP8.decode(FP8.encode(shard[None]), len(shard))[0] for shard in flat.tensor_split(3)]
            assert torch.equal(whole, torch.cat(shards).to(dtype or torch.float32)) and not torch.equal(whole, flat)


def trained(group, steps, **options):
    model = FullyShard(GPT(CONFIG), group, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = batch(group)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = next_token_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


@pytest.mark.parametrize(
    "options", few([{}, {"strategy": "shard_grad_op"}, {"strategy": "hybrid"}], 2, one=True), ids=str
)
def test_training_stays_near_that_with_whole_parameters(options):
    """After 5 steps of AdamW weights are apart by less than 15 % of the way that they have come, in the mean, and
    the loss is within 2 %; no rank differs from another by a bit."""
    start = GPT(CONFIG).state_dict()

    def on_rank(group):
        return trained(group, 5, **options), trained(group, 5, param_wire=FP8, **options)

    network = {"network": Network(nodes=2, ranks_per_node=2), "clock": "virtual"} if options.get("strategy") else {}
    results = launch(on_rank, 4, **network).results
    for (losses, plain), (narrow, weights) in results:
        assert narrow[-1] == pytest.approx(losses[-1], rel=2e-2) and narrow[-1] < narrow[0] - 0.5 and narrow != losses
        off, way = (torch.cat([(w[name] - x).abs().flatten() for name, x in plain.items()]) for w in (weights, start))
        assert off.mean() < 0.15 * way.mean()
        assert all(torch.equal(x, results[0][1][1][name]) for name, x in weights.items())


def test_what_cannot_be_is_refused_on_every_rank():
    def on_rank(group):
        with pytest.raises(RefusedError, match="param_wire='fp8': a Codec of labkit.optim.precision, or None"):
            FullyShard(GPT(CONFIG), group, param_wire="fp8")
        with pytest.raises(RefusedError, match="options.*E5M2"):
            FullyShard(GPT(CONFIG), group, param_wire=Codec("E5M2") if group.rank else FP8)
        with pytest.raises(RefusedError, match="options.*None"):
            FullyShard(GPT(CONFIG), group, param_wire=None if group.rank else FP8)
        return True

    assert launch(on_rank, 3, transport="local").results == [True] * 3
