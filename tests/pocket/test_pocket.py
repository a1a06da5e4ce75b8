"""The reading editions are short, and equal to the full library: the same weights, and the same bytes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import labkit
from labkit import parallel, pocket
from labkit.models import MLP, GPTConfig, MLPConfig
from labkit.models.gpt import Attention, FeedForward
from labkit.parallel.tensor.attention import TensorParallelAttention
from labkit.parallel.tensor.feed_forward import TensorParallelFeedForward
from labkit.pocket import data_parallel, tensor_parallel, zero_1, zero_2

FILES = sorted(p for p in Path(pocket.__file__).parent.glob("*.py") if p.stem != "__init__")
ADAMW = {"lr": 1e-2, "weight_decay": 0.1, "eps": 0.1}  # a large eps: without it AdamW would not see a factor


def train(group: Any, wrap: Any, steps: int = 3) -> list[torch.Tensor]:
    """Some steps on this rank's own data; the weights. wrap(module, group): (what is called, what steps)."""
    module = MLP(MLPConfig((10, 33, 7)), seed=group.rank)  # the ranks begin with different weights
    model, optimizer = wrap(module, group)
    generator = torch.Generator().manual_seed(group.rank)
    for step in range(steps):
        group.step(step + 1)
        x = torch.randn(5, 10, generator=generator)
        F.cross_entropy(model(x), torch.randint(7, (5,), generator=generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in module.parameters()]


def bytes_of_steps(run: labkit.Run) -> list[list[int]]:
    """Bytes that each rank sent in each step but what came before them."""
    sent = [[0] * run.trace.world_size for _ in range(3)]
    for m in run.trace.sends:
        if m.step > 0:
            sent[m.step - 1][m.src] += int(m.nbytes)
    return sent


def ddp(wrapper: Any, **options: Any) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        model = wrapper(module, group, bucket_bytes=500, **options)
        return model, torch.optim.SGD(module.parameters(), lr=0.1)  # Adam would not see a factor

    return wrap


def zero(wrapper: Any, **options: Any) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        return module, wrapper(module, group, **ADAMW, **options)

    return wrap


def full_zero(wrapper: Any, bucket_bytes: int) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        model = wrapper(module, group, parallel.AdamW(**ADAMW), bucket_bytes=bucket_bytes)
        return model, model

    return wrap


SAME = {
    "data_parallel": (
        ddp(data_parallel.DataParallel),
        ddp(parallel.DataParallel, first_bucket_bytes=500, rebuild=False, broadcast_buffers=False),
    ),
    "zero_1": (zero(zero_1.ZeRO1), full_zero(parallel.ZeRO1, 1 << 20)),
    "zero_2": (zero(zero_2.ZeRO2, bucket_bytes=500), full_zero(parallel.ZeRO2, 500)),
}  # fmt: skip


def layers(group: Any, made: Any, steps: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Some steps of a layer that is cut; what it then gives for an input, and the gradient of that input."""
    torch.manual_seed(0)  # the whole layer is the same on every rank
    layer = made(group)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(steps):
        group.step(step + 1)
        x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(step)).requires_grad_()
        layer(x).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
    group.step(0)
    with torch.no_grad():
        return layer(torch.ones(1, 3, 24)), x.grad


CONFIG = GPTConfig(width=24, heads=6)
CUT = {
    "mlp": (
        lambda group: tensor_parallel.TensorParallelMLP(FeedForward(CONFIG), group),
        lambda group: TensorParallelFeedForward(CONFIG, group),
    ),
    "attention": (
        lambda group: tensor_parallel.TensorParallelAttention(Attention(CONFIG), group),
        lambda group: TensorParallelAttention(CONFIG, group),
    ),
}


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1, 2])
@pytest.mark.parametrize("name", CUT)
def test_a_layer_that_is_cut_is_equal_to_the_full_one_in_what_it_learns_and_in_bytes(name: str, size: int) -> None:
    ours, full = (labkit.launch(layers, size, made, transport="local") for made in CUT[name])
    whole = labkit.launch(layers, 1, CUT[name][1], transport="local").results[0]
    for mine, theirs in zip(ours.results, full.results, strict=True):
        for a, b, c in zip(mine, theirs, whole, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-6) and torch.allclose(a, c, rtol=0, atol=1e-5)
    assert bytes_of_steps(ours) == bytes_of_steps(full) and (size == 1 or min(map(min, bytes_of_steps(ours))) > 0)


def test_every_edition_is_compared_and_fits_on_two_screens() -> None:
    assert [path.stem for path in FILES] == sorted([*SAME, "tensor_parallel"])
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 150, path.name
        places = {n.module.partition(".")[0] for n in ast.walk(ast.parse(path.read_text()))
                  if isinstance(n, ast.ImportFrom) and n.module}  # fmt: skip
        assert places <= {"__future__", "typing", "torch", "labkit", "collections"}
        assert "labkit.parallel import" not in path.read_text()


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1, 2])
@pytest.mark.parametrize("name", SAME)
def test_an_edition_is_equal_to_the_full_one_in_weights_and_bytes(name: str, size: int) -> None:
    ours, full = (labkit.launch(train, size, wrap, transport="local") for wrap in SAME[name])
    for mine, theirs in zip(ours.results, full.results, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-6)
    assert all(torch.equal(a, b) for r in ours.results for a, b in zip(r, ours.results[0], strict=True))
    assert bytes_of_steps(ours) == bytes_of_steps(full) and (size == 1 or min(map(min, bytes_of_steps(ours))) > 0)
