"""What the checks of chapter 4 compare with: gradients on one rank, buckets, and the bytes of their rings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import cost


def gradients_on_one(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradients of the mean squared error, on one rank and in one piece."""
    return [g.detach() for g in torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))]


def packed(nbytes: Sequence[int], most: int) -> list[list[int]]:
    """Numbers of entries of `nbytes` that go together, in their order, up to `most` bytes."""
    groups: list[list[int]] = []
    for number, size in enumerate(nbytes):
        if groups and sum(nbytes[j] for j in groups[-1]) + size <= most:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def bytes_of_rings(sizes: Sequence[int], itemsize: int, n: int, most: int, backwards: bool = True) -> list[list[int]]:
    """By bucket: the bytes that each rank sends for it. sizes: entries of each parameter, in the order of the model."""
    sizes = sizes[::-1] if backwards else sizes
    groups = packed([size * itemsize for size in sizes], most)
    return [cost.ring_all_reduce_bytes_by_rank(sum(sizes[j] for j in g), itemsize, n) for g in groups]


def layers_of(widths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of an MLP: entries of each parameter in the order of the model, and the layer of each (1 is the first)."""
    pairs = list(zip(widths, widths[1:], strict=False))
    return [size for i, o in pairs for size in (i * o, o)], [k for k in range(1, len(pairs) + 1) for _ in (0, 1)]


def planned(widths: Sequence[int], most: int, n: int) -> tuple[list[int], list[list[int]]]:
    """By bucket of an MLP in float64: the layer that completes it, and the bytes that each rank sends for it."""
    sizes, layers = layers_of(widths)
    groups = packed([8 * size for size in sizes[::-1]], most)
    return [layers[::-1][g[-1]] for g in groups], bytes_of_rings(sizes, 8, n, most)
