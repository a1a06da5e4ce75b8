"""Sequences of unequal lengths: what padding wastes, and what a sequence costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.cost.refuse import not_negative, positive, whole

__all__ = ["fewest_rows", "padding_waste", "sequence_flops"]


def padding_waste(lengths: Sequence[int], rows: int | None = None, room: int | None = None) -> float:
    """The part of all positions that is padding: 1 - tokens / (rows room).

    By default each sequence has a row as long as the longest: one of 2,048 tokens and fifteen of 128 waste 1 - 3,968 /
    32,768 = 87.9 percent. Packed into 2 rows of 2,048 they waste 3.1 percent. Raises ValueError where they cannot fit.
    """
    if not lengths:
        raise ValueError("lengths is empty: no sequence, no row")
    whole(**{f"lengths[{i}]": n for i, n in enumerate(lengths)})
    rows, room = len(lengths) if rows is None else rows, max(lengths) if room is None else room
    whole(rows=rows, room=room)
    if max(lengths) > room or sum(lengths) > rows * room:
        raise ValueError(
            f"{sum(lengths)} tokens, {max(lengths)} in one sequence, do not fit into {rows} rows of {room}"
        )
    return 1 - sum(lengths) / (rows * room)


def fewest_rows(lengths: Sequence[int], room: int) -> int:
    """A bound that no packing goes below: all tokens over the room of a row, rounded up."""
    whole(room=room, **{f"lengths[{i}]": n for i, n in enumerate(lengths)})
    return math.ceil(sum(lengths) / room)


def sequence_flops(tokens: int, params: float, layers: int, width: int) -> float:
    """Operations to train on a sequence of n tokens, forward and backward: 6 P n + 6 layers width n^2.

    Forward 2 operations a weight and token; causal attention multiplies n^2 / 2 pairs, with 4 `width` operations each;
    backward twice as much. 70B (80 layers of 8,192): the second term is 2 percent of the whole at 2,048 tokens and half
    of it at 106,811, so the rank with the most tokens is nearly the one with the most work, except with long contexts.
    """
    not_negative(tokens=tokens)
    positive(params=params)
    whole(layers=layers, width=width)
    return 6 * params * tokens + 6 * layers * width * tokens**2
