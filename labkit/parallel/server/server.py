"""The server's side: a loop that answers whoever comes first, and lets wait whom the policy lets wait.

A worker that is gone is no longer counted, so nobody waits for it. What it pushed for an update that it did not
tick is dropped as a whole, and so is a push that was half here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.optim.synchrony import DelayCompensation, Policy
from labkit.parallel.server.inbox import Inbox
from labkit.parallel.server.log import Update, Wait
from labkit.parallel.server.shards import END, PULL, TICK, WHOLE, Shards
from labkit.parallel.server.update import Pushed, Updates
from labkit.wire.errors import PeerLost, RefusedError
from labkit.wire.group import Group
from labkit.wire.handle import MessageHandle


def full_rate(tau: int) -> float:
    """The learning rate as it is, whatever the staleness."""
    return 1.0


class Server:
    """One server. Made on all servers while the workers make their `Client`, with the same arguments.

    named: the parameters by name, with the values to begin with (those of this server's own rows count).
    optimizer, rate, compensation: see `Updates`. Each server logs a worker's update, once. A worker that dies in the
    middle of `tick` may leave an update that some servers have applied and others have not: their logs show it.
    """

    def __init__(
        self, named: Mapping[str, Tensor], group: Group, servers: Sequence[int], *, policy: Policy,
        optimizer: Callable[[list[nn.Parameter]], Optimizer], rate: Callable[[int], float] = full_rate,
        compensation: DelayCompensation | None = None,
    ):  # fmt: skip
        self.shards, self.group, self.policy = Shards(named, group, servers, serving=True), group, policy
        self._me = f"server on rank {group.rank}"
        self.log: list[Update] = []
        self.waits: list[Wait] = []
        self.lost: list[int] = []  # workers that went without a word
        own = self.shards.servers.index(group.rank)
        pieces = {n: x.reshape(self.shards.shapes[n])[self.shards.parts(n, None)[own]] for n, x in named.items()}
        self._updates = Updates(pieces, optimizer, rate, compensation)
        workers = self.shards.workers
        self._clocks = dict.fromkeys(workers, 0)  # of those that are not gone
        self._version = dict.fromkeys(workers, 0)  # of the oldest weights that a worker has got in this clock
        self._read_at: dict[int, int] = {}  # the clock in which it got them
        self._pushed: dict[int, Pushed] = {w: {} for w in workers}
        self._finished: dict[int, tuple[int, Pushed]] = {}  # clocks whose updates are complete, and not applied yet
        self._waiting: dict[int, tuple[str, Tensor | None, int | None]] = {}  # pulls, and since when they wait
        self._answers: dict[int, MessageHandle] = {}
        self._leaving: set[int] = set()  # workers that have ended, and do not know yet that all of theirs is applied
        self._farewells: list[MessageHandle] = []
        self._inbox = Inbox(group)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """This server's rows of each parameter."""
        return {name: p.detach() for name, p in self._updates.pieces.items()}

    def serve(self) -> list[Update]:
        """Answer until all workers have ended or are gone; returns the log. Refuses NaN with the worker's rank."""
        for worker in self._clocks:
            self._inbox.listen(worker)
        while self._clocks:
            worker = self._inbox.next()
            try:
                self._take(worker)
            except PeerLost:
                self.lost.append(worker)
                self._drop(worker)
            self._go_on()
        for answer in self._farewells:
            with contextlib.suppress(PeerLost):
                answer.wait()
        return self.log

    def _take(self, worker: int) -> None:
        """Serve one request. Raises PeerLost if its worker is gone."""
        what, clock, number, count = self._inbox.take(worker)
        if worker in self._answers:
            self._answers.pop(worker).wait()
        if what == END:
            self._drop(worker)
            self._leaving.add(worker)
        elif what == TICK:
            self._tick(worker, clock)
            self._inbox.listen(worker)
        else:
            name = self.shards.names[number]
            rows = None if count == WHOLE else self.group.recv(torch.empty(count, dtype=torch.int64), worker)
            rows = None if rows is None else rows - self._first_row(name)
            if what == PULL:
                self._waiting[worker] = name, rows, None
            else:
                self._push(worker, clock, name, rows)
                self._inbox.listen(worker)

    def _push(self, worker: int, clock: int, name: str, rows: Tensor | None) -> None:
        """Take a part of a worker's update."""
        piece = self._updates.pieces[name]
        shape = piece.shape if rows is None else (len(rows), *piece.shape[1:])
        gradient = self.group.recv(torch.empty(shape, dtype=piece.dtype), worker)
        self._updates.check(name, rows, gradient, f"{self._me}: rank {worker} at clock {clock}")
        self._pushed[worker].setdefault(name, []).append((rows, gradient))

    def _tick(self, worker: int, clock: int) -> None:
        """A worker's update is here as a whole."""
        if worker in self._finished:
            raise RefusedError(
                f"{self._me}: rank {worker} ends its clock {clock} before all have ended clock {clock - 1}: where "
                "gradients are averaged, each clock begins with a pull"
            )
        self._finished[worker] = clock, self._pushed.pop(worker)
        self._pushed[worker] = {}
        self._clocks[worker] = clock + 1

    def _drop(self, worker: int) -> None:
        """This worker is no longer counted. What it has finished is applied all the same."""
        for of_worker in (self._clocks, self._pushed, self._waiting, self._answers):
            of_worker.pop(worker, None)

    def _go_on(self) -> None:
        """Apply what is complete, and answer the pulls that need not wait any longer."""
        if not self.policy.together or self._finished.keys() >= self._clocks.keys():
            self._apply()
        for worker in sorted(self._leaving - self._finished.keys()):
            self._leaving.remove(worker)
            self._farewells.append(self.group.isend(torch.empty(0), worker))
        for worker in sorted(self._waiting):
            name, rows, since = self._waiting[worker]
            if not self.policy.waits(self._clocks[worker], min(self._clocks.values())):
                del self._waiting[worker]
                if since is not None:
                    self.waits.append(Wait(worker, self._clocks[worker], self._now() - since))
                self._answer(worker, name, rows)
            elif since is None:
                self._waiting[worker] = name, rows, self._now()

    def _apply(self) -> None:
        """One update of all that workers have finished, in the order of their ranks."""
        if not self._finished:
            return
        workers, before = sorted(self._finished), len(self.log)
        taus = [before - self._version[w] for w in workers]
        clocks = [self._finished[w][0] for w in workers]
        with self.group.span("update", workers=workers, clocks=clocks):
            self._updates.apply([(w, self._finished.pop(w)[1]) for w in workers], max(taus))
            self.log += map(Update, workers, clocks, [before - tau for tau in taus], taus, [self._now()] * len(workers))

    def _answer(self, worker: int, name: str, rows: Tensor | None) -> None:
        if self._read_at.get(worker) != self._clocks[worker]:
            self._read_at[worker], self._version[worker] = self._clocks[worker], len(self.log)
        with contextlib.suppress(PeerLost):  # who listens to it next will learn of it
            self._answers[worker] = self.group.isend(self._updates.read(worker, name, rows), worker)
        self._inbox.listen(worker)

    def _first_row(self, name: str) -> int:
        return self.shards.parts(name, None)[self.shards.servers.index(self.group.rank)].start

    def _now(self) -> int:
        return self.group.context.clock_here().now()
