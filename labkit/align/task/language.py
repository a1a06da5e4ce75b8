"""The language model that all begins with, trained for seconds on Python's language reference; and prompts from it."""

from __future__ import annotations

import random
from itertools import islice

import torch
from torch import Tensor

from labkit.data import batches, text
from labkit.models.gpt import GPT, GPTConfig, next_token_loss

PROMPT, ROOM = 16, 24  # bytes of a prompt, and the most of a response
END = ord(".")  # a response is a sentence at most
CONFIG = GPTConfig(vocab=128, context=PROMPT + ROOM, layers=2, width=64, heads=4)


def reference() -> Tensor:
    """The ASCII characters of the training part of the language reference, int64."""
    tokens = text().train
    return tokens[tokens < CONFIG.vocab].long()


def pretrained(seed: int = 0, steps: int = 120, batch: int = 32) -> GPT:
    """A GPT after `steps` steps of AdamW, with a rate that rises for ten steps and falls to 0."""
    model = GPT(CONFIG, seed)
    adam = torch.optim.AdamW(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda n: min(1.0, (n + 1) / 10) * (1 - n / steps))
    for inputs, targets in islice(batches(reference(), batch, CONFIG.context, seed), steps):
        adam.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        adam.step()
        schedule.step()
    return model


def windows(count: int, seed: int, length: int = PROMPT) -> list[tuple[int, ...]]:
    """`count` different stretches of the text, of `length` bytes each, drawn by `seed`."""
    tokens = reference().tolist()
    starts = random.Random(f"windows {seed}").sample(range(len(tokens) - length), count)
    return [tuple(tokens[start : start + length]) for start in starts]


def prompts(count: int, seed: int, first: int = 0) -> dict[int, tuple[int, ...]]:
    """`count` prompts by id, from `first` on: stretches of the text that end anywhere."""
    return dict(enumerate(windows(count, seed), first))
