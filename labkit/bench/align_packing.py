"""Training on sequences of unequal lengths, packed and padded: useful tokens a second of both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.align import token_logprobs
from labkit.align.batching import Packed, padded
from labkit.cost import padding_waste
from labkit.models import GPT, GPTConfig
from labkit.models.threads import one_thread

from .ratios import alternate, ratio, self_ratio


def packing(longest: int, pairs: int) -> dict[str, Any]:
    """One sequence of `longest` tokens and fifteen of a sixteenth of it; a forward and a backward of each way."""
    config = GPTConfig(vocab=128, context=longest, width=64, layers=2)
    lengths = [longest] + [longest // 16] * 15
    random, model = torch.Generator().manual_seed(0), GPT(config)
    sequences = [torch.randint(1, 128, (n,), generator=random) for n in lengths]

    def in_rows() -> Tensor:
        tokens_bt, mask_bt = padded(sequences)
        mask_bt[:, 0] = False
        return token_logprobs(model(tokens_bt), tokens_bt)[mask_bt].sum()

    def packed() -> Tensor:
        rows = Packed.of(sequences, longest)
        logits_btv = model(rows.tokens_bt, rows.positions_bt, rows.core)
        return token_logprobs(logits_btv, rows.tokens_bt)[rows.predicted_bt].sum()

    with one_thread():
        same = abs(in_rows().item() / packed().item() - 1)
        slow, fast = alternate(lambda: _timed(model, in_rows), lambda: _timed(model, packed), pairs)
    rows = len(Packed.of(sequences, longest).tokens_bt)
    return {
        "tokens": sum(lengths), "padded positions": longest * 16, "packed positions": longest * rows,
        "padding wastes": padding_waste(lengths), "packing wastes": padding_waste(lengths, rows, longest),
        "times as many tokens a second": ratio(slow, fast), "padded against itself": self_ratio(slow),
        "loss differs by": same,
    }  # fmt: skip


def _timed(model: GPT, loss: Callable[[], Tensor]) -> float:
    model.zero_grad()
    begin = time.perf_counter()
    loss().backward()
    return time.perf_counter() - begin
