"""What the checks of chapter 9 compare with: what ranks hold alike, its norm, and positions that are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.chapters.c09_tensor_parallelism.checks import Found, columns, rows
from labkit.chapters.c09_tensor_parallelism.say import Causes

# The norm of all gradients --------------------------------------------------------------------------------------------


def norm_of_all(kinds: Sequence[str], gradients: Sequence[Sequence[Tensor]]) -> Found:
    """gradients: by rank. "cut" are parts, "copy" are alike on all ranks, "partial" are to be summed."""
    n = len(gradients)
    sums = {i: torch.stack([g[i] for g in gradients]).sum(0) for i, kind in enumerate(kinds) if kind == "partial"}

    def square(kind: str) -> float:
        numbers = [i for i, k in enumerate(kinds) if k == kind]
        if kind == "cut":
            return sum(float((g[i] ** 2).sum()) for g in gradients for i in numbers)
        return sum(float((sums.get(i, gradients[0][i]) ** 2).sum()) for i in numbers)

    def norm(*squares: float) -> Tensor:
        return torch.tensor(math.sqrt(sum(squares)), dtype=torch.float64)

    cut, copy, partial = square("cut"), square("copy"), square("partial")
    unsummed = sum(float((g[i] ** 2).sum()) for g in gradients for i in sums)
    right = [[*(sums.get(i, g) for i, g in enumerate(mine)), norm(cut, copy, partial)] for mine in gradients]
    own = [[float((g**2).sum()) for g in mine] for mine in gradients]
    causes: dict[str, dict[str, list[Any]]] = {
        "the norm": {
            "What all ranks hold alike is counted once for each of them. It counts once.": [
                norm(cut, n * copy, n * partial)
            ]
            * n,
            "The copies are counted once for each rank. They count once.": [norm(cut, n * copy, partial)] * n,
            "The summed partial sums are counted once for each rank. They count once.": [norm(cut, copy, n * partial)]
            * n,
            "What all ranks hold alike does not count at all.": [norm(cut)] * n,
            "The squares of the partial sums are added up. Sum first: they are parts of one gradient.": [
                norm(cut, copy, unsummed)
            ]
            * n,
            "Everything is counted as parts: copies once for each rank, and partial sums before they are summed.": [
                norm(cut, n * copy, unsummed)
            ]
            * n,
            "That is the norm of what one rank holds: the parts of the others are missing.": [
                norm(sum(s for s, k in zip(row, kinds, strict=True) if k == "cut"), copy, partial) for row in own
            ],
            "The squares are averaged over the ranks: parts are counted too little.": [norm(cut / n, copy, partial)]
            * n,
            "The root is missing: that is the square of the norm.": [
                torch.tensor(cut + copy + partial, dtype=torch.float64)
            ]
            * n,
        }
    }
    for i, kind in enumerate(kinds):
        if kind == "copy":
            why = "It is a copy, and was summed: every rank has the whole gradient already."
            causes[f"gradient {i}"] = {why: [n * g[i] for g in gradients]}
        if kind == "partial":
            causes[f"gradient {i}"] = {
                "That is its own partial sum: nothing was summed.": [g[i] for g in gradients],
                "The partial sums are averaged. They are summed.": [sums[i] / n] * n,
            }
    return right, causes


# Sequence parallelism -------------------------------------------------------------------------------------------------


def sequence_pair(x: Tensor, gain: Tensor, shift: Tensor, A: Tensor, B: Tensor, dy: Tensor, n: int) -> Found:
    """y, dx, dgain, dshift, dA, dB of y = relu(norm(x) A) B; ranks have their positions of x, y, dx and dy."""

    def ran(x: Tensor, A: Tensor, B: Tensor, dy: Tensor) -> list[Tensor]:
        leaves = [z.clone().requires_grad_() for z in (x, gain, shift, A, B)]
        y = torch.relu(F.layer_norm(leaves[0], x.shape[-1:], leaves[1], leaves[2]) @ leaves[3]) @ leaves[4]
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    y, dx, dgain, dshift, dA, dB = ran(x, A, B, dy)
    cut = [rows(z, n) for z in (y, dx)] + [[dgain] * n, [dshift] * n, columns(dA, n), rows(dB, n)]
    right = [[part[r] for part in cut] for r in range(n)]
    partials = [ran(x, a, b, dy) for a, b in zip(columns(A, n), rows(B, n), strict=True)]  # of each rank's columns
    places = [ran(x_r, A, B, dy_r) for x_r, dy_r in zip(rows(x, n), rows(dy, n), strict=True)]  # of its positions
    part_of_place = "Only its own positions are in it: gather {} first, and the gradient is whole without a sum."
    own_norm = "That is the sum over its own positions. The norm is on every rank, and its gradient is summed over all."
    twice = "It is summed over the ranks, but it was whole on each of them."
    causes: Causes = {
        "y": {
            "That is the partial sum of its own columns: a reduce-scatter sums, and leaves each rank its positions.": [
                rows(found[0], n)[r] for r, found in enumerate(partials)
            ],
            "All positions are returned. A rank keeps its own.": [y] * n,
        },
        "dx": {
            "That is the part that came through its own columns: was dy gathered, and the result reduce-scattered?": [
                rows(found[1], n)[r] for r, found in enumerate(partials)
            ],
            "All positions are returned. A rank keeps its own.": [dx] * n,
        },
        "dgain": {
            own_norm: [found[2] for found in places],
            twice: [n * dgain] * n,
            "That is the part that came through its own columns.": [found[2] for found in partials],
            "It is averaged over the ranks. It is summed.": [dgain / n] * n,
        },
        "dshift": {
            own_norm: [found[3] for found in places],
            twice: [n * dshift] * n,
            "That is the part that came through its own columns.": [found[3] for found in partials],
            "It is averaged over the ranks. It is summed.": [dshift / n] * n,
        },
        "dA": {
            part_of_place.format("what the columns read"): [columns(found[4], n)[r] for r, found in enumerate(places)],
            twice: [n * part for part in columns(dA, n)],
        },
        "dB": {
            part_of_place.format("dy"): [rows(found[5], n)[r] for r, found in enumerate(places)],
            twice: [n * part for part in rows(dB, n)],
        },
    }
    return right, causes
