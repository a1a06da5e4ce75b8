"""Ranks that agree before they go on: what one of them refuses, all of them refuse, with the same words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit import collectives
from labkit.wire.errors import Refused
from labkit.wire.group import Group


def agree(group: Group, problem: str | None) -> None:
    """Raise `Refused` on every rank if any of them has a problem, in the words of the first that has one.

    Every rank calls it. Without a problem 8 bytes a rank are gathered, and nothing else is sent.
    """
    text = problem or ""
    lengths = collectives.all_gather(torch.tensor([len(text.encode())], device=group.device), group).tolist()
    if any(lengths):
        texts = gather_texts(group, text, lengths)
        first = next(rank for rank, length in enumerate(lengths) if length)
        raise Refused(f"on rank {first}: {texts[first]}")


def gather_texts(group: Group, text: str, lengths: Sequence[int]) -> list[str]:
    """The text of every rank. lengths: of all ranks' texts in UTF-8, which every rank knows by now."""
    letters = torch.tensor(list(text.encode()), dtype=torch.uint8, device=group.device)
    parts = collectives.all_gather(letters, group, sizes=lengths).split(list(lengths))
    return [bytes(part.tolist()).decode() for part in parts]
