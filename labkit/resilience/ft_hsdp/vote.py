"""What the ranks of a replica tell each other: the leader's decision, and a vote in two phases.

All of it goes over the inner group, as small collectives. Nobody outside the replica takes part, and an error here is
not caught: a replica whose ranks cannot speak with each other has to start again as a whole.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from labkit import collectives
from labkit.wire.group import Group

ROOM = 4096  # bytes that travel with the first message; what is longer takes a second one
_LENGTH = 8


def tell(inner: Group, found: dict[str, Any] | None, limit: float) -> dict[str, Any]:
    """What the leader (rank 0, which passes `found`) says, on every rank. limit: seconds."""
    if inner.size == 1:
        assert found is not None
        return found
    raw = json.dumps(found).encode() if inner.rank == 0 else b""
    first = torch.zeros(_LENGTH + ROOM, dtype=torch.uint8, device=inner.device)
    if inner.rank == 0:
        head = len(raw).to_bytes(_LENGTH, "big") + raw[:ROOM]
        first[: len(head)] = torch.tensor(list(head), dtype=torch.uint8)
    with inner.within(limit):
        collectives.broadcast(first, inner)
        got = bytes(first.tolist())
        length = int.from_bytes(got[:_LENGTH], "big")
        got = got[_LENGTH : _LENGTH + length]
        if length > ROOM:
            rest = torch.zeros(length - ROOM, dtype=torch.uint8, device=inner.device)
            if inner.rank == 0:
                rest.copy_(torch.tensor(list(raw[ROOM:]), dtype=torch.uint8))
            got += bytes(collectives.broadcast(rest, inner).tolist())
    return found if inner.rank == 0 and found is not None else json.loads(got)


def vote(inner: Group, yes: bool, limit: float) -> int:
    """Two phases: every rank tells the leader whether it is ready; the leader decides and tells all.

    Returns -1 if all ranks said yes, and else the first rank that did not: the same on every rank. limit: seconds.
    The leader waits for its slowest rank; a rank that died in between is an error here (PeerLost).
    """
    if inner.size == 1:
        return -1 if yes else 0
    mine = torch.tensor([int(yes)], dtype=torch.int64, device=inner.device)
    with inner.within(limit):
        said = collectives.gather(mine, inner, root=0)
        decision = torch.full((1,), -1, dtype=torch.int64, device=inner.device)
        if inner.rank == 0:
            against = [rank for rank, flag in enumerate(said.tolist()) if not flag]
            decision[0] = against[0] if against else -1
        return int(collectives.broadcast(decision, inner).item())
