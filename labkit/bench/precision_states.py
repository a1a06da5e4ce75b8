"""AdamW with moments of 32 and of 8 bits: bytes that it keeps, and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from labkit import cost
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.models.threads import one_thread
from labkit.optim.precision import AdamW8bit

CONFIG, RATE, LAST = GPTConfig(width=64, layers=2), 3e-3, 10  # the loss is a mean over the last steps: batches differ
Make = Callable[..., Optimizer]


def by_optimizer(seeds: int, steps: int) -> list[dict[str, Any]]:
    """Bytes a parameter, as kept and by formula, and the loss over that of 32 bits: mean and largest difference."""
    numels = [p.numel() for p in GPT(CONFIG).parameters()]
    total = sum(numels)
    ways: dict[str, tuple[Make, float]] = {"32 bits": (AdamW, 8)}
    for block in (2048, 256):
        make = _with_block(block)
        ways[f"8 bits, blocks of {block}"] = make, cost.adam8_state_bytes(numels, block) / total
    found = {name: [_trained(make, seed, steps) for seed in range(seeds)] for name, (make, _) in ways.items()}
    rows = []
    for name, (_, formula) in ways.items():
        ratios = [loss / base for (loss, _), (base, _) in zip(found[name], found["32 bits"], strict=True)]
        rows.append({
            "": name, "bytes a parameter": found[name][0][1] / total, "formula": formula,
            "loss": mean(loss for loss, _ in found[name]), "loss / 32 bits'": mean(ratios),
            "furthest from 1": max(abs(r - 1) for r in ratios),
        })  # fmt: skip
    return rows


def _with_block(block: int) -> Make:
    return lambda parameters, lr: AdamW8bit(parameters, lr=lr, block=block)


def _trained(make: Make, seed: int, steps: int) -> tuple[float, int]:
    """(the mean of the last losses, bytes of moments)."""
    model, losses = GPT(CONFIG, seed), []
    optimizer = make(model.parameters(), lr=RATE)
    with one_thread():
        for inputs, targets in islice(batches(text().train, 8, CONFIG.context, seed), steps):
            optimizer.zero_grad()
            loss = next_token_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return mean(losses[-LAST:]), sum(x.nbytes for x in _moments(optimizer))


def _moments(optimizer: Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (x for name, x in state.items() if isinstance(x, torch.Tensor) and name != "step")
