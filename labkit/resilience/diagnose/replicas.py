"""Replicas that should hold the same bits: who of them does not, and in which tensor.

After a commit all replicas of a model are bitwise equal, so a checksum of each tensor is enough to see that one of them
is not. Most of them are taken to be right; two that differ cannot be told apart by this alone (`replays` can).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit import collectives
from labkit.wire.dtypes import as_bytes
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.world.diagnosis.explain import ranks_text

from .verdict import Verdict, fewest
from .waits import Clue

PIECE = 32  # elements: a tensor that differs is searched in pieces of so many


def checksum(tensors: Iterable[Tensor]) -> int:
    """A number of 56 bits that differs (but for one chance in 2^56) if a bit, a shape or the order differs."""
    digest = hashlib.blake2b(digest_size=7)
    for x in tensors:
        digest.update(f"{x.dtype} {tuple(x.shape)} ".encode())
        raw: Any = as_bytes(x.detach().cpu().contiguous()).numpy()
        digest.update(memoryview(raw))
    return int.from_bytes(digest.digest(), "big")


@dataclass(frozen=True)
class Differs:
    """Replicas that differ. suspects: by rank, the smallest set; exact: it is no guess. tensors: in which they differ.

    pieces: for the first of these tensors the stretches (first element, one after the last) in which it differs.
    """

    suspects: tuple[int, ...]
    exact: bool
    tensors: tuple[str, ...]
    pieces: tuple[tuple[int, int], ...]

    @property
    def verdict(self) -> Verdict:
        at = f" from element {self.pieces[0][0]} to {self.pieces[-1][1] - 1}" if self.pieces else ""
        more = f" and {len(self.tensors) - 1} more" if len(self.tensors) > 1 else ""
        who = ranks_text(self.suspects)
        text = f"{who} {'differs' if len(self.suspects) == 1 else 'differ'} in {self.tensors[0]!r}{at}{more}"
        return Verdict("corrupt", self.suspects, self.exact, (Clue(frozenset(self.suspects), "corrupt", text),))


def compare(tensors: Mapping[str, Tensor], group: Group) -> Differs | None:
    """None if all ranks of `group` hold the same bits, else who differs; the same answer on every rank, which all call.

    Costs one all-gather of 8 bytes a tensor, and if something differs another of a 32nd of that tensor.
    """
    sums = torch.tensor([[checksum([x]) for x in tensors.values()]], dtype=torch.int64, device=group.device)
    lengths = collectives.all_gather(torch.tensor([sums.shape[1]], device=group.device), group).tolist()
    if len(set(lengths)) > 1:
        raise RefusedError(f"compare: the ranks brought {lengths} tensors: give every rank the same names")
    table = collectives.all_gather(sums, group).tolist()
    wrong = [n for n in range(lengths[0]) if len({row[n] for row in table}) > 1]
    if not wrong:
        return None
    odd = [_odd([row[n] for row in table]) for n in wrong]
    exact = all(2 * len(ranks) < group.size for ranks in odd)
    suspects = frozenset[int]().union(*odd) if exact else fewest(odd)[0]
    names = [name for n, name in enumerate(tensors) if n in wrong]
    return Differs(tuple(sorted(suspects)), exact, tuple(names), _pieces(tensors[names[0]], group))


def _odd(values: list[int]) -> frozenset[int]:
    """Ranks whose value is not that of more than half of them; all ranks if there is no such value."""
    value, n = Counter(values).most_common(1)[0]
    everyone = range(len(values))
    return frozenset(r for r in everyone if values[r] != value) if 2 * n > len(values) else frozenset(everyone)


def _pieces(x: Tensor, group: Group) -> tuple[tuple[int, int], ...]:
    flat = x.detach().reshape(-1)
    stretches = [(at, min(at + PIECE, flat.numel())) for at in range(0, flat.numel(), PIECE)]
    lengths = collectives.all_gather(torch.tensor([len(stretches)], device=group.device), group).tolist()
    if len(set(lengths)) > 1:
        return ()  # they differ in shape, too
    mine = torch.tensor([[checksum([flat[a:b]]) for a, b in stretches]], dtype=torch.int64, device=group.device)
    same = (collectives.all_gather(mine, group) == mine).all(dim=0)
    table = collectives.all_gather((~same).to(torch.uint8).view(1, -1), group).any(dim=0).tolist()
    return tuple(stretch for stretch, bad in zip(stretches, table, strict=True) if bad)
