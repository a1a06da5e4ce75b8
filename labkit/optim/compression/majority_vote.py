"""signSGD with majority vote (Bernstein, Wang, Azizzadenesheli & Anandkumar 2018): one bit a number, both ways.

    each rank votes for the sign of its gradient
    an all-to-all gives rank r everybody's votes on part r; it counts them
    an all-gather gives everybody what was decided

`.grad` becomes -1 or 1, so that the learning rate is how far each weight moves in a step. There is no server as in the
paper: every rank counts one part, and sends about 2 (N - 1) / N bits for each number, whatever N is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from labkit.collectives import all_gather, all_to_all
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
        votes = pack(flat < 0, 1)
        return _Election(flat, group, len(votes), all_to_all(votes, group, algorithm="pairwise", async_op=True))


class _Election:
    """Waits for the votes, counts this rank's part, and shares the result. nbytes: of one rank's votes on all."""

    def __init__(self, flat: Tensor, group: Group, nbytes: int, handle: Any) -> None:
        self._flat, self._group, self._nbytes, self._handle = flat, group, nbytes, handle

    def wait(self) -> None:
        group, parts = self._group, even_sizes(self._nbytes, self._group.size)
        ballots = self._handle.wait()  # of rank 0 on my part, of rank 1 ...
        negative = unpack(ballots, 1, 8 * len(ballots)).view(group.size, 8 * parts[group.rank])
        twice = 2 * negative.sum(0)
        decided = (twice > group.size) | ((twice == group.size) & (negative[group.rank] == 1))
        signs = all_gather(pack(decided, 1), group, sizes=parts, algorithm="ring")
        self._flat.copy_(1 - 2 * unpack(signs, 1, len(self._flat)))
