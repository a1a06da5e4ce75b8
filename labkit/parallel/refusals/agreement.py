"""Ranks that agree before they go on: what one of them refuses, all of them refuse, with the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from labkit import collectives
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


def agree(group: Group, problem: str | None) -> None:
    """Raise `RefusedError` on every rank if any of them has a problem, in the words of the first that has one.

    Every rank calls it. Without a problem 8 bytes a rank are gathered, and nothing else is sent.
    """
    text = problem or ""
    lengths = collectives.all_gather(torch.tensor([len(text.encode())], device=group.device), group).tolist()
    if any(lengths):
        texts = gather_texts(group, text, lengths)
        first = next(rank for rank, length in enumerate(lengths) if length)
        raise RefusedError(f"on rank {first}: {texts[first]}")


def gather_texts(group: Group, text: str, lengths: Sequence[int]) -> list[str]:
    """The text of every rank. lengths: of all ranks' texts in UTF-8, which every rank knows by now."""
    letters = torch.tensor(list(text.encode()), dtype=torch.uint8, device=group.device)
    parts = collectives.all_gather(letters, group, sizes=lengths).split(list(lengths))
    return [bytes(part.tolist()).decode() for part in parts]


def agree_all(groups: Sequence[Group], problem: str | None) -> None:
    """Raise `RefusedError` on every rank of groups that cross (rows and columns) if any of them has a problem."""
    check_all(groups, lambda group: agree(group, problem))


def check_all(groups: Sequence[Group], check: Callable[[Group], None]) -> None:
    """`check(group)` in each of this rank's groups, which cross those of others; all ranks raise, or none.

    A rank that fails in one group still takes part in the other: its peers there wait for it.
    """
    if len(groups) == 1:
        check(groups[0])
        return
    problem = None
    for group in groups:
        try:
            check(group)
        except RefusedError as refusal:
            problem = problem or str(refusal)
    for group in groups:  # every row tells its rows, then every column its columns: everybody knows
        try:
            agree(group, problem)
        except RefusedError as refusal:
            problem = problem or str(refusal)
    if problem is not None:
        raise RefusedError(problem)
