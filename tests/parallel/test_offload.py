"""The optimizer's state in host memory: the same training, and every copied byte on the account."""

from __future__ import annotations

import pytest
import torch

import labkit
from labkit.cost.parallel.zero import zero_state_bytes_by_rank
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import AdamW, ZeRO1, ZeRO2, ZeRO3

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=16, width=32, layers=2)
STEPS = 3


def test_the_same_weights_with_12_of_16_bytes_in_host_memory_and_4_bytes_an_element_and_step_copied():
    def work(group, stage, precision, offload):
        zero = (ZeRO1, ZeRO2, ZeRO3)[stage - 1](GPT(CONFIG), group, AdamW(lr=1e-2), precision, offload=offload)
        for step in range(STEPS):
            zero.zero_grad()
            x = torch.randint(0, 256, (6, 17), generator=torch.Generator().manual_seed(step))
            x = x.tensor_split(group.size)[group.rank]
            next_token_loss(zero(x[:, :-1]), x[:, 1:]).backward()
            zero.step()
        own = sum(unit.flat.counts[group.rank] for unit in zero.units)
        return zero.training_state(), zero.state_bytes(), zero.host_bytes(), zero.copied_bytes(), own, [
            unit.flat.numel for unit in zero.units]  # fmt: skip

    for size, stage, precision in [
        (1, 1, "mixed"),
        (2, 1, "single"),
        (3, 2, "mixed"),
        (3, 3, "single"),
        (2, 3, "mixed"),
    ]:
        here = labkit.launch(work, size, stage, precision, False)
        there = labkit.launch(work, size, stage, precision, True)
        formula = zero_state_bytes_by_rank(here.results[0][5], size, stage, precision)
        each = 2 if precision == "mixed" else 4
        for rank, (a, b) in enumerate(zip(here.results, there.results, strict=True)):
            assert all(torch.equal(a[0]["parameters"][n], b[0]["parameters"][n]) for n in a[0]["parameters"])
            assert a[1].total == formula[rank] and a[2] == 0 and a[3] == (0, 0)
            own = a[4]
            assert b[1].optimizer == 0 and b[2] == 12 * own  # in single precision there is a second master
            assert b[1].total + b[2] == formula[rank] + (4 * own if precision == "single" else 0)
            assert b[3].to_host == b[3].to_device == STEPS * each * own


def test_a_resident_sample_on_a_cpu_shows_host_and_device_together():
    def work(group):
        zero = ZeRO3(GPT(CONFIG), group, precision="mixed", offload=True)
        with group.span("look"):
            pass
        return zero.state_bytes().total + zero.host_bytes()

    run = labkit.launch(work, 2, memory="resident")
    assert run.trace.peak_bytes() == run.results
