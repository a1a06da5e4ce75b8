"""AD-PSGD (Lian et al. 2018): gossip in pairs, in which nobody waits for a slow rank.

    with ADPSGD(module, group, optimizer, graphs.bipartite(group.size)) as model:
        for x, y in batches:                   # as many as this rank likes: ranks need not take equally many steps
            loss.backward()
            model.step()
            optimizer.zero_grad()

The graph has two sides. An *active* rank meets one neighbour in each of its steps, drawn at random, and both then hold
the average of their weights. A *passive* rank computes all the time, and beside that a thread for each active neighbour
answers whoever asks. Since only active ranks ask, and only passive ones answer, no ranks can wait in a circle.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import torch
from torch import Tensor, nn

from labkit.optim.synchrony.graphs import check_mixing, heard, sides
from labkit.optim.synchrony.weights import Weights
from labkit.wire.errors import PeerLost
from labkit.wire.group import Group

MEET, END = 1, 0  # what an active rank says in the byte before its weights


class ADPSGD:
    """Trains `module` with `optimizer` on this rank, and averages with one neighbour at a time.

    graph: a symmetric mixing matrix whose edges join two sides; only who is joined with whom counts here. seed: whom
    active ranks meet is a function of it, of the rank and of the step. The gradient of a step was computed at weights
    that a meeting may have changed since; the step is taken from those that are there now, as in the paper.

    On the virtual clock a meeting costs the active rank its messages and the passive one nothing; times are exact, but
    whose weights are met first is not repeatable. Bytes of an active rank: `cost.ad_psgd_bytes`. Raises RefusedError,
    on every rank, for a graph that is not connected or has an edge within a side. A neighbour that dies is left out.
    """

    def __init__(
        self, module: nn.Module, group: Group, optimizer: torch.optim.Optimizer, graph: Tensor, seed: int = 0
    ) -> None:
        (w,) = check_mixing(graph, group.size)
        active, _ = sides(w)
        self.group, self.optimizer, self.is_active = group, optimizer, group.rank in active
        self.weights = Weights(module, group, f"graph={w.tolist()}, seed={seed}")
        self.neighbours = heard(w, group.rank)
        self.meetings = 0  # averages that this rank was part of
        self._x = self._seen = self.weights.read()  # this rank's weights, and those that the module computes with
        self._one_at_a_time = threading.Lock()
        self._draw = random.Random(f"{seed} {group.rank}")
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._answer, args=(j, group.context.clock_here().now()), daemon=True)
            for j in self.neighbours if not self.is_active
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def step(self) -> None:
        """Meet a neighbour (if this rank is an active one), and take the optimizer's step from where that leads."""
        self.optimizer.step()
        moved = self.weights.read() - self._seen
        if self.is_active and self.neighbours:
            self._meet(self._draw.choice(self.neighbours))
        with self._one_at_a_time:
            self._x = self._seen = self._x + moved
        self.weights.write(self._seen)

    def close(self) -> None:
        """Say that this rank takes no more steps. A passive one goes on answering until its neighbours have said so."""
        for j in self.neighbours if self.is_active else ():
            try:
                self.group.send(torch.tensor([END], dtype=torch.uint8), j)
            except PeerLost:
                continue
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        self.weights.write(self._x)

    def __enter__(self) -> ADPSGD:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()

    def _meet(self, j: int) -> None:
        """Ask rank j, and take over the average."""
        try:
            self.group.send(torch.tensor([MEET], dtype=torch.uint8), j)
            self.group.send(self._x, j)
            self._x = self.group.recv(torch.empty_like(self._x), j)
            self.meetings += 1
        except PeerLost:
            self.neighbours.remove(j)

    def _answer(self, j: int, now: int) -> None:
        """The thread of a passive rank for its active neighbour j, with a clock of its own."""
        context = self.group.context
        context.local.clock = context.clock.fork()
        context.local.clock.reach(now)
        try:
            asked = torch.empty(1, dtype=torch.uint8)
            while self.group.recv(asked, j).item() == MEET:
                theirs = self.group.recv(torch.empty_like(self._x), j)
                with self._one_at_a_time:
                    self._x = mean = (self._x + theirs) / 2
                    self.meetings += 1
                self.group.send(mean, j)
        except PeerLost:
            pass
        except BaseException as failed:
            self._failed.append(failed)
        finally:
            context.recorder.free_slot(context.slot_here())
