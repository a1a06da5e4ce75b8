"""The `gloo` transport: point-to-point messages of torch.distributed's CPU backend.

It runs on every machine that has PyTorch. Three habits of it shape this file: a handle cannot be polled
(`is_completed()` stays False after delivery), so a thread waits for what `isend` and `irecv` began; a receive
that timed out closes the pair, so nobody times out before the run itself ends; and messages carry no header,
so mismatches are found by the supervisor from the status pages.
Messages of two lanes are told apart by their tag.
"""

from __future__ import annotations

import concurrent.futures
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import PeerLost, WaitTimeout
from ..message import Message
from . import FOREVER, Lane, Site, Transport, kind
from .epoch import Epoch


class GlooTransport(Transport):
    """Point-to-point over a gloo process group of its own, so that native collectives have their sockets alone.

    limit: seconds after which gloo itself gives up on connecting; later than every other time-out where there is
    a supervisor.
    """

    name = "gloo"

    def __init__(self, rank: int, size: int, store: dist.Store, limit: float, timed: bool):
        self.rank, self.timed = rank, timed
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=limit)
        # Every pair is connected now. Connected at its first message, half of the pairs would make whoever speaks
        # first wait for an answer, and the peer may be in a call that waits for this rank.
        options._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=False)]
        mine = dist.PrefixStore("labkit-p2p", store)
        self.pg: Any = dist.ProcessGroupGloo(mine, rank, size, options)
        # A rank whose function fails at once would close its pairs while others still connect theirs to it.
        if mine.add("connected", 1) == size:
            mine.set("all connected", "")
        mine.wait(["all connected"], timedelta(seconds=limit))

    def lane(self, key: int, lane: int, timeout: float, epoch: Epoch | None = None) -> GlooLane:
        """A tag of its own for one lane of one group."""
        return GlooLane(self, (key * 2 + lane) & 0x3FFFFFFF, timeout)

    def close(self) -> None:
        self.pg = None


class GlooLane(Lane):
    """Sends and receives under one tag."""

    def __init__(self, transport: GlooTransport, tag: int, timeout: float):
        self.transport, self.tag, self.timeout = transport, tag, timeout
        self._limit = timedelta(seconds=timeout)
        self._waiters: concurrent.futures.ThreadPoolExecutor | None = None
        self._combining = threading.Lock()

    def push(self, m: Message) -> list[Any]:
        """Begin a send; returns gloo's work objects."""
        pg, begun = self.transport.pg, []
        if self.transport.timed:
            m.head = torch.tensor([m.sent])
            begun.append(pg.send([m.head], m.peer, self.tag))
        begun.append(pg.send([m.raw if m.nbytes else _NOTHING], m.peer, self.tag))
        return begun

    def pull(self, m: Message) -> list[Any]:
        """Begin a receive."""
        pg, begun = self.transport.pg, []
        if self.transport.timed:
            m.head = torch.zeros(1, dtype=torch.int64)
            begun.append(pg.recv([m.head], m.peer, self.tag))
        if m.op is None:
            begun.append(pg.recv([m.raw if m.nbytes else torch.zeros(1, dtype=torch.uint8)], m.peer, self.tag))
        else:
            m.scratch = torch.empty(max(m.nbytes, 1), dtype=torch.uint8)
            begun.append(pg.recv([m.scratch], m.peer, self.tag))
        return begun

    def run(self, *messages: tuple[Any, Message], limit: float = FOREVER) -> None:
        """Move the messages now and return when all are done."""
        # receives first: a gloo sender waits to hear that its receiver is ready
        begun = [(m, self._begin(advance, m)) for advance, m in reversed(messages)]
        for m, works in begun:
            self._finish(m, works)

    def post(self, advance: Any, m: Message) -> None:
        """Start a message; a thread waits for its end and sets `m.done`."""
        if self._waiters is None:
            # A thread for each message under way, made when needed: fewer, and one that is over might go unnoticed.
            self._waiters = concurrent.futures.ThreadPoolExecutor(4096, "labkit-waiter")
        m.done = m.done or threading.Event()
        works = self._begin(advance, m)

        def wait() -> None:
            try:
                self._finish(m, works)
            except BaseException as error:
                m.error = error
            m.finish()

        self._waiters.submit(wait)

    def wait(self, m: Message, limit: float = FOREVER) -> None:
        """Wait for a posted message and raise what went wrong with it."""
        assert m.done is not None
        if not m.done.wait(self.timeout):
            raise self._late(m)
        if m.error is not None:
            raise m.error

    def _begin(self, advance: Any, m: Message) -> list[Any]:
        try:
            return advance(m)
        except RuntimeError as why:
            raise self._lost(m, why) from why

    def _finish(self, m: Message, works: list[Any]) -> None:
        try:
            for work in works:
                work.wait(self._limit)
        except RuntimeError as why:
            raise self._lost(m, why) from why
        if m.scratch is not None:
            m.sent = int(m.head) if m.head is not None else 0
            if m.nbytes:
                with self._combining:  # two messages may be added to the same tensor
                    m.op.combine_(m.x.detach().view(-1), m.scratch.view(m.x.dtype))
        elif m.head is not None:
            m.sent = int(m.head)

    def _late(self, m: Message) -> WaitTimeout:
        me = self.transport.rank
        return WaitTimeout(
            f"rank {me} waited {self.timeout:g} s for rank {m.peer}: nothing moved. "
            f"Is rank {m.peer} in the same operation? `timeout=` sets the longest single wait"
        )

    def _lost(self, m: Message, why: RuntimeError) -> RuntimeError:
        text = str(why).splitlines()[0]
        if "imed out" in text or "imeout" in text:
            return self._late(m)
        return PeerLost(f"rank {self.transport.rank} lost rank {m.peer}: {text}", m.peer)

    def close(self) -> None:
        """gloo closes its sockets with the process."""


@kind("gloo")
def _gloo(site: Site) -> GlooTransport:
    return GlooTransport(site.rank, site.size, site.store, site.limit, site.timed)


_NOTHING = torch.zeros(1, dtype=torch.uint8)
