"""Supervised tuning: the language model goes on with training on good responses only, and is the policy's beginning."""

from __future__ import annotations

import copy
import random

import torch

from labkit.align.logprobs import response_mask, token_logprobs
from labkit.align.shares import share
from labkit.align.task.language import CONFIG, END, PROMPT, ROOM, windows
from labkit.align.task.truth import truth
from labkit.models.gpt import GPT


def demonstrations(count: int, seed: int) -> list[tuple[int, ...]]:
    """The best quarter, by the known truth, of 4 `count` stretches of the text: prompt and response, up to its end."""
    found = [_until_end(window) for window in windows(4 * count, seed, PROMPT + ROOM)]
    return sorted(found, key=lambda window: -truth(window[PROMPT:], ROOM))[:count]


def tuned(model: GPT, seed: int = 0, steps: int = 40, batch: int = 32, rate: float = 1e-3) -> GPT:
    """A copy of `model` after `steps` steps on the responses of `demonstrations`; prompts are read and not learned."""
    model = copy.deepcopy(model)
    adam = torch.optim.AdamW(model.parameters(), rate)
    shown, drawn = demonstrations(8 * batch, seed), random.Random(f"tuning {seed}")
    for _ in range(steps):
        rows = drawn.sample(shown, batch)
        lengths_b = torch.tensor([len(row) for row in rows])
        tokens_bt = torch.tensor([row + (0,) * (CONFIG.context - len(row)) for row in rows])
        mask_bt = response_mask(torch.full_like(lengths_b, PROMPT), lengths_b, CONFIG.context)
        adam.zero_grad()
        share(-token_logprobs(model(tokens_bt), tokens_bt), mask_bt, int(mask_bt.sum())).backward()
        adam.step()
    return model


def _until_end(window: tuple[int, ...]) -> tuple[int, ...]:
    """The window up to the first end token of its response."""
    response = window[PROMPT:]
    return window[:PROMPT] + (response[: response.index(END) + 1] if END in response else response)
