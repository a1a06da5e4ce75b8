"""Clients of chapter 13 whose data stays at home: how they train, who of them dies, and which secrets they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import Kill
from labkit.data import Images
from labkit.wire import Group


def labels_of(parts: Any, labels: Tensor) -> list[list[int]]:
    """How many examples of each of ten labels each client has."""
    return [labels[part].bincount(minlength=10).tolist() for part in parts]


def secrets(group: Group) -> dict[int, bytes]:
    """By partner, the secret that this client shares with it; a toy, since anybody can work it out."""
    return {p: bytes(sorted((group.rank, p))) for p in range(group.size) if p != group.rank}


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """The part of the images whose digit the model says."""
    return float((model(images.x).argmax(1) == images.y).double().mean())


def epochs(model: nn.Module, images: Images, mine: Tensor, count: int, seed: int) -> int:
    """SGD on the images `mine`, in batches of 32, `count` times over them; returns how many these are."""
    sgd, dice = torch.optim.SGD(model.parameters(), 0.1), torch.Generator().manual_seed(seed)
    for _ in range(count):
        for part in mine[torch.randperm(len(mine), generator=dice)].split(32):
            sgd.zero_grad()
            F.cross_entropy(model(images.x[part]), images.y[part]).backward()
            sgd.step()
    return len(mine)


DYING = ("nobody", "the largest client", "the smallest client")


def dies(who: str, parts: Sequence[Tensor]) -> dict[str, Any]:
    """Options of a run in which one of the clients is killed in round 3, after two whole rounds; rank 0 is the server.

    who: one of `DYING`. parts: the images of each client.
    """
    if who not in DYING:
        raise ValueError(f"who={who!r} is none of {', '.join(map(repr, DYING))}")
    if who == "nobody":
        return {}
    pick = max if who == "the largest client" else min
    client = pick(range(len(parts)), key=lambda n: len(parts[n]))
    return {"faults": [Kill(client + 1, step=3)], "on_failure": "continue"}
