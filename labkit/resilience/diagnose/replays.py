"""A step done again: whether a rank computes what it computed before, and what others compute from the same.

A step is deterministic: the same state and the same samples give the same bits, on every machine of a kind. So a
rank that gets another result than before, or than the others, is faulty. What kind of fault it is shows in the pattern:

    transient      what was recorded is wrong, and every replay is right: it happened once
    intermittent   its replays differ among themselves
    persistent     its replays agree with each other, and with nobody else

The FT-HSDP paper calls this deterministic training (section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import collectives
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.world.diagnosis.explain import ranks_text

from .replicas import checksum
from .verdict import Verdict, fewest
from .waits import Clue


@dataclass(frozen=True)
class Replayed:
    """What the replays showed, the same on every rank.

    suspects: the smallest set of ranks that explains all differences; () for none. exact: there is only one such set.
    pattern: "clean", "transient", "intermittent", "persistent", or "not deterministic" where most ranks do not get the
    same twice, so that nothing can be said of any of them. table: by rank, the checksums recorded and replayed.
    """

    suspects: tuple[int, ...]
    exact: bool
    pattern: str
    table: tuple[tuple[int, ...], ...]

    @property
    def verdict(self) -> Verdict:
        """Of kind "corrupt", or "nothing"."""
        if not self.suspects:
            return Verdict("nothing", (), True)
        text = f"{ranks_text(self.suspects)}: replays of the step show a {self.pattern} fault"
        return Verdict("corrupt", self.suspects, self.exact, (Clue(frozenset(self.suspects), "corrupt", text),))


def replay(
    work: Callable[[int], Iterable[Tensor]], recorded: int, group: Group, times: int = 2, helpers: int = 2
) -> Replayed:  # fmt: skip
    """Do the work of a step again: every rank its own `times` times, and that of `helpers` of its neighbours once.

    work(rank): what rank `rank` computed in that step (its gradients, say), from the state and the samples of then.
    recorded: the `checksum` of what this rank really got. Every rank calls it. It costs times + helpers steps of
    compute, and one all-gather of 8 bytes for each. With fewer than three ranks, and for a fault that is always the
    same, nobody can say which of two is right: both are suspects.
    """
    if type(times) is not int or type(helpers) is not int or times < 2 or helpers < 0:
        raise RefusedError(
            f"replay(times={times!r}, helpers={helpers!r}): needs at least 2 times, and 0 helpers or more"
        )
    n, me = group.size, group.rank
    helpers = min(helpers, n - 1)
    owners = [me] * times + [(me + k) % n for k in range(1, helpers + 1)]
    mine = [recorded, *(checksum(work(owner)) for owner in owners)]
    sent = torch.tensor([mine], dtype=torch.int64, device=group.device)
    return judge(collectives.all_gather(sent, group).tolist(), times)


def judge(table: list[list[int]], times: int) -> Replayed:
    """The verdict on the checksums of all ranks: recorded, `times` own replays, the work of the next neighbours."""
    n = len(table)
    frozen = tuple(tuple(row) for row in table)
    own = [row[1 : 1 + times] for row in table]
    shaky = {r for r in range(n) if len(set(own[r])) > 1}
    if n > 1 and 2 * len(shaky) > n:
        return Replayed((), False, "not deterministic", frozen)
    once = {r for r in range(n) if r not in shaky and table[r][0] != own[r][0]}
    clues = [frozenset({r}) for r in sorted(shaky)]
    for owner in range(n):
        said = {owner: own[owner][0]} if owner not in shaky else {}
        for k, helper in enumerate((owner - k) % n for k in range(1, len(table[0]) - times)):
            if helper not in shaky:
                said[helper] = table[helper][1 + times + k]
        ranks = sorted(said)
        clues += [frozenset({a, b}) for i, a in enumerate(ranks) for b in ranks[i + 1 :] if said[a] != said[b]]
    if not clues:
        pattern = "transient" if once else "clean"
        return Replayed(tuple(sorted(once)), True, pattern, frozen)
    suspects, exact = fewest(clues)
    pattern = "intermittent" if suspects & shaky else "persistent"
    return Replayed(tuple(sorted(suspects)), exact, pattern, frozen)
