"""Every legal combination of axes is one device: losses, norms and weights over steps of AdamW, in float64."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from slices import LONG, few
from torch import nn

from labkit.models import GPT, GPTConfig
from labkit.models.gpt import next_token_loss
from labkit.models.moe import MoE, MoEConfig, losses_of
from labkit.parallel import AdamW, Hybrid, HybridConfig
from labkit.parallel.hybrid.batch import examples_of
from labkit.parallel.hybrid.checks import check
from labkit.parallel.hybrid.config import AXES, DATA, SCHEDULES
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

DENSE = GPTConfig(vocab=13, context=40, layers=4, heads=4, width=16, expansion=2)
MODELS = {
    "dense": DENSE,
    "untied": dataclasses.replace(DENSE, tied=False, kv_heads=2),
    "rotary": dataclasses.replace(DENSE, rotary=True),
    "moe": dataclasses.replace(DENSE, moe=MoEConfig(4, 2, hidden=0.5, shared=0.5, z=1e-3)),
    "capacity": dataclasses.replace(DENSE, moe=MoEConfig(4, 2, hidden=0.5, capacity=1.1)),
    "bias": dataclasses.replace(DENSE, tied=False, moe=MoEConfig(4, 1, hidden=1, scores="sigmoid", bias_rate=1e-2)),
}
STEPS, CLIP = 3, 0.3
SETTINGS = {"lr": 1e-2, "eps": 1e-4}  # so that rounding is not blown up where a gradient is about 0


def batch_of(config):
    """Examples: without a pipeline some ranks have one more than others."""
    pieces = config.dp * config.microbatches
    return pieces * max(1, 8 // pieces) if config.pp > 1 else max(10, pieces + 2)


def length_of(config):
    """Positions: two for each rank of cp, which zigzag needs, and 11 or more, by which little divides."""
    return max(11, 2 * config.cp + 3)


def batches(batch, length):
    for step in range(STEPS):
        drawn = torch.randint(13, (batch, length + 1), generator=torch.Generator().manual_seed(step))
        yield drawn[:, :-1], drawn[:, 1:]


@functools.cache
def on_one_device(model, batch, length, dp=1, microbatches=1):
    """(losses, norms, parameters and buffers) of the plain model, which takes the batch in these pieces."""
    gpt = GPT(model, seed=5).double()
    adam, losses, norms = torch.optim.AdamW(gpt.parameters(), **SETTINGS), [], []
    routers = [layer for layer in gpt.modules() if isinstance(layer, MoE)]
    for inputs, targets in batches(batch, length):
        adam.zero_grad()
        total, loads = 0.0, [0] * len(routers)
        for piece in examples_of(batch, dp, microbatches):
            rows = [i for some in piece for i in some]
            loss = next_token_loss(gpt(inputs[rows]), targets[rows]) + losses_of(gpt)
            (len(rows) / batch * loss).backward()
            total += len(rows) / batch * loss.item()
            loads = [load + layer.routing.load_e for load, layer in zip(loads, routers, strict=True)]
        losses.append(total)
        norms.append(float(nn.utils.clip_grad_norm_(gpt.parameters(), CLIP)))
        adam.step()
        for layer, load in zip(routers, loads, strict=True):
            layer.router.rebalance(load)
    state = dict(gpt.named_parameters()) | dict(gpt.named_buffers())
    return losses, norms, {name: x.detach() for name, x in state.items()}


def train(group, model, config):
    """The same of a hybrid run."""
    hybrid = Hybrid(group, model, config, seed=5, optimizer=AdamW(**SETTINGS), dtype=torch.float64)
    losses, norms = [], []
    for inputs, targets in batches(batch_of(config), length_of(config)):
        hybrid.zero_grad()
        losses.append(hybrid.forward_backward(inputs, targets).item())
        norms.append(hybrid.clip_grad_norm_(CLIP).item())
        hybrid.optimizer_step()
    state = hybrid.state_dict()
    return losses, norms, state["parameters"] | state["buffers"]


def furthest(got, wanted):
    assert got.keys() == wanted.keys()
    return max(float((got[name] - wanted[name]).abs().max()) for name in wanted)


def compare(world, model, config):
    losses, norms, weights = on_one_device(model, batch_of(config), length_of(config), *(
        (config.dp, config.microbatches) if model.moe else ()))  # fmt: skip
    assert min(norms) > CLIP  # so that a wrong norm shows in the weights
    for got in world.run(train, model, config).results:
        assert got[0] == pytest.approx(losses, rel=1e-9, abs=1e-9)
        assert got[1] == pytest.approx(norms, rel=1e-9, abs=1e-9)
        assert furthest(got[2], weights) < 1e-9


TABLE = [
    ("dense", HybridConfig(dp=2, data="zero1", pp=2, tp=2, sequence_parallel=True, microbatches=4)),
    ("moe", HybridConfig(dp=4, data="hsdp", shard=2, tp=2, ep=2, sequence_parallel=True)),
    ("dense", HybridConfig(dp=2, pp=2, cp=2, microbatches=2)),
    ("bias", HybridConfig(dp=2, data="fsdp", pp=2, tp=2, ep=2, microbatches=2)),
    ("rotary", HybridConfig(dp=2, data="zero3", cp=2, tp=2)),
    ("capacity", HybridConfig(dp=4, data="zero2", tp=2, ep=2)),
    ("moe", HybridConfig(dp=2, data="zero1", pp=2, cp=2, ep=2, microbatches=2, layout="striped")),
    ("untied", HybridConfig(dp=2, data="fsdp", cp=2, tp=2, sequence_parallel=True, microbatches=2)),
    ("dense", HybridConfig(dp=2, data="hsdp", shard=1, pp=2, cp=2, ulysses=2, microbatches=2)),
    ("untied", HybridConfig(tp=2, pp=2, dp=2, schedule="interleaved", chunks=2, microbatches=4)),
    ("dense", HybridConfig(tp=2, pp=2, dp=2, data="zero1", schedule="zb_h1", microbatches=4)),
    ("dense", HybridConfig(tp=2, pp=2, dp=2, data="zero1", schedule="zb_v", chunks=2, microbatches=4)),
    ("moe", HybridConfig(tp=2, pp=2, dp=2, ep=2, schedule="zb_h2", sequence_parallel=True, microbatches=4)),
    ("moe", HybridConfig(dp=4, ep=2, cp=2)),
    ("moe", HybridConfig(dp=8, data="zero3", ep=4)),
    ("dense", HybridConfig(cp=4, tp=2, data="fsdp", ulysses=2, sequence_parallel=True)),
    ("dense", HybridConfig(pp=4, tp=2, schedule="gpipe", microbatches=4)),
    ("dense", HybridConfig(dp=8, data="zero2")),
    ("dense", HybridConfig(dp=2, tp=4, sequence_parallel=True, order=("tp", "dp", "cp", "pp"))),
    ("capacity", HybridConfig(dp=4, data="fsdp", ep=4, pp=2, microbatches=2)),
    ("dense", HybridConfig(dp=2, data="fsdp", pp=2, tp=2, sequence_parallel=True, microbatches=2)),
    ("dense", HybridConfig(dp=2, data="fsdp", pp=2, cp=2, schedule="interleaved", chunks=2, microbatches=2)),
]  # fmt: skip


def words(value):
    if isinstance(value, str):
        return value
    default = HybridConfig()
    return " ".join(f"{f.name}={getattr(value, f.name)}" for f in dataclasses.fields(value)
                    if getattr(value, f.name) != getattr(default, f.name))  # fmt: skip


@pytest.mark.parametrize(("model", "config"), few(TABLE, keep=1), ids=words)
def test_eight_ranks_are_one_device(worlds, model, config):
    compare(worlds(8), MODELS[model], config)


@st.composite
def combinations(draw, size):
    """A model and a legal configuration of `size` ranks: sizes, then everything that can be chosen, and what is not
    refused."""
    sizes = dict.fromkeys(AXES, 1)
    for _ in range(size.bit_length() - 1):
        sizes[draw(st.sampled_from(AXES))] *= 2
    name, data = draw(st.sampled_from(list(MODELS))), draw(st.sampled_from(DATA))
    powers = st.sampled_from([1, 2, 4])
    config = HybridConfig(
        **sizes, data=data, shard=draw(powers) if data == "hsdp" else None, ep=draw(powers),
        sequence_parallel=draw(st.booleans()), schedule=draw(st.sampled_from([*SCHEDULES, "interleaved"])),
        chunks=draw(st.sampled_from([1, 2])), microbatches=draw(st.sampled_from([1, 2, 3, 4])),
        layout=draw(st.sampled_from(["zigzag", "striped", "contiguous"])), ulysses=draw(powers),
        order=tuple(draw(st.permutations(AXES))),
    )  # fmt: skip
    try:
        check(MODELS[name], config, size)
    except RefusedError:
        assume(False)
    return name, config


@pytest.mark.timeout(1800)
@settings(max_examples=60 if LONG else 2)
@given(combinations(8))
def test_any_combination_on_eight_ranks(worlds, drawn):
    compare(worlds(8), MODELS[drawn[0]], drawn[1])


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=30)
@given(combinations(16))
def test_any_combination_on_sixteen_ranks(worlds, drawn):
    compare(worlds(16), MODELS[drawn[0]], drawn[1])
