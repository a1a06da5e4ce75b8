"""Text to train on that every Python brings along: its own language reference, byte by byte.

`pydoc_data.topics` holds the reference that `help("while")` prints. It differs a little from one
Python version to the next, so compare losses within one version only.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit.data.order import batch_indices


class Text(NamedTuple):
    """Two parts of a text, each a 1-D uint8 tensor of bytes."""

    train: Tensor
    val: Tensor


@cache
def language_reference() -> str:
    """Python's language reference, about 0.4 million characters.

    Topics overlap (the data model appears in several), so a paragraph that was seen before is left
    out: else the validation part would repeat what training saw.
    """
    try:
        from pydoc_data.topics import topics  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise RuntimeError(
            "this Python comes without pydoc_data, which holds the text to train on: "
            "install your system's full Python 3 package, or a Python from python.org"
        ) from error
    paragraphs = (p.strip("\n") for name in sorted(topics) for p in topics[name].split("\n\n"))
    return "\n\n".join(dict.fromkeys(p for p in paragraphs if p)) + "\n"


def encode(string: str) -> Tensor:
    """The UTF-8 bytes of `string`: uint8 of shape (bytes,), each a symbol from a vocabulary of 256."""
    return torch.from_numpy(np.array(bytearray(string, "utf-8"), dtype=np.uint8))


def decode(tokens: Tensor) -> str:
    """The text of a 1-D integer tensor of bytes. Half a character becomes the replacement sign."""
    return bytes(tokens.tolist()).decode("utf-8", errors="replace")


def text(validation: float = 0.1) -> Text:
    """The language reference as bytes; the last `validation` of it is kept from training.

    Raises ValueError unless 0 < validation < 1.
    """
    if not 0 < validation < 1:
        raise ValueError(f"validation={validation}: give the part kept from training, between 0 and 1")
    tokens = encode(language_reference())
    cut = round(len(tokens) * (1 - validation))
    return Text(train=tokens[:cut], val=tokens[cut:])


def batches(
    tokens: Tensor, batch: int, context: int, seed: int = 0, rank: int = 0, world: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (inputs, targets), int64 of shape (batch, context) each, without end.

    tokens: 1-D. It is cut into windows of `context` symbols that do not overlap; a target is the
    symbol after its input. Windows go to steps and ranks as `batch_indices` says: the ranks of a
    step are disjoint, and together they are the single-rank batch of `batch * world` rows.

    Raises ValueError, at the call, for a text that is too short and for a rank outside the world.
    """
    if context < 1:
        raise ValueError(f"context={context}: it must be at least 1")
    windows = (len(tokens) - 1) // context  # the last target needs one symbol more
    if windows < 1:
        raise ValueError(
            f"{len(tokens)} symbols do not fill one window of context + 1 = {context + 1}: "
            f"take a longer text or a shorter context"
        )
    order = batch_indices(windows, batch, seed, rank, world)
    return (_cut(tokens, index, context) for index in order)


def _cut(tokens: Tensor, windows: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Windows by number -> inputs and targets, (len(windows), context) each."""
    where_bt = windows[:, None] * context + torch.arange(context)
    return tokens[where_bt].long(), tokens[where_bt + 1].long()
