"""Real data that is already on the machine: Python's own language reference, and 8 x 8 digits. Clicks are made up.

A batch is a function of (seed, step, rank, world): the ranks of a step hold different examples,
and together exactly those that one rank would hold with a batch that many times larger.
"""

from labkit.data.clicks import Clicks, auc, clicks, zipf_ids
from labkit.data.images import Images, digits, image_batches
from labkit.data.order import batch_indices
from labkit.data.text import Text, batches, decode, encode, language_reference, text

__all__ = [
    "Clicks",
    "Images",
    "Text",
    "auc",
    "batch_indices",
    "batches",
    "clicks",
    "decode",
    "digits",
    "encode",
    "image_batches",
    "language_reference",
    "text",
    "zipf_ids",
]
