"""Links on which no byte leaves before its receiver is there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.wire import Group


class Meeting:
    """A group in which a sender waits until its receiver says, by a message of no bytes, that it is there.

    So no link needs memory of its own: a rendezvous as MPI and network cards make it.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def send(self, x: Tensor, to: int) -> None:
        self._group.recv(torch.zeros(0), source=to)
        self._group.send(x, to)

    def recv(self, like: Tensor, source: int) -> Tensor:
        self._group.send(torch.zeros(0), source)
        return self._group.recv(like, source)
