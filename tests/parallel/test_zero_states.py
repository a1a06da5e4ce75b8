"""State dicts of ZeRO: whole and in shards, at another world size and stage, and those that do not fit."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from slices import few
from torch import nn

import labkit
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import AdamW, ZeRO1, ZeRO2, ZeRO3

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=16, width=32, layers=2)
STAGES = {1: ZeRO1, 2: ZeRO2, 3: ZeRO3}


class Model(nn.Module):
    """A GPT with a buffer and a frozen weight."""

    def __init__(self, config=CONFIG):
        super().__init__()
        self.gpt = GPT(config)
        self.gpt.positions.weight.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.gpt(x)


def wrap(group, stage, precision="mixed", config=CONFIG):
    small = {} if stage == 3 else {"bucket_bytes": 20_000}
    return STAGES[stage](Model(config), group, AdamW(lr=1e-2, eps=1e-5), precision, **small)


def train(group, zero, steps):
    for step in steps:
        zero.zero_grad()
        x = torch.randint(0, 256, (12, 17), generator=torch.Generator().manual_seed(step))
        x = x.tensor_split(group.size)[group.rank]
        next_token_loss(zero(x[:, :-1]), x[:, 1:]).backward()
        zero.step()


def begin(group, stage, precision="single"):
    zero = wrap(group, stage, precision)
    train(group, zero, range(2))
    return zero.training_state(), zero.training_state("shard")


def go_on(group, stage, state, precision="single"):
    zero = wrap(group, stage, precision)
    zero.load_training_state(state)
    loaded = zero.training_state()
    train(group, zero, range(2, 4))
    return loaded, zero.training_state()


def largest(a, b):
    return max(float((a["parameters"][n].double() - b["parameters"][n].double()).abs().max()) for n in b["parameters"])


@pytest.mark.parametrize(
    ("stage", "size", "then", "new_size"),
    few([(3, 2, 2, 3), (1, 3, 3, 2), (2, 2, 1, 4), (3, 4, 2, 1), (3, 2, 3, 3)], 2),
)
def test_training_goes_on_at_another_world_size_and_stage_from_either_kind(stage, size, then, new_size):
    def straight(group):
        zero = wrap(group, stage, "single")
        train(group, zero, range(4))
        return zero.training_state()

    expected = labkit.launch(straight, size).results[0]
    results = labkit.launch(begin, size, stage).results
    full, shards = results[0][0], [shard for _, shard in results]
    assert expected["steps"]["gpt.norm.weight"] == 4 and float(full["buffers"]["seen"]) == 2
    assert "gpt.positions.weight" not in full["momentum"]
    for state in (full, shards, shards[::-1]):
        for loaded, after in labkit.launch(go_on, new_size, then, state).results:
            for key in ("parameters", "momentum", "variance", "buffers"):
                assert loaded[key].keys() == full[key].keys()
                assert all(torch.equal(loaded[key][name], full[key][name]) for name in full[key])
            assert after["steps"] == expected["steps"] and float(after["buffers"]["seen"]) == 4
            assert largest(after, expected) <= 1e-5  # float32 sums in another order


def test_mixed_precision_keeps_the_master_and_one_full_dict_serves_single_precision_too():
    full, _ = labkit.launch(begin, 2, 2, "mixed").results[0]
    weights = full["parameters"]["gpt.tokens.weight"]
    assert weights.dtype == torch.float32 and not torch.equal(weights, weights.bfloat16().float())
    for precision in ("mixed", "single"):
        loaded, _ = labkit.launch(go_on, 3, 3, full, precision).results[2]
        assert torch.equal(loaded["parameters"]["gpt.tokens.weight"], weights)


@pytest.mark.parametrize("stage", STAGES)
def test_weights_come_and_go_as_the_plain_modules_state_dict(stage):
    saved = Model(CONFIG).state_dict()
    saved |= {key: torch.randn_like(x) for key, x in saved.items() if "blocks" in key}

    def work(group):
        zero = wrap(group, stage, "mixed")
        zero.load_state_dict(saved)
        found = zero.state_dict()
        y = zero(torch.zeros(1, 4, dtype=torch.long))
        try:
            zero.load_state_dict({key: x for key, x in saved.items() if key != "gpt.norm.bias" or group.rank == 0})
        except labkit.RefusedError as error:
            return found, y, str(error)

    plain = Model(CONFIG)
    plain.load_state_dict(saved)
    expected = plain.bfloat16()(torch.zeros(1, 4, dtype=torch.long)).float()
    for found, y, said in labkit.launch(work, 2).results:
        assert found.keys() == saved.keys()
        assert all(torch.equal(found[k], saved[k]) for k in saved if k not in ("seen", "gpt.positions.weight"))
        assert torch.equal(y, expected)
        assert "on rank 1" in said and "'gpt.norm.bias' is not there in it, and (32,) in this one" in said


def test_a_state_dict_that_does_not_fit_is_refused_on_every_rank_and_changes_nothing():
    full, _ = labkit.launch(begin, 1, 1, "mixed").results[0]
    shards = [shard for _, shard in labkit.launch(begin, 3, 3, "mixed").results]
    smaller = copy.deepcopy(full)
    smaller["parameters"]["gpt.norm.bias"] = torch.zeros(31)
    lacking = copy.deepcopy(full)
    del lacking["momentum"]["gpt.norm.bias"]
    more = copy.deepcopy(full)
    more["parameters"]["gpt.blocks.2.norm1.bias"] = torch.zeros(32)
    bad = [
        (smaller, r"'gpt.norm.bias' has shape \[31\] in the state dict and \[32\] in the model"),
        (lacking, "no momentum of 'gpt.norm.bias'"),
        (more, "has 'gpt.blocks.2.norm1.bias', which the model has not"),
        (shards[:2], r"shards of ranks \[0, 1\] of a world of 3"),
        ([shards[0], shards[1], shards[1]], r"shards of ranks \[0, 1, 1\] of a world of 3"),
        (shards[0], r"shards of ranks \[0\] of a world of 3"),
        ([full, full], "one full state dict, or a list of the shards"),
        ({"weights": 1}, "no state dict of ZeRO"),
        (7, "no state dict of ZeRO"),
    ]

    def work(group):
        zero, found = wrap(group, 3), []
        before = zero.training_state()
        for state, _ in bad:
            try:
                zero.load_training_state(state if group.rank == 1 else full)  # wrong on one rank only
            except labkit.RefusedError as error:
                found.append((str(error), largest(zero.training_state(), before)))
        return found

    for found in labkit.launch(work, 3).results:
        for (_, words), (said, moved) in zip(bad, found, strict=True):
            assert re.match(f"on rank 1: .*{words}", said), said
            assert moved == 0
