"""What ZeRO refuses, and in which words."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from slices import SLOW_WIRES
from torch import nn

import labkit
from labkit.models import GPT, MLP, GPTConfig, MLPConfig
from labkit.optim import LARS
from labkit.parallel import AdamW, ZeRO1, ZeRO2, ZeRO3

pytestmark = pytest.mark.ranks

STAGES = [ZeRO1, ZeRO2, ZeRO3]


def mlp(*widths):
    return MLP(MLPConfig(widths=widths or (8, 8, 4)))


def refused(work, size=2):
    with pytest.raises(labkit.RankFailed) as caught:
        labkit.launch(work, size, timeout=10)
    return str(caught.value)


@pytest.mark.parametrize("stage", STAGES)
def test_a_nan_is_named_by_rank_and_parameter_before_it_spreads(stage):
    def work(group, check):
        zero = stage(mlp(), group, AdamW(), "single", check_nan=check)
        out = zero(torch.ones(2, 8))
        if group.rank == 1:
            out.register_hook(lambda g: g * torch.tensor([1.0, float("nan"), 1.0, 1.0]))
        out.sum().backward()
        zero.step()
        return torch.stack([p.isnan().any() for p in zero.training_state()["parameters"].values()]).any()

    said = refused(lambda group: work(group, True))
    assert "rank 1: " in said and "the gradient of 'layers.1." in said and "NaN or infinite" in said
    assert labkit.launch(lambda group: work(group, False), 2).results == [True, True]


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_without_gradients_says_which_and_what_to_do(stage):
    assert "no gradient for 'layers." in refused(lambda group: stage(mlp(), group).step())

    def after_zero_grad(group):
        zero = stage(mlp(), group)
        zero(torch.ones(2, 8)).sum().backward()
        zero.zero_grad()
        zero.step()

    said = refused(after_zero_grad)
    assert "and 1 others since zero_grad(). Call backward() before step()" in said


def test_backward_after_the_gradients_were_reduced_needs_zero_grad():
    def work(group):
        zero = ZeRO1(mlp(), group)
        for _ in range(2):
            zero(torch.ones(2, 8)).sum().backward()
            zero.step()

    assert "call zero_grad() first" in refused(work)


@pytest.mark.parametrize("stage", STAGES)
def test_models_that_differ_between_ranks_are_refused_on_every_rank(stage):
    def work(group):
        try:
            stage(mlp(8, 8 + group.rank, 4), group)
        except labkit.RefusedError as error:
            return str(error)

    for said in labkit.launch(work, 3).results:
        assert "layers.0.weight" in said and "rank 0" in said


def test_arguments_that_cannot_work():
    def says(words, make):
        def work(group):
            try:
                make(group)
            except labkit.RefusedError as error:
                return str(error)

        (said,) = labkit.launch(work, 1).results
        assert said is not None and words in said, said

    two_kinds = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()])
    says("precision='half': choose 'mixed'", lambda g: ZeRO1(mlp(), g, precision="half"))
    ready = torch.optim.SGD(mlp().parameters(), lr=0.1)
    says("pass settings, as labkit.parallel.AdamW", lambda g: ZeRO2(mlp(), g, ready))
    says("LBFGS cannot train pieces of parameters", lambda g: ZeRO1(mlp(), g, torch.optim.LBFGS))
    says("Adafactor keeps 'row_var' for each parameter", lambda g: ZeRO3(mlp(), g, torch.optim.Adafactor))
    says("LARS does not treat every element by itself", lambda g: ZeRO3(mlp(), g, partial(LARS, lr=0.1)))
    says("works with labkit.parallel.AdamW", lambda g: ZeRO3(mlp(), g, torch.optim.Adam, offload=True))
    says("'momentum'", lambda g: ZeRO1(mlp(), g, param_groups=[{"params": [], "momentum": 0.9}]))
    model = mlp()
    twice = [{"params": list(model.parameters())}, {"params": [model.layers[0].bias]}]
    says("'layers.0.bias' is in two of param_groups (0 and 1)", lambda g: ZeRO1(model, g, param_groups=twice))
    says("no parameter of this module", lambda g: ZeRO1(mlp(), g, param_groups=twice[1:]))
    says("each is a dict", lambda g: ZeRO1(mlp(), g, param_groups=list(mlp().parameters())))
    says("one floating dtype is needed", lambda g: ZeRO3(two_kinds, g))
    says("one floating dtype is needed", lambda g: ZeRO3(nn.Identity(), g))
    says("bucket_bytes=0", lambda g: ZeRO2(mlp(), g, bucket_bytes=0))
    says("no submodule 'layer.0'", lambda g: ZeRO3(mlp(), g, blocks=["layer.0"]))
    says("lies inside another", lambda g: ZeRO3(GPT(GPTConfig()), g, blocks=["blocks.0", "blocks.0.norm1"]))
    says("kind is 'full' or 'shard'", lambda g: ZeRO1(mlp(), g).training_state("sharded"))
    says("AdamW(lr=-1)", lambda g: AdamW(lr=-1))
    says("AdamW(betas=(0.9, 1.0))", lambda g: AdamW(betas=(0.9, 1.0)))


class Forked(nn.Module):
    """Two blocks of equal shapes; the caller says in which order they run."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2))

    def forward(self, x, order):
        for block in order:
            x = self.blocks[block](x)
        return x


@pytest.mark.parametrize("order", [lambda rank: [rank], lambda rank: [rank, 1 - rank]], ids=["other", "swapped"])
@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_ranks_that_gather_different_blocks_of_equal_shapes_are_refused(order, transport):
    def work(group):
        zero = ZeRO3(Forked(), group, AdamW(), "single", find_unused_parameters=True)
        zero(torch.ones(2, 3, 8), order(group.rank)).sum().backward()

    with pytest.raises(labkit.RankFailed) as caught:
        labkit.launch(work, 2, transport=transport, timeout=20)
    said = str(caught.value)
    assert "rank 0 called all_gather of 'blocks.0'" in said and "rank 1 called all_gather of 'blocks.1'" in said


def test_a_parameter_resized_after_wrapping_is_refused():
    def work(group):
        zero = ZeRO2(mlp(), group, AdamW(), "single")
        zero.module.layers[1].weight.data = torch.zeros(5, 8)
        zero.module.layers[1].bias.data = torch.zeros(5)
        zero(torch.ones(2, 8)).sum().backward()

    assert "change a model first, then wrap it" in refused(work)
