"""The parameter server (Li et al. 2014) with bounded staleness (SSP, Ho et al. 2013).

    if group.rank == 0:
        serve(weights, group, s=2, lr=0.1)
    else:
        worker = Worker(group)
        for batch in batches:
            weights = worker.pull(weights)
            worker.push(gradient(weights, batch))
        worker.end()

Rank 0 holds the weights. A worker pulls them, computes a gradient, and pushes it; the server applies each gradient as
it comes. A worker that has pushed c gradients may pull only when the slowest has pushed c - s of them, and is not
answered before: so it never computes on weights in which more than the last s gradients of another worker, among the
first c of each, are missing. s = 0 makes a barrier of it; a large s lets everybody run.

The server serves the earliest request. On the virtual clock that is known when every worker that could send one has
done so (Chandy & Misra 1979). On the wall clock it is the earliest of those that are here.

What the full one (`labkit.parallel.Server`) does more: many parameters on several servers, rows of them, any optimizer,
gradients that are averaged (BSP), a log with the staleness of each update, corrections for it, and workers that die.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from labkit.wire import Group

PULL, PUSH, END = range(3)


def serve(weights: Tensor, group: Group, s: int, lr: float) -> list[tuple[int, int]]:
    """Train `weights` in place, until all workers have ended. Returns (worker, clock) of each update, in order."""
    clocks = dict.fromkeys(range(1, group.size), 0)  # how many gradients each worker has pushed
    heads: dict[int, Any] = {}  # the next request of each worker that may send one
    waiting: set[int] = set()  # workers that are too far ahead
    log = []

    def listen(worker: int) -> None:
        head = torch.empty(3, dtype=torch.int64)
        heads[worker] = head, group.irecv(head, worker)

    for worker in clocks:
        listen(worker)
    enough = all if group.context.clock_here().virtual else any
    while clocks:
        while not enough(request.done() for _, request in heads.values()):
            time.sleep(1e-4)
        worker = min((int(head[2]), w) for w, (head, request) in heads.items() if request.done())[1]
        what, clock, _ = heads.pop(worker)[1].wait().tolist()
        if what == PULL:
            waiting.add(worker)
        elif what == PUSH:
            gradient = group.recv(torch.empty_like(weights), worker)
            weights.add_(gradient, alpha=-lr)
            log.append((worker, clock))
            clocks[worker] += 1
            listen(worker)
        else:
            del clocks[worker]
        for worker in sorted(waiting):
            if clocks[worker] - min(clocks.values()) <= s:
                waiting.remove(worker)
                group.isend(weights.clone(), worker)  # a copy: the weights change while it is on its way
                listen(worker)
    return log


class Worker:
    """What a worker calls; `clock` counts its gradients."""

    def __init__(self, group: Group) -> None:
        self.group, self.clock = group, 0

    def pull(self, like: Tensor) -> Tensor:
        self._ask(PULL)
        return self.group.recv(torch.empty_like(like), 0)

    def push(self, gradient: Tensor) -> None:
        self._ask(PUSH)
        self.group.send(gradient, 0)
        self.clock += 1

    def end(self) -> None:
        self._ask(END)

    def _ask(self, what: int) -> None:
        self.group.send(torch.tensor([what, self.clock, self.group.context.clock_here().now()]), 0)
