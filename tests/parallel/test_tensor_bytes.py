"""A whole tensor-parallel GPT sends what `labkit.cost` says, rank by rank and to the byte."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import labkit
from labkit import cost
from labkit.models import GPTConfig
from labkit.parallel.tensor.gpt import TensorParallelGPT

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=12, layers=3, heads=4, width=32, vocab=37)
BATCH, POSITIONS = 2, 11
WAYS = {1: (False, False), 2: (True, True), 3: (True, False)}  # step: (sequence, gather_again)


def each_way(group: labkit.Group) -> None:
    """One forward and backward for each of `WAYS`; building the models belongs to no step."""
    drawn = torch.randint(CONFIG.vocab, (2, BATCH, POSITIONS), generator=torch.Generator().manual_seed(0))
    models = {
        step: TensorParallelGPT(CONFIG, group, sequence=sequence, gather_again=again, algorithm="ring")
        for step, (sequence, again) in WAYS.items()
    }
    for step, model in models.items():
        group.step(step)
        model(*drawn).backward()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_bytes_and_collectives_of_a_step(size):
    trace = labkit.launch(each_way, size, transport="local").trace
    for step, (sequence, again) in WAYS.items():
        sent = [sum(m.nbytes for m in trace.sends if m.step == step and m.src == rank) for rank in range(size)]
        assert sent == cost.tensor_parallel_model_bytes_by_rank(
            BATCH, POSITIONS, CONFIG.width, CONFIG.layers, size, positions=CONFIG.context, sequence_parallel=sequence,
            gather_again=again,
        )  # fmt: skip
        for rank in range(size):
            calls = Counter(c.name for c in trace.collectives() if c.step == step and c.rank == rank)
            layers = cost.tensor_parallel_calls(CONFIG.layers, sequence_parallel=sequence, gather_again=again)
            shared = CONFIG.layers + 1 if sequence else 0  # gradients of what every rank holds
            assert calls["all_reduce"] == layers.all_reduce + (0 if sequence else 2) + 2 + shared
            assert calls["all_gather"] == layers.all_gather + (2 + again if sequence else 0)
            assert calls["reduce_scatter"] == layers.reduce_scatter + (2 if sequence else 0)
