"""What the checks of chapter 7 compare with: rates, noise scales and layerwise steps, on one rank that holds it all."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from labkit.grading.known import Answers

answers = Answers("07_large_batches")  # what only instructors can compute


Layers = list[Tensor]


rates = answers.rates


noise_numbers = answers.noise_numbers


def shards(layers: Sequence[Tensor], n: int) -> list[Layers]:
    """By rank: its part of each layer. Parts differ by one at most, and may be empty."""
    return [[layer.tensor_split(n)[rank] for layer in layers] for rank in range(n)]


lars = answers.lars


lamb = answers.lamb


grown = answers.grown
