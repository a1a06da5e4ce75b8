"""A small GPT whose linear layers multiply in few bits: how far its loss ends from that of BF16, over several seeds."""

from __future__ import annotations

from itertools import islice
from math import sqrt
from statistics import mean, stdev
from typing import Any

import torch

from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.optim.precision import Recipe, low_precision

CONFIG = GPTConfig(context=32, layers=2, width=48, heads=4, tied=False)  # that of chapter 14
LAST = 10  # steps whose mean loss is compared
RECIPES = {
    "E4M3 and E5M2, delayed": Recipe(), "E4M3 and E5M2, current": Recipe(scaling="current"),
    "E4M3 everywhere": Recipe(backward="E4M3"), "E5M2 everywhere": Recipe(forward="E5M2"),
    "E2M1 forward": Recipe(forward="E2M1"), "E2M1 everywhere": Recipe(forward="E2M1", backward="E2M1"),
    "fixed scale 1, E4M3 everywhere": Recipe(backward="E4M3", scaling="fixed"),
    "fixed scale 2^14": Recipe(scaling="fixed", scale=2.0**14),
}  # fmt: skip


def by_recipe(seeds: int, steps: int) -> list[dict[str, Any]]:
    """Loss at the end, and its distance from BF16's with the same seed: mean, standard error, largest."""
    wide = [ended(Recipe("BF16", "BF16"), seed, steps) for seed in range(seeds)]
    rows = []
    for name, recipe in {"BF16": Recipe("BF16", "BF16"), **RECIPES}.items():
        narrow = wide if name == "BF16" else [ended(recipe, seed, steps) for seed in range(seeds)]
        off = [n - w for n, w in zip(narrow, wide, strict=True)]
        rows.append({
            "recipe": name, "loss": mean(narrow), "further than BF16": mean(off),
            "standard error": stdev(off) / sqrt(seeds) if seeds > 1 else 0.0, "at most": max(off, key=abs),
        })  # fmt: skip
    return rows


def ended(recipe: Recipe, seed: int, steps: int) -> float:
    """The mean loss of the last steps, in nats a byte."""
    model = GPT(CONFIG, seed)
    scales, optimizer = low_precision(model, recipe), torch.optim.AdamW(model.parameters(), 5e-3)
    losses = []
    for inputs, targets in islice(batches(text().train, 8, CONFIG.context, seed), steps):
        optimizer.zero_grad()
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        if not scales.spoilt():
            optimizer.step()
        losses.append(loss.item())
    return mean(losses[-LAST:])
