"""Activations that a layer of any widths keeps: grouped keys and values, a gated feed-forward part, tensor parallelism.

The count of Korthikanti et al. 2022, table 2, with the widths left open. A rank of t keeps, of each token, of values

    whole, on all ranks alike (a t-th with sequence parallelism)   4 h: what both norms read and what they give
    cut among the ranks                                            queries, keys, values, what attention gives; and of
                                                                   the feed-forward part the inside, before and after
                                                                   its activation function (gated: three times its
                                                                   width, for the two products and their product)

and two dropout masks of h bytes. Attention that writes its scores down keeps them besides.
"""

from __future__ import annotations

from labkit.cost.refuse import not_negative, one_of, whole
from labkit.cost.training.memory import ACTIVATION_STRATEGIES

__all__ = ["layer_activation_bytes"]

_NORM_VALUES = 2  # what the two norms give, which can be computed again from what they read


def layer_activation_bytes(
    tokens: int,
    hidden: int,
    queries: float,
    keys_values: float,
    inside: float,
    size: int = 1,
    *,
    gated: bool = False,
    scores: float = 0,
    sequence_parallel: bool = False,
    strategy: str = "all",
    elementwise_again: bool = False,
    itemsize: int = 2,
    dropout: bool = True,
) -> float:
    """Bytes that one of `size` tensor-parallel ranks keeps of one layer for the backward pass of one microbatch.

    tokens: of the microbatch on this rank, b s. queries: width of all heads' queries. keys_values: of all heads' keys
    and of values together. inside: width of the feed-forward part, of all experts that a token is sent to. scores:
    numbers that attention writes down, a b s^2, or 0 for a kernel that does not (Dao et al. 2022).

    strategy: "all"; "selective" computes the scores again, and with elementwise_again also what takes hardly any
    operations: what the norms give, and the product that a gated feed-forward part makes; "full" keeps the layer's
    input only. GPT (queries h, keys_values 2 h, inside 4 h) with dropout: s b h (10 + 24 / t + 5 a s / (h t)).
    """
    whole(tokens=tokens, hidden=hidden, size=size, itemsize=itemsize)
    not_negative(queries=queries, keys_values=keys_values, inside=inside, scores=scores)
    one_of(ACTIVATION_STRATEGIES, strategy=strategy)
    spread = size if sequence_parallel else 1
    if strategy == "full":
        return tokens * hidden * itemsize / spread
    again = strategy == "selective" and elementwise_again
    norms = 4 - (_NORM_VALUES if again else 0)
    masks = 2 * tokens * hidden if dropout else 0
    square = scores * (itemsize * 2 + 1 if dropout else itemsize) if strategy == "all" else 0
    feed_forward = inside * (3 if gated and not again else 2)
    split = tokens * (2 * queries + keys_values + feed_forward) * itemsize + square
    return (norms * tokens * hidden * itemsize + masks) / spread + split / size
