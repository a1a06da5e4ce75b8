"""Batches of sequences whose lengths differ tenfold: without padding, within a budget of tokens, even over ranks.

packing.py   several sequences in a row that do not see each other: first-fit decreasing, masks, positions
padding.py   rows of one length, buckets of like lengths, microbatches of a budget of tokens
balance.py   which rank gets which sequences: Karmarkar-Karp

Ranks need not have the same number of tokens for an exact mean: see `labkit.align.shares`. `labkit.cost` says what
padding wastes (`padding_waste`).
"""

from labkit.align.batching.balance import imbalance, largest_differencing
from labkit.align.batching.packing import Packed, first_fit_decreasing
from labkit.align.batching.padding import length_buckets, padded, token_microbatches

__all__ = [
    "Packed",
    "first_fit_decreasing",
    "imbalance",
    "largest_differencing",
    "length_buckets",
    "padded",
    "token_microbatches",
]
