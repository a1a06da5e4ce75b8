"""Batch size against steps to a target loss, and the noise scale on the way there.

A network of one hidden layer learns the 8 x 8 digits by plain SGD at a constant rate. Examples are drawn with
replacement, so that every batch is of independent examples, also one larger than the data: the case of the theory.
The loss that counts is the mean over all training images, without noise, looked at whenever the steps have grown by
a fiftieth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from labkit.data import Images, digits
from labkit.models import MLP, MLPConfig
from labkit.models.threads import one_thread
from labkit.optim import NoiseScale, squared_norm

WIDTHS = (64, 32, 10)
TARGET = 0.3  # nats; guessing costs ln 10 = 2.3


class Reached(NamedTuple):
    """steps: to the target, or None if it was not reached within the limit. examples: batch times steps."""

    batch: int
    lr: float
    seed: int
    steps: int | None


@cache
def train_images() -> Images:
    return digits()[0]


def model_of(seed: int, dtype: torch.dtype = torch.float32) -> MLP:
    """The network with the weights of `seed`."""
    return MLP(MLPConfig(WIDTHS), seed=seed).to(dtype)


def draws(images: Images, batch: int, seed: int) -> Iterator[Images]:
    """`batch` of the images for each step, drawn with replacement, without end.

    N ranks that draw the global batch and keep the r-th of N equal parts have independent examples: see `part`.
    """
    generator = torch.Generator().manual_seed(10_000 + seed)
    while True:
        index = torch.randint(len(images.y), (batch,), generator=generator)
        yield Images(images.x[index], images.y[index])


def part(images: Images, rank: int, ranks: int) -> Images:
    """The examples of one rank: the `rank`-th of `ranks` parts, which differ by at most one in length."""
    return Images(images.x.tensor_split(ranks)[rank], images.y.tensor_split(ranks)[rank])


def loss_of(model: nn.Module, images: Images) -> Tensor:
    """Mean cross-entropy in nats."""
    return cross_entropy(model(images.x), images.y)


def steps_to_target(
    batch: int, lr: float, seed: int, target: float = TARGET, limit: int = 5000, dtype: torch.dtype = torch.float32
) -> Reached:
    """Train until the loss over all training images is at most `target`; None if it is not within `limit` steps."""
    images = Images(train_images().x.to(dtype), train_images().y)
    model, look = model_of(seed, dtype), 1
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with one_thread():
        for step, chosen in zip(range(1, limit + 1), draws(images, batch, seed), strict=False):
            optimizer.zero_grad()
            loss_of(model, chosen).backward()
            optimizer.step()
            if step >= look:
                look = max(step + 1, math.ceil(1.02 * step))
                with torch.no_grad():
                    loss = float(loss_of(model, images))
                if loss <= target:
                    return Reached(batch, lr, seed, step)
                if not math.isfinite(loss):
                    break
    return Reached(batch, lr, seed, None)


def weights_at(loss: float, lr: float, seed: int, batch: int = 64, limit: int = 5000) -> MLP:
    """The network of `seed`, trained as above until its loss over all training images is at most `loss`.

    Raises ValueError if `limit` steps do not suffice.
    """
    model = model_of(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with one_thread():
        for step, chosen in enumerate(draws(train_images(), batch, seed)):
            with torch.no_grad():
                if loss_of(model, train_images()) <= loss:
                    return model
            if step >= limit:
                break
            optimizer.zero_grad()
            loss_of(model, chosen).backward()
            optimizer.step()
    raise ValueError(f"a loss of {loss} was not reached in {limit} steps with lr={lr}: take another rate")


def true_noise_scale(model: nn.Module) -> tuple[float, float]:
    """(|G|^2, tr(Sigma)) at these weights, from the gradient of every single training image. No estimate: the truth.

    tr(Sigma) is the mean of |g_i|^2 minus |G|^2, for examples drawn from these images with replacement.
    """
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    with one_thread():
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, *train_images())
    signal = sum(float(g.mean(0).double().square().sum()) for g in each.values())
    second = sum(float(g.double().square().sum()) for g in each.values()) / len(train_images().y)
    return signal, second - signal


def estimated_noise_scale(model: nn.Module, ranks: int, per_rank: int, steps: int, seed: int) -> NoiseScale:
    """The estimate from two batch sizes at fixed weights, as `ranks` ranks would make it; here one after the other."""
    found, parameters = NoiseScale(per_rank, ranks * per_rank), list(model.parameters())
    with one_thread():
        for _, chosen in zip(range(steps), draws(train_images(), ranks * per_rank, seed), strict=False):
            total, small = [torch.zeros_like(p) for p in parameters], 0.0
            for rank in range(ranks):
                own = torch.autograd.grad(loss_of(model, part(chosen, rank, ranks)), parameters)
                small += squared_norm(own) / ranks
                for whole, g in zip(total, own, strict=True):
                    whole.add_(g, alpha=1 / ranks)
            found.add(small, squared_norm(total))
    return found
