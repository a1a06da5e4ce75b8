"""The sum of gradients without a shard map, to compare with: each replica cut into stretches, whoever overlaps talks.

A replica of 8 ranks and one of 7 cut the same line at different places, so a rank shares shards with one or two ranks
of the other replica, and must sum each stretch with another partner. Nothing can be joined into one all-reduce: a
message goes over the slow links for each parameter and each pair of ranks that share some of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labkit.parallel.tensor.shard_spec import ShardSpec, shard_specs_of
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .replicas import Replicas, positions_of


class NaiveSync:
    """Sums the gradients of two replicas whose models are cut evenly (no `placement`), each by its own width.

    joined: one message for each pair of ranks, of all parameters together; else one for each parameter and pair.
    What all ranks of a replica have goes between ranks of the same position, and to extra ranks from the first one.
    """

    def __init__(
        self, model: nn.Module, replicas: Replicas, group: Group, *, share: float, joined: bool = False
    ) -> None:
        if len(replicas.members) != 2:
            raise RefusedError(f"NaiveSync is for two replicas, not {len(replicas.members)}")
        self.replicas, self.group, self.share, self.joined = replicas, group, share, joined
        self.replica, self.position = replicas.place(group.global_ranks[group.rank])
        other = replicas.members[1 - self.replica]
        self._others = positions_of(other, group.global_ranks)
        self._mates = positions_of(replicas.members[self.replica], group.global_ranks)
        self._parts = [
            (p, cut, self._shared(cut, len(other))) for _, p, cut in shard_specs_of(model) if p.requires_grad
        ]

    def _shared(self, cut: ShardSpec | None, width: int) -> dict[int, Tensor]:
        """Position in the other replica -> which of this rank's places it has too, ascending in the whole tensor."""
        if cut is None:
            return {}
        if cut.count:
            raise RefusedError("NaiveSync is for models that are cut evenly: leave out `placement`")
        mine = cut.places(self.position)
        here = {int(place): i for i, place in enumerate(mine)}
        theirs = ShardSpec.even(cut.dim, cut.sections, width)
        found = {r: [here[p] for p in sorted(theirs.places(r).tolist()) if p in here] for r in range(width)}
        return {r: torch.tensor(places) for r, places in found.items() if places}

    @torch.no_grad()
    def sum(self) -> None:
        """Every `.grad` becomes the weighted sum over both replicas."""
        whole = [p for p, cut, _ in self._parts if cut is None]
        cut_ones = [(p, cut, shared) for p, cut, shared in self._parts if cut is not None]
        for p, _, _ in self._parts:
            assert p.grad is not None
            p.grad = p.grad * self.share
        batches = [cut_ones] if self.joined else [[one] for one in cut_ones]
        waiting = []
        for batch in batches:
            for r in sorted({r for _, _, shared in batch for r in shared}):
                pieces = [(p, cut.dim, shared[r]) for p, cut, shared in batch if r in shared]
                out = torch.cat([p.grad.index_select(dim, places).reshape(-1) for p, dim, places in pieces])  # type: ignore[union-attr]
                like = torch.empty_like(out)
                into = self.group.irecv(like, self._others[r])
                waiting.append((pieces, like, into, self.group.isend(out, self._others[r])))
        self._sum_whole(whole)
        for pieces, like, into, out_handle in waiting:
            into.wait()
            out_handle.wait()
            for (p, dim, places), flat in zip(pieces, like.split([_numel(*piece) for piece in pieces]), strict=True):
                assert p.grad is not None
                shape = [*p.shape[:dim], len(places), *p.shape[dim + 1 :]]
                p.grad.index_add_(dim, places, flat.view(shape))

    def _sum_whole(self, parameters: Sequence[nn.Parameter]) -> None:
        """What every rank of a replica has alike."""
        if not parameters:
            return
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        if self.position < self.replicas.narrowest:
            other = torch.empty_like(flat)
            into = self.group.irecv(other, self._others[self.position])
            out = self.group.isend(flat.clone(), self._others[self.position])
            into.wait()
            out.wait()
            flat += other
            if self.position == 0:
                for mate in self._mates[self.replicas.narrowest :]:
                    self.group.send(flat, mate)
        else:
            self.group.recv(flat, self._mates[0])
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view(p.shape)


def _numel(p: Tensor, dim: int, places: Tensor) -> int:
    return p.numel() // p.shape[dim] * len(places)
