"""A step of a hybrid run sends what `labkit.cost` says, to the byte on every rank; where it is sent shows in time."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from slices import few

import labkit
from labkit import Link, Network, cost
from labkit.models import GPTConfig
from labkit.models.moe import MoEConfig
from labkit.parallel import Hybrid, HybridConfig

pytestmark = pytest.mark.ranks

MODEL = GPTConfig(
    vocab=13, context=12, layers=4, heads=8, width=16, expansion=2
)  # 13 ids, 11 positions: nothing divides
BATCH, LENGTH = 8, 11
TABLE = [
    HybridConfig(dp=2, data="zero1", tp=2, pp=2, microbatches=2, sequence_parallel=True),
    HybridConfig(dp=2, data="hsdp", shard=1, pp=2, cp=2, microbatches=2),
    HybridConfig(dp=2, cp=2, tp=2, sequence_parallel=True, order=("cp", "tp", "dp", "pp")),
    HybridConfig(dp=2, data="fsdp", pp=2, tp=2, microbatches=2, sequence_parallel=True),
    HybridConfig(dp=4, data="hsdp", shard=2, cp=2, microbatches=2, layout="striped"),
    HybridConfig(cp=4, tp=2, data="zero3", ulysses=2),
    HybridConfig(dp=4, data="zero2", tp=2, microbatches=2),
    HybridConfig(pp=4, tp=2, schedule="gpipe", microbatches=4, order=("tp", "dp", "pp", "cp")),
    HybridConfig(dp=2, data="fsdp", pp=2, cp=2, schedule="interleaved", chunks=2, microbatches=2),
    HybridConfig(dp=8),
]  # fmt: skip
MODELS = {
    "dense": MODEL, "untied": dataclasses.replace(MODEL, tied=False, kv_heads=4),
    "rotary": dataclasses.replace(MODEL, rotary=True),
}  # fmt: skip


def two_steps(group, model, config, dtype, max_norm):
    group.step(0)  # the world is kept, and the last step of the run before was 2
    hybrid = Hybrid(group, model, config, dtype=dtype)
    drawn = torch.randint(13, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    for step in (1, 2):
        group.step(step)
        hybrid.step(drawn[:, :-1], drawn[:, 1:], max_norm=max_norm)


@pytest.mark.parametrize("config", few(TABLE, keep=1), ids=range(len(TABLE)))
def test_bytes_of_a_step(worlds, config):
    n = TABLE.index(config)
    model, dtype, max_norm = (
        list(MODELS.values())[n % 3],
        (torch.float32, torch.float64)[n % 2],
        (None, 1.0)[n // 2 % 2],
    )
    config = dataclasses.replace(config, algorithm="ring")
    trace = worlds(8).run(two_steps, model, config, dtype, max_norm).trace
    sent = [sum(m.nbytes for m in trace.sends if m.step == 2 and m.src == rank) for rank in range(8)]
    said = cost.hybrid_bytes_by_rank(model, config, BATCH, LENGTH, itemsize=dtype.itemsize, clip=max_norm is not None)
    assert sent == [one.total for one in said]


def sent(group, config):
    """Bytes of the second step, by this rank."""
    two_steps(group, MODEL, config, torch.float32, None)


def test_a_backward_in_two_parts_sends_no_more(worlds):
    """The part that makes the weights' gradients does not sum the inputs' again (without sequence parallelism)."""
    found = []
    for schedule in ("one_f_one_b", "zb_h1"):
        trace = worlds(4).run(sent, HybridConfig(pp=2, tp=2, microbatches=4, schedule=schedule)).trace
        found.append([sum(m.nbytes for m in trace.sends if m.step == 2 and m.src == rank) for rank in range(4)])
    assert found[0] == found[1]


def test_what_has_no_closed_form_is_said():
    moe = dataclasses.replace(MODEL, moe=MoEConfig(4))
    for model, config, words in (
        (moe, HybridConfig(), "depends on the router"),
        (MODEL, HybridConfig(pp=2, schedule="zb_h1"), "two parts"),
        (MODEL, HybridConfig(dp=3), "batch=8 must divide by dp times microbatches, 3"),
    ):
        with pytest.raises(ValueError, match=words):
            cost.hybrid_bytes_by_rank(model, config, 8, 11)


def seconds(group, config):
    """Of the second step on the virtual clock; messages only."""
    hybrid = Hybrid(group, MODEL, config)
    drawn = torch.randint(13, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        begun = group.context.clock.now()
        hybrid.step(drawn[:, :-1], drawn[:, 1:])
    return (group.context.clock.now() - begun) / 1e9


def test_tensor_parallelism_across_the_slow_link_is_slower_than_inside_a_node():
    network = Network(2, 2, Link(10e9, 1e-6), Link(1e9, 1e-5))
    times = {}
    for order in (("dp", "pp", "cp", "tp"), ("tp", "pp", "cp", "dp")):
        config = HybridConfig(dp=2, tp=2, order=order, algorithm="ring")
        run = labkit.launch(seconds, 4, config, clock="virtual", network=network, transport="local")
        times[order[0]] = max(run.results)
        nodes = {m.src // 2 != m.dst // 2 for m in run.trace.sends if m.nbytes == BATCH // 2 * LENGTH * 16 * 4 // 2}
        assert nodes == {order[0] == "tp"}  # half an activation of tensor parallelism, as the ring sends it
    assert times["tp"] > 2 * times["dp"]
