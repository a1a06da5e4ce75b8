"""What the checks of chapter 4 compare with: gradients on one rank, buckets, and the bytes of their rings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.grading.known import Answers

answers = Answers("04_data_parallelism")  # what only instructors can compute


def gradients_on_one(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradients of the mean squared error, on one rank and in one piece."""
    return [g.detach() for g in torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))]


packed = answers.packed


bytes_of_rings = answers.bytes_of_rings


def layers_of(widths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of an MLP: entries of each parameter in the order of the model, and the layer of each (1 is the first)."""
    pairs = list(zip(widths, widths[1:], strict=False))
    return [size for i, o in pairs for size in (i * o, o)], [k for k in range(1, len(pairs) + 1) for _ in (0, 1)]


planned = answers.planned
