"""Tensor parallelism of labkit and of `torch.distributed.tensor.parallel`: forward and backward of the same weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import labkit
from labkit.models import GPT, GPTConfig, next_token_loss

from .in_turn import Step, in_turn, row

CONFIG = GPTConfig(context=64, layers=4, heads=8, width=256, tied=False)
# PyTorch keeps what sequence parallelism gathers until the backward pass; labkit gathers it again unless told so.
KINDS = ("TP layers", "TP+SP layers", "TP+SP layers gathered once", "TP GPT")


def cell(kind: str, size: int, batch: int, pairs: int, transport: str) -> dict[str, Any]:
    """One row."""
    run = labkit.launch(compare, size, kind, batch, pairs, transport=transport, timeout=300)
    return row(run.results, ranks=size, batch=batch)


def compare(group: labkit.Group, kind: str, batch: int, pairs: int) -> Any:
    """Both models on this rank, step after step."""
    if kind == "TP GPT":
        steps = labkit_gpt(group, batch), torch_gpt(group, batch)
    else:
        sequence, again = "SP" in kind, "once" not in kind
        steps = labkit_layers(group, batch, sequence, again), torch_layers(group, batch, sequence)
    return in_turn(group, steps, pairs)


def tokens(batch: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, the same on every rank."""
    drawn = torch.randint(CONFIG.vocab, (batch, CONFIG.context + 1), generator=torch.Generator().manual_seed(1))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def activations(batch: int, group: labkit.Group, sequence: bool) -> Tensor:
    """What the first layer reads: the same on every rank, or with `sequence` this rank's positions of it."""
    x = torch.randn(batch, CONFIG.context, CONFIG.width, generator=torch.Generator().manual_seed(2))
    return x.tensor_split(group.size, 1)[group.rank].contiguous() if sequence else x


def through(model: nn.Module, layers: Any, x: Tensor, *more: Any) -> Step:
    """A step: the layers one after the other, the mean square of what comes out, and back to the input."""

    def step() -> float | None:
        model.zero_grad()
        y = x.clone().requires_grad_()
        inside = y
        for layer in layers:
            inside = layer(inside, *more)
        loss = inside.square().mean()
        loss.backward()
        return float(loss.detach())

    return step


def labkit_layers(group: labkit.Group, batch: int, sequence: bool, again: bool) -> Step:
    from labkit.parallel.tensor.gpt import TensorParallelGPT

    model = TensorParallelGPT(CONFIG, group, sequence=sequence, gather_again=again)
    return through(model, model.blocks, activations(batch, group, sequence), CONFIG.context)


def torch_layers(group: labkit.Group, batch: int, sequence: bool) -> Step:
    model = GPT(CONFIG)
    parallelize(model, group.size, sequence)
    return through(model, model.blocks, activations(batch, group, sequence))


def labkit_gpt(group: labkit.Group, batch: int) -> Step:
    from labkit.parallel.tensor.gpt import TensorParallelGPT

    model = TensorParallelGPT(CONFIG, group)
    inputs, targets = tokens(batch)

    def step() -> float:
        model.zero_grad()
        loss = model(inputs, targets)
        loss.backward()
        return float(loss.detach())

    return step


def torch_gpt(group: labkit.Group, batch: int) -> Step:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

    model = GPT(CONFIG)
    mesh = parallelize(model, group.size, False)
    parallelize_module(model, mesh, {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        "scores": ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False),
    })  # fmt: skip
    inputs, targets = tokens(batch)

    def step() -> float:
        model.zero_grad()
        with loss_parallel():
            loss = next_token_loss(model(inputs), targets)
            loss.backward()
        return float(loss.detach())

    return step


def parallelize(model: GPT, size: int, sequence: bool) -> Any:
    """Cut the layers of `model` by PyTorch's plan for a transformer; returns the mesh.

    It cuts a matrix into equal stretches of rows, so those of `qkv` are sorted first: each rank's heads of queries,
    keys and values side by side.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size,))
    outside = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=outside),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=outside),
    }
    if sequence:
        whole: Any = {"input_layouts": (outside,), "desired_input_layouts": (Replicate(),)}
        plan |= {"norm1": SequenceParallel(use_local_output=True), "norm2": SequenceParallel(use_local_output=True),
                 "attention": PrepareModuleInput(**whole), "feed_forward": PrepareModuleInput(**whole)}  # fmt: skip
    for block in model.blocks:
        attention: Any = block.attention
        order = torch.cat([
            part.tensor_split(size)[rank]
            for rank in range(size)
            for part in torch.arange(sum(CONFIG.qkv_sections)).split(CONFIG.qkv_sections)
        ])  # fmt: skip
        with torch.no_grad():
            for p in (attention.qkv.weight, attention.qkv.bias):
                p.copy_(p[order])
        attention.heads //= size
        attention.groups //= size
        parallelize_module(block, mesh, plan)
    return mesh
