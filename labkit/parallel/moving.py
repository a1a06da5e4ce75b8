"""Parts of tensors that change their ranks: from the layout that is to the layout that is wanted.

Used three times. With nonuniform tensor parallelism gradients go from the compute layout to the sync layout and back
in every step, inside a replica. When a rank is lost or returns, weights and optimizer state go to where the new layouts
want them, inside a replica where that can be, else from another one. And in alignment weights go from the layout that
trains to the one that generates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.handle import MessageHandle

Places = Sequence[int]  # numbers along one dimension of a whole tensor, in the order in which a rank holds them


@dataclass(frozen=True)
class Moves:
    """Who sends which places of one tensor to whom. sent[a][b]: places that rank a sends to rank b, ascending.

    dim: of the whole tensor, along which places are counted. have, want: places by rank, before and after.
    """

    dim: int
    have: Sequence[Places]
    want: Sequence[Places]
    sent: Mapping[int, Mapping[int, Places]] = field(repr=False)

    def counts(self) -> list[list[int]]:
        """counts[a][b]: how many places rank a sends to rank b."""
        ranks = range(len(self.want))
        return [[len(self.sent.get(a, {}).get(b, ())) for b in ranks] for a in ranks]


def plan(have: Sequence[Places], want: Sequence[Places], *, dim: int = 0, near: Sequence[int] | None = None) -> Moves:
    """The fewest moves that give every rank the places it wants.

    A rank keeps what it has. What it lacks comes from a rank of the same `near` number (a replica), if one has it, and
    else from any other; where several have it the receivers are shared out among them.
    Raises RefusedError if a place is wanted that no rank has.
    """
    holders: dict[int, list[int]] = {}
    for rank, places in enumerate(have):
        for place in places:
            holders.setdefault(place, []).append(rank)
    sent: dict[int, dict[int, list[int]]] = {}
    for rank, places in enumerate(want):
        own = set(have[rank])
        for place in sorted(set(places) - own):
            sources = holders.get(place)
            if sources is None:
                raise RefusedError(
                    f"no rank is left that has place {place} along dimension {dim}, which rank {rank} needs"
                )
            if near is not None:
                sources = [s for s in sources if near[s] == near[rank]] or sources
            sent.setdefault(sources[rank % len(sources)], {}).setdefault(rank, []).append(place)
    return Moves(dim, have, want, sent)


class Carrier:
    """Carries out moves of several tensors at a time, for one rank: one message to and from each partner.

    moves: of each tensor. All ranks of `group` make it alike, and call `begin` in the same order. staggered: each rank
    begins with the one after it, so that not all send to the same one at a time; else all begin with rank 0.
    """

    def __init__(self, moves: Sequence[Moves], group: Group, staggered: bool = False) -> None:
        self.group, self.moves = group, list(moves)
        me = group.rank
        self._keep, self._give, self._take = [], list[dict[int, Tensor]](), list[dict[int, Tensor]]()
        for m in self.moves:
            here = {place: i for i, place in enumerate(m.have[me])}
            there = {place: i for i, place in enumerate(m.want[me])}
            kept = [place for place in m.want[me] if place in here]
            self._keep.append((self._index(here, kept), self._index(there, kept)))
            self._give.append({to: self._index(here, places) for to, places in m.sent.get(me, {}).items()})
            self._take.append({a: self._index(there, to[me]) for a, to in m.sent.items() if me in to})
        first = me if staggered else 0
        sources, targets = ({rank for some in by for rank in some} for by in (self._take, self._give))
        self.partners_out = sorted(targets, key=lambda to: (to - first) % group.size)
        self.partners_in = sorted(sources, key=lambda source: (first - source) % group.size if staggered else source)

    def begin(self, parts: Sequence[Tensor]) -> Carried:
        """Begin to move `parts`, which this rank has. `Carried.wait()` returns those that it wanted: new tensors.

        All parts are of one dtype. Sent: `counts` of each, times the bytes of one place.
        """
        wanted = [
            x.new_empty([*x.shape[: m.dim], len(m.want[self.group.rank]), *x.shape[m.dim + 1 :]])
            for x, m in zip(parts, self.moves, strict=True)
        ]
        incoming, handles = [], []
        for source in self.partners_in:
            shapes = [self._shape(x, m.dim, take.get(source)) for x, m, take in self._with(parts, self._take)]
            message = parts[0].new_empty(sum(map(_numel, shapes)))
            incoming.append((source, message, shapes, self.group.irecv(message, source)))
        for to in self.partners_out:
            pieces = [x.index_select(m.dim, give[to]) for x, m, give in self._with(parts, self._give) if to in give]
            handles.append(self.group.isend(torch.cat([piece.reshape(-1) for piece in pieces]), to))
        for x, out, m, (source_at, at) in zip(parts, wanted, self.moves, self._keep, strict=True):
            if len(at):
                out.index_copy_(m.dim, at, x.index_select(m.dim, source_at))
        return Carried(self, wanted, incoming, handles)

    def received_bytes(self, parts: Sequence[Tensor]) -> int:
        """What arrives from other ranks when these parts are moved."""
        return sum(
            _numel(self._shape(x, m.dim, index)) * x.itemsize
            for x, m, take in self._with(parts, self._take)
            for index in take.values()
        )

    def _with(
        self, parts: Sequence[Tensor], indices: Sequence[dict[int, Tensor]]
    ) -> list[tuple[Tensor, Moves, dict[int, Tensor]]]:
        return list(zip(parts, self.moves, indices, strict=True))

    def _index(self, where: Mapping[int, int], places: Places) -> Tensor:
        return torch.tensor([where[place] for place in places], dtype=torch.long, device=self.group.device)

    @staticmethod
    def _shape(x: Tensor, dim: int, index: Tensor | None) -> list[int]:
        return [*x.shape[:dim], 0 if index is None else len(index), *x.shape[dim + 1 :]]


class Carried:
    """Moves that are under way."""

    def __init__(
        self, carrier: Carrier, wanted: list[Tensor],
        incoming: list[tuple[int, Tensor, list[list[int]], MessageHandle]], outgoing: list[MessageHandle],
    ) -> None:  # fmt: skip
        self._carrier, self._wanted, self._incoming, self._outgoing = carrier, wanted, incoming, outgoing

    def wait(self) -> list[Tensor]:
        """The tensors that this rank wanted, when all has arrived and has been taken."""
        carrier = self._carrier
        for source, message, shapes, handle in self._incoming:
            handle.wait()
            pieces = message.split([_numel(shape) for shape in shapes])
            for out, m, take, piece, shape in zip(
                self._wanted, carrier.moves, carrier._take, pieces, shapes, strict=True
            ):
                if source in take:
                    out.index_copy_(m.dim, take[source], piece.view(shape))
        for handle in self._outgoing:
            handle.wait()
        self._incoming, self._outgoing = [], []
        return self._wanted


def _numel(shape: Sequence[int]) -> int:
    n = 1
    for length in shape:
        n *= length
    return n
