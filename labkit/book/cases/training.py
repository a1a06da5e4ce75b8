"""The training run that the case files are about: a small GPT, cut inside each replica, averaged across replicas.

Along "tp" the ranks of a replica share every layer; along "dp" replicas average their gradients; and all ranks together
add up the norm of the gradient, by which it is clipped. So a step has three kinds of collectives, in three groups.
"""

from __future__ import annotations

import time
from itertools import islice

import torch
from torch import Tensor

from labkit import collectives
from labkit.data import batches, text
from labkit.models import GPTConfig, next_token_loss
from labkit.parallel.mesh import Mesh
from labkit.parallel.tensor.gpt import TensorParallelGPT
from labkit.wire.group import Group

SEQUENCES = 2  # of a replica in a step
CLIP = 1.0
RATE = 0.1
LONG = 600.0  # seconds: longer than anybody looks


def training(
    group: Group, sizes: dict[str, int], steps: int, seed: int = 0, oddity: tuple[str, int, int] = ("", -1, -1)
) -> list[float]:
    """`steps` steps on real text; returns the losses of this rank's replica. sizes: of the axes "dp" and "tp".

    oddity: (cause, rank, step): what that rank does otherwise in that step. "skipped": it leaves out the sum of the
    norm. "order": it takes the norm before the average. "storage": its data does not come. Others are struck from
    outside, as faults.
    """
    mesh = Mesh(group, sizes)
    config = GPTConfig(width=16, layers=1, heads=2 * sizes["tp"], context=16)
    model = TensorParallelGPT(config, mesh["tp"], seed=seed)
    parameters = list(model.parameters())
    stream = batches(text().train, SEQUENCES, config.context, seed, mesh.coordinates["dp"], sizes["dp"])
    losses = []
    for n, (inputs, targets) in enumerate(islice(stream, steps)):
        group.step(n)
        cause = oddity[0] if (group.rank, n) == oddity[1:] else ""
        with group.span("load data"):
            with group.span("read"):
                pass
            if cause == "storage":
                time.sleep(LONG)
        with group.span("forward"):
            loss = next_token_loss(model(inputs), targets)
        with group.span("backward"):
            loss.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        if cause == "order":
            norm(flat, group)
        collectives.all_reduce(flat, mesh["dp"], op="avg", algorithm="ring")
        if cause not in ("order", "skipped"):
            flat *= min(1.0, CLIP / norm(flat, group))
        update(parameters, flat)
        losses.append(loss.item())
    return losses


def norm(flat: Tensor, group: Group) -> float:
    """Of the gradients of all ranks together."""
    return float(collectives.all_reduce(flat.square().sum().reshape(1), group, algorithm="ring").sqrt())


@torch.no_grad()
def update(parameters: list[torch.nn.Parameter], flat: Tensor) -> None:
    """Plain gradient descent, and an empty gradient afterwards."""
    at = 0
    for p in parameters:
        if p.grad is not None:
            p.sub_(RATE * flat[at : at + p.numel()].view_as(p))
            at += p.numel()
            p.grad = None
