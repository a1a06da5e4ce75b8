"""One layer of a transformer: the work of its three passes, and its parameters on a tensor-parallel rank.

The layer is that of `labkit.models.GPT`: attention with four linear maps, a feed-forward part of two that is
`expansion` times as wide, and two norms. Letters: s sequence, b batch, h hidden, t ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.refuse import divides, whole

__all__ = ["LayerFlops", "layer_flops", "layer_parameters", "replicated_layer_parameters"]


@dataclass(frozen=True)
class LayerFlops:
    """Floating-point operations of one layer for one microbatch, pass by pass.

    forward F; input_gradient B, the gradient of the layer's input; weight_gradient W, that of its weights (Qi et al.
    2023, table 1). Ordinary backward is B and W together.
    """

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def backward(self) -> float:
        """B + W."""
        return self.input_gradient + self.weight_gradient

    @property
    def total(self) -> float:
        """F + B + W."""
        return self.forward + self.backward


def layer_flops(batch: int, sequence: int, hidden: int) -> LayerFlops:
    """F = s b h (24 h + 4 s), B = s b h (24 h + 8 s), W = 24 s b h^2, for a feed-forward part 4 h wide.

    Together 72 s b h^2 (1 + s / (6 h)) (Narayanan et al. 2021). Attention is counted in full: a causal kernel that
    skips the masked half does half of the terms with s^2. W has none of them, since scores have no weights, so
    W < F < B; the three are alike where h is far above s. 175B at b = 1, s = 2048: F and B are 3 and 6 percent above W.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden)
    wide = sequence * batch * hidden
    return LayerFlops(wide * (24 * hidden + 4 * sequence), wide * (24 * hidden + 8 * sequence), 24 * wide * hidden)


def layer_parameters(hidden: int, size: int = 1, *, expansion: int = 4) -> int:
    """Parameters of one layer on each of `size` tensor-parallel ranks.

    (4 + 2 e) h^2 / t weights, (3 + e) h / t biases of the column-parallel maps; and, on every rank, 6 h: two norms of
    2 h, and the biases of the two row-parallel maps, which are added once after the sum. With e = 4 on one rank that
    is 12 h^2 + 13 h. Raises ValueError unless `size` divides `hidden`.
    """
    whole(hidden=hidden, size=size, expansion=expansion)
    divides(size=size, hidden=hidden)
    split = (4 + 2 * expansion) * hidden * hidden + (3 + expansion) * hidden
    return split // size + 6 * hidden


def replicated_layer_parameters(hidden: int) -> int:
    """Parameters of one layer that every tensor-parallel rank holds: 6 h, counted once in the norm of the gradient."""
    whole(hidden=hidden)
    return 6 * hidden
