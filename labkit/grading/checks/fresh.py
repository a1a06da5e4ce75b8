"""Inputs of a check: new in every run, the same for the same seed, and the same for all checks of an exercise.

Two checks that ask for the same things get the same tensors, so that one run of the student's function serves both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

SMALL = 8  # entries are whole numbers of this size: their sums are exact in every dtype, in every order


def number_from(*parts: object) -> int:
    """A whole number below 2^63 from any values, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


class Fresh:
    """Sizes and tensors from one seed. `worlds`: the world sizes to use, or None for those that a check names."""

    def __init__(self, seed: int, exercise: str, worlds: Sequence[int] | None = None):
        self.seed, self.exercise, self.worlds = seed, exercise, worlds
        self._tensors = 0

    def restart(self) -> None:
        """Begin again: the next check gets the tensors that the one before it got."""
        self._tensors = 0

    def sizes(self, worlds: Sequence[int], **ranges: Sequence[int]) -> Iterator[Any]:
        """Each world size with a number drawn from each range: (n, rows, ...); n alone without ranges.

        A range is (least, most). The ends themselves are not special: a draw may be any whole number between.
        """
        chosen = [n for n in worlds if self.worlds is None or n in self.worlds]
        for n in chosen or list(worlds)[:1]:
            random = Random(number_from(self.seed, self.exercise, n, sorted((k, tuple(v)) for k, v in ranges.items())))
            drawn = [random.randint(min(span), max(span)) for span in ranges.values()]
            yield (n, *drawn) if ranges else n

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Small whole numbers, never 0, of any dtype."""
        self._tensors += 1
        generator = torch.Generator().manual_seed(number_from(self.seed, self.exercise, self._tensors, shape) % 2**31)
        values = torch.randint(1, SMALL, shape, generator=generator)
        if dtype.is_signed:
            values *= 1 - 2 * torch.randint(0, 2, shape, generator=generator)
        return values.to(dtype)
