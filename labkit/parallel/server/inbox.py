"""Whose request a server takes next.

On the virtual clock a request is taken when the next one of every worker is known that could still send one (a worker
whose pull waits cannot): then the earliest is known, by the worker's time and rank. This is the conservative rule of
discrete-event simulation (Chandy & Misra 1979), so a run is exact, repeatable, and the same on all servers. On the wall
clock the earliest of those that are here is taken, and servers may differ.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from labkit.wire.errors import WaitTimeout
from labkit.wire.group import Group
from labkit.wire.handle import MessageHandle

HEAD = 5  # numbers in the head of a request; the last one is the worker's time
LOOK = 1e-4  # seconds between two looks at whether a request has come


class Inbox:
    """A receive of the next head of each worker that may send one."""

    def __init__(self, group: Group):
        self.group = group
        self._heads: dict[int, tuple[Tensor, MessageHandle]] = {}

    def listen(self, worker: int) -> None:
        """From now on this worker may send a request."""
        head = torch.full((HEAD,), -1)  # one that never comes keeps its -1, and stands before all that did
        self._heads[worker] = head, self.group.irecv(head, worker)

    def next(self) -> int:
        """The worker to be served next: who is gone, or else whose request is the earliest. Waits until it is known."""
        context = self.group.context
        enough = all if context.clock_here().virtual else any
        until = time.monotonic() + context.timeout
        while not enough(handle.done() for _, handle in self._heads.values()):
            if time.monotonic() > until:
                silent = [worker for worker, (_, handle) in self._heads.items() if not handle.done()]
                raise WaitTimeout(
                    f"server on rank {self.group.rank} waited {context.timeout:g} s for a request of ranks {silent}: "
                    "do they call end()?"
                )
            time.sleep(LOOK)
        return min((int(head[-1]), worker) for worker, (head, handle) in self._heads.items() if handle.done())[1]

    def take(self, worker: int) -> list[int]:
        """The head of its request, all but the time. Raises PeerLost if the worker is gone."""
        head, handle = self._heads.pop(worker)
        return handle.wait().tolist()[: len(head) - 1]
