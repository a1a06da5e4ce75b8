"""signSGD with majority vote (Bernstein, Wang, Azizzadenesheli & Anandkumar 2018): one bit a number, both ways.

    each rank votes for the sign of its gradient
    rank r gets everybody's votes on part r, and counts them
    it sends everybody what was decided

All messages of a round begin at the same time, so that two rounds cost two latencies, however many ranks there are.

`.grad` becomes -1 or 1, so that the learning rate is how far each weight moves in a step. There is no server as in the
paper: every rank counts one part, and sends about 2 (N - 1) / N bits for each number, whatever N is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from labkit.collectives.chunks import even_sizes
from labkit.optim.compression.payload import pack, unpack
from labkit.optim.compression.state import HookState
from labkit.wire.group import Group


class MajorityVote(HookState):
    """The hook. It keeps nothing, and converges where most ranks are right more often than not: see `counterexample`.

    A 0 votes as a positive number does, also that of a rank whose data has ended (`join`). With an even number of
    ranks there are ties: the rank that counts decides by its own vote, which is as likely right as the other side's;
    a fixed sign would move all weights one way.

    Bytes that a rank sends for a bucket: `cost.majority_vote_bytes_by_rank`. Tensors are on the CPU.
    """

    feedback = False

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(check_nan=check_nan)

    def bucket(self, flat: Tensor, gradients: Mapping[str, Tensor], group: Group) -> _Election:
        """Start to send the votes."""
        parts = pack(flat < 0, 1).split(even_sizes(-(-len(flat) // 8), group.size))
        return _Election(flat, group, parts, _Round(group, parts, [len(parts[group.rank])] * group.size))


class _Round:
    """A message to each rank and one from each, all begun at once. nbytes: how long those are that come."""

    def __init__(self, group: Group, parts: Sequence[Tensor], nbytes: Sequence[int]) -> None:
        n, me = group.size, group.rank
        self._came = [torch.empty(count, dtype=torch.uint8) for count in nbytes]
        self._came[me].copy_(parts[me])
        near = [(me + k) % n for k in range(1, n)]  # another one first on each rank
        self._sending = [group.isend(parts[to].contiguous(), to) for to in near if len(parts[to])]
        self._coming = [group.irecv(self._came[of], of) for of in near if nbytes[of]]

    def wait(self) -> Tensor:
        """What came, joined in the order of ranks."""
        for handle in [*self._coming, *self._sending]:
            handle.wait()
        return torch.cat(self._came)


class _Election:
    """Waits for the votes, counts this rank's part, and shares the result. parts: this rank's votes, by who counts."""

    def __init__(self, flat: Tensor, group: Group, parts: Sequence[Tensor], votes: _Round) -> None:
        self._flat, self._group, self._parts, self._votes = flat, group, parts, votes

    def wait(self) -> None:
        group, mine = self._group, len(self._parts[self._group.rank])
        negative = unpack(self._votes.wait(), 1, 8 * mine * group.size).view(group.size, 8 * mine)
        twice = 2 * negative.sum(0)
        decided = pack((twice > group.size) | ((twice == group.size) & (negative[group.rank] == 1)), 1)
        signs = _Round(group, [decided] * group.size, [len(part) for part in self._parts]).wait()
        self._flat.copy_(1 - 2 * unpack(signs, 1, len(self._flat)))
