"""Shapes of the transformers that the book computes with."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SHAPES", "Shape"]


@dataclass(frozen=True)
class Shape:
    """A transformer: its number of parameters as its authors name it, and the sizes that memory and time depend on."""

    params: float
    layers: int
    hidden: int
    heads: int
    sequence: int = 2048

    @property
    def matrix_params(self) -> int:
        """12 layers hidden^2: the weights of attention and feed-forward, without embeddings (Kaplan et al. 2020)."""
        return 12 * self.layers * self.hidden**2


# 7B and 70B have the sizes of Llama 2 (Touvron et al. 2023), 175B those of GPT-3 (Brown et al. 2020).
SHAPES = {
    "7B": Shape(7e9, 32, 4096, 32),
    "70B": Shape(70e9, 80, 8192, 64),
    "175B": Shape(175e9, 96, 12288, 96),
}
