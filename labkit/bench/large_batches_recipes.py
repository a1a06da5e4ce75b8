"""One network, one number of epochs, a batch 32 times as large: which recipe still trains it?

Three hidden layers of 32 learn the 8 x 8 digits in 16 epochs, first with batches of 8 and a rate that was tuned for
them, then with batches of 256: 80 steps in place of 2864. Rules scale the rate; warmup takes a quarter of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from labkit.data import Images, digits, image_batches
from labkit.models import MLP, MLPConfig
from labkit.models.threads import one_thread
from labkit.optim import LAMB, LARS, constant, layer_groups, linear_scaled, sqrt_scaled, warmup

WIDTHS = (64, 32, 32, 32, 10)
EPOCHS, SMALL, LARGE = 16, 8, 256
BASE = {"SGD": 0.02, "Adam": 0.004}  # at SMALL; half and twice of it were tried as well: see `rates` of the runs
TRUST = 0.08  # of LARS: its paper's 0.001 asks for rates of 10 and more, which biases would have to take too
MAKE: dict[str, Callable[[nn.Module, float], Optimizer]] = {
    "SGD": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
    "Adam": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "LARS": lambda model, lr: LARS(layer_groups(model), lr=lr, momentum=0.9, trust=TRUST),
    "LAMB": lambda model, lr: LAMB(layer_groups(model), lr=lr),
}


@dataclass(frozen=True)
class Recipe:
    """How to train: optimizer, batch, rate, and how many of the steps go into warmup (a part of them)."""

    name: str
    optimizer: str
    batch: int
    lr: float
    warm: float = 0.0


class Trained(NamedTuple):
    """loss: at the end, over all training images. accuracy: on validation images. worst: largest loss of a batch."""

    recipe: str
    seed: int
    loss: float
    accuracy: float
    worst: float


def recipes(large: int = LARGE, lars: float = 0.3, lamb: float = 0.04) -> list[Recipe]:
    """The two small runs, and what is tried at the large batch."""
    found = []
    for optimizer, base in BASE.items():
        linear, root = linear_scaled(base, large, SMALL), sqrt_scaled(base, large, SMALL)
        found += [
            Recipe(f"{optimizer}, small batch", optimizer, SMALL, base),
            Recipe(f"{optimizer}, linear", optimizer, large, linear),
            Recipe(f"{optimizer}, linear + warmup", optimizer, large, linear, 0.25),
            Recipe(f"{optimizer}, square root", optimizer, large, root),
            Recipe(f"{optimizer}, square root + warmup", optimizer, large, root, 0.25),
        ]
    return [
        *found,
        Recipe("LARS + warmup", "LARS", large, lars, 0.25),
        Recipe("LAMB + warmup", "LAMB", large, lamb, 0.25),
    ]


@cache
def data() -> tuple[Images, Images]:
    return digits()


def model_of(seed: int, dtype: torch.dtype = torch.float32) -> MLP:
    """The network with the weights of `seed`."""
    return MLP(MLPConfig(WIDTHS), seed=seed).to(dtype)


def steps_of(batch: int, epochs: int = EPOCHS) -> int:
    """Steps in `epochs` epochs, the incomplete last batch of each left out."""
    return epochs * (len(data()[0].y) // batch)


def train(recipe: Recipe, seed: int, epochs: int = EPOCHS, dtype: torch.dtype = torch.float32) -> Trained:
    """Train by `recipe` with the weights and the order of `seed`. Ends early when a loss is infinite or NaN.

    A loss that is not finite is returned as infinity, with the accuracy of the weights then.
    """
    training, validation = data()
    model = model_of(seed, dtype)
    optimizer, steps, worst = MAKE[recipe.optimizer](model, recipe.lr), steps_of(recipe.batch, epochs), 0.0
    warm = round(recipe.warm * steps)
    factor = warmup(warm, start=SMALL / recipe.batch) if warm else constant
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    with one_thread():
        for _, part in zip(range(steps), image_batches(training, recipe.batch, seed), strict=False):
            optimizer.zero_grad()
            loss = cross_entropy(model(part.x.to(dtype)), part.y)
            worst = max(worst, loss.item()) if loss.isfinite() else math.inf
            if worst == math.inf:
                break
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            end = float(cross_entropy(model(training.x.to(dtype)), training.y))
            right = (model(validation.x.to(dtype)).argmax(1) == validation.y).double().mean()
    return Trained(recipe.name, seed, end if math.isfinite(end) else math.inf, float(right), worst)
