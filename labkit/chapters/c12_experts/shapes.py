"""The parameters of published models, from their shapes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A transformer whose feed-forward parts have three matrices (gated), without biases, with untied embeddings."""

    layers: int
    width: int
    keys: int  # columns of the keys, and as many of the values
    hidden: int  # of an expert
    experts: int
    choices: int
    vocab: int

    @property
    def an_expert(self) -> int:
        return 3 * self.width * self.hidden

    def parameters(self, experts: int) -> int:
        """Where a layer has so many experts; with `choices` of them: what one token uses."""
        attention = 2 * self.width * self.width + 2 * self.width * self.keys
        layer = attention + experts * self.an_expert + self.experts * self.width + 2 * self.width
        return self.layers * layer + 2 * self.vocab * self.width + self.width

    @property
    def all(self) -> int:
        return self.parameters(self.experts)

    @property
    def active(self) -> int:
        return self.parameters(self.choices)


MIXTRAL = Shape(layers=32, width=4096, keys=1024, hidden=14336, experts=8, choices=2, vocab=32000)  # table 1
WIDTH_AND_HIDDEN = {"Mixtral 8x7B": (4096, 14336), "DeepSeekMoE 16B": (2048, 1408)}
