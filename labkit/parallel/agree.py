"""Ranks that agree before they go on: what one of them refuses, all of them refuse, with the same words."""

from __future__ import annotations

import torch

from labkit import collectives
from labkit.wire.errors import Refused
from labkit.wire.group import Group


def agree(group: Group, problem: str | None) -> None:
    """Raise `Refused` on every rank if any of them has a problem, in the words of the first that has one.

    Every rank calls it. Without a problem 8 bytes a rank are gathered, and nothing else is sent.
    """
    text = torch.tensor(list((problem or "").encode()), dtype=torch.uint8, device=group.device)
    lengths = collectives.all_gather(torch.tensor([len(text)], device=group.device), group).tolist()
    if any(lengths):
        texts = collectives.all_gather(text, group, sizes=lengths).split(lengths)
        first = next(rank for rank, length in enumerate(lengths) if length)
        raise Refused(f"on rank {first}: {bytes(texts[first].tolist()).decode()}")
