"""The `gloo` transport: point-to-point messages of torch.distributed's CPU backend.

It runs on every machine that has PyTorch. Three habits of it shape this file: a handle cannot be polled
(`is_completed()` stays False after delivery), so whoever wants to know waits, or a thread does; a wait that ran out
closes the connection, so that the peer has an error and the group is of use for `rebuild` only; and messages carry no
header, so mismatches are found by the supervisor from the status pages. What a header would say first, the number of
the message and its bytes, is in its tag: none is ever taken for another one, which would be a wrong sum or, where it is
longer, the end of the process in C++. Of one that was lost the receiver learns at its limit.

Who is gone is heard in three ways: the kernel closes the sockets of a process that died, and gloo raises on both sides
of each within milliseconds; who leaves a group closes its connections itself; and for what gloo does not tell who
waits in it, a thread looks ten times a second (`_look_out`): a rank that has ended without dying, or lives another
life, and one that is not waited for but that the exchange needs, as FTAR does its right neighbour.
Connections are made one by one (gloo_link.py).
"""

from __future__ import annotations

import collections
import concurrent.futures
import math
import threading
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import PeerLost, WaitTimeout, WireError
from ..message import Message
from . import FOREVER, Lane, Site, Transport, kind, too_late
from .epoch import Epoch
from .gloo_link import Link

SPARE = 4  # buffers that a lane keeps for what is to be combined
LOOK, GONE = 0.1, 5  # seconds between two looks at the living, and how many find a rank missing before it is given up


class GlooTransport(Transport):
    """A rank's connections over gloo. abandoned: those whose thread was left behind in a construction (gloo_link.py).

    store: where ranks meet, which no rank's death may touch. addresses: by rank, another one for another life. alive:
    whether a rank still runs, where that can change. timed: messages carry their sender's time.
    """

    name = "gloo"
    rebuildable = True

    def __init__(
        self, rank: int, store: dist.Store, addresses: Any, alive: Callable[[int], bool] | None = None,
        timed: bool = False,
    ):  # fmt: skip
        self.rank, self.store, self.addresses, self.timed = rank, store, addresses, timed
        self.alive = alive or (lambda peer: True)
        # Elsewhere the supervisor finds who waits in vain, and takes a message that was dropped for none at all.
        self.numbers_messages = alive is not None
        self.listener = dist.ProcessGroupGloo.create_default_device(lazy_init=False)  # one listener for all connections
        self.abandoned = set[Link]()
        self._lanes: list[GlooLane] = []
        self._over = threading.Event()
        threading.Thread(target=self._look_out, name="labkit-lookout", daemon=True).start()

    def lane(self, key: int, lane: int, timeout: float, epoch: Epoch | None = None) -> GlooLane:
        """Connections of their own for one lane of one group."""
        made = GlooLane(self, key, lane, timeout, epoch)
        self._lanes.append(made)
        return made

    def address(self, peer: int) -> Any:
        """What tells the lives of `peer` apart."""
        return self.addresses[peer]

    def forget(self, lane: Any) -> None:
        """A lane was closed before the end of the run."""
        lane.close()
        if lane in self._lanes:
            self._lanes.remove(lane)

    def close(self) -> None:
        """Close every connection: whoever waits for this rank learns that it is gone."""
        self._over.set()
        for lane in list(self._lanes):
            lane.close()

    def _look_out(self) -> None:
        """In a thread: close the connections on which somebody waits in vain."""
        while not self._over.wait(LOOK):
            for lane in list(self._lanes):
                lane.look_out()


class GlooLane(Lane):
    """The messages of one lane of one group. links: the connections that were needed so far, by world rank.

    together: peers of an exchange that is over when one of them has gone, whoever is waited for.
    """

    def __init__(self, transport: GlooTransport, key: int, lane: int, timeout: float, epoch: Epoch | None = None):
        self.transport, self.timeout, self.epoch = transport, timeout, epoch
        self.store = dist.PrefixStore(f"{key}/{lane}/{0 if epoch is None else epoch.number}", transport.store)
        self.links: dict[int, Link] = {}
        self.together: tuple[int, ...] = ()
        self.gone = False
        self._lock = threading.Lock()
        self._waiters: concurrent.futures.ThreadPoolExecutor | None = None
        self._under_way = 0
        self._combining = threading.Lock()
        self._spare: collections.deque[torch.Tensor] = collections.deque(maxlen=SPARE)

    # `push` and `pull` say what to do with a message; `begin` does it as soon as the peer is connected
    def push(self, m: Message) -> list[Any]:
        """Begin a send; returns gloo's work objects."""
        link = self.links[m.peer]
        pg, peer, begun, tag = link.pg, link.place(m.peer), [], _tag(m)
        if self.transport.timed:
            m.head = torch.tensor([m.sent])
            begun.append(pg.send([m.head], peer, tag))
        begun.append(pg.send([_tensor(m.raw) if m.nbytes else _NOTHING], peer, tag))
        return begun

    def pull(self, m: Message) -> list[Any]:
        """Begin a receive."""
        link = self.links[m.peer]
        pg, peer, begun, tag = link.pg, link.place(m.peer), [], _tag(m)
        if self.transport.timed:
            m.head = torch.zeros(1, dtype=torch.int64)
            begun.append(pg.recv([m.head], peer, tag))
        if m.op is None:
            begun.append(pg.recv([_tensor(m.raw) if m.nbytes else torch.zeros(1, dtype=torch.uint8)], peer, tag))
        else:
            m.scratch = self._borrow(max(m.nbytes, 1))
            begun.append(pg.recv([m.scratch], peer, tag))
        return begun

    def run(self, *messages: tuple[Any, Message], limit: float = FOREVER) -> None:
        """Move the messages now and return when all are done."""
        limit = min(limit, self.timeout)
        end = time.monotonic() + limit
        # receives first: a gloo sender waits to hear that its receiver is ready
        for advance, m in reversed(messages):
            self.begin(advance, m)
        for _, m in reversed(messages):
            self.finish(m, end - time.monotonic(), limit)

    def post(self, advance: Any, m: Message) -> None:
        """Start a message; a thread waits for its end and sets `m.done`."""
        with self._lock:
            self._under_way += 1
            if self._waiters is None:
                # A thread for each message under way, made when needed: fewer, and one that is over might go unnoticed.
                self._waiters = concurrent.futures.ThreadPoolExecutor(4096, "labkit-waiter")
        m.done = m.done or threading.Event()
        self.begin(advance, m)

        def wait() -> None:
            try:
                self.finish(m, self.timeout, self.timeout)
            except BaseException as error:
                m.error = error
            with self._lock:
                self._under_way -= 1
            m.finish()

        self._waiters.submit(wait)

    def wait(self, m: Message, limit: float = FOREVER) -> None:
        """Wait for a posted message and raise what went wrong with it."""
        assert m.done is not None
        limit = min(limit, self.timeout)
        if not m.done.wait(limit):
            raise self._late(m, limit)
        if m.error is not None:
            raise m.error

    def begin(self, advance: Any, m: Message) -> None:
        """Let a message set out. Never waits, and raises nothing: `finish` does."""
        with self._lock:
            link = self.links.get(m.peer)
            if link is None:
                if self.gone:
                    return
                link = self.links[m.peer] = Link(self, m.peer)
        link.begin(advance, m)

    def finish(self, m: Message, seconds: float, limit: float) -> None:
        """Wait for a message that was begun, `seconds` at most, of the `limit` for all of it; raise what went wrong."""
        end = time.monotonic() + seconds
        link = self.links.get(m.peer)
        if link is None:
            raise self.left_itself()
        link.waiting += 1
        try:
            if not link.ready.wait(max(0.0, seconds)) and link.take_back(m):
                raise self._late(m, limit)
            if m.error is not None:
                raise self._lost(m, m.error) from m.error
            for work in m.works:
                work.wait(timedelta(milliseconds=max(1, math.ceil(1000 * (end - time.monotonic())))))
        except WireError:
            raise
        except RuntimeError as why:
            raise (self._late(m, limit) if time.monotonic() >= end else self._lost(m, why)) from why
        finally:
            link.waiting -= 1
            m.works = None
        if m.head is not None:
            m.sent = int(m.head)
        if m.scratch is not None:
            with self._combining:  # two messages may be added to the same tensor
                if m.nbytes:
                    m.op.combine_(m.x.detach().view(-1), m.scratch.view(m.x.dtype))
                self._spare.append(m.scratch)
                m.scratch = None

    def _borrow(self, nbytes: int) -> torch.Tensor:
        """Room for what arrives to be combined: memory that is new has to be zeroed, page by page."""
        with self._combining:
            for at, room in enumerate(self._spare):
                if room.numel() == nbytes:
                    del self._spare[at]
                    return room
        return torch.empty(nbytes, dtype=torch.uint8)

    def life(self, rank: int) -> str:
        """Which life of a rank this lane means, as a word."""
        return repr(self.transport.address(rank) if self.epoch is None else self.epoch.addresses[rank])

    def lives(self, peer: int) -> bool:
        """Whether the process that this lane talks to as `peer` still runs its function."""
        transport, epoch = self.transport, self.epoch
        return transport.alive(peer) and (epoch is None or epoch.addresses[peer] == transport.address(peer))

    def look_out(self) -> None:
        """Close the connections on which somebody waits in vain."""
        waited = [peer for peer, link in list(self.links.items()) if link.waiting]
        for peer in {*waited, *(self.together if waited else ())}:
            if peer not in self.links:
                continue
            link, needed = self.links[peer], peer in self.together
            link.missing = 0 if self.lives(peer) else link.missing + 1
            # of who has ended something may still be on its way, if there is a connection
            if link.missing >= (GONE if link.ready.is_set() else 1) or needed and self.left(peer):
                words = "it is no longer running" if link.missing else "it has left the group"
                why = PeerLost(f"rank {self.transport.rank} lost rank {peer}: {words}", peer)
                for other in self.together if needed else (peer,):
                    if other in self.links:
                        self.links[other].close(why)

    def left(self, peer: int) -> bool:
        """Whether `peer`, in the life that is meant, has left this lane."""
        return self.store.check([f"left {peer} {self.life(peer)}"])

    def left_itself(self) -> PeerLost:
        """What a call in a group finds that this rank has left."""
        return PeerLost(f"rank {self.transport.rank} has left this group itself", -1)

    def _late(self, m: Message, limit: float) -> WaitTimeout:
        return too_late(self.transport.rank, m.peer, limit, self.timeout)

    def _lost(self, m: Message, why: BaseException) -> BaseException:
        if self.gone:
            return self.left_itself()
        known = self.links[m.peer].error
        if known is not None:
            return PeerLost(str(known), known.peer)
        # gloo puts a line of its source before what happened, and advice behind it
        words = str(why).splitlines()[0].partition("] ")[2].partition(". This is typically")[0] or str(why)
        return PeerLost(f"rank {self.transport.rank} lost rank {m.peer}: {words}", m.peer)

    def leave(self, peers: list[int]) -> None:
        """Wake whoever waits for this rank on this lane, now or later: nothing more will come."""
        with self._lock:
            if self.gone:
                return
            self.gone = True
            links = list(self.links.values())
        me = self.transport.rank
        self.store.set(f"left {me} {self.life(me)}", "")
        closing = [threading.Thread(target=link.close, args=(self.left_itself(),)) for link in links]
        for thread in closing:  # some milliseconds each
            thread.start()
        for thread in closing:
            thread.join()

    def idle(self) -> bool:
        """Whether no message is under way in the background."""
        return self._under_way == 0

    def close(self) -> None:
        """Close all connections of this lane."""
        self.leave([])


@kind("gloo")
def _gloo(site: Site) -> GlooTransport:
    return GlooTransport(site.rank, site.store, site.addresses, site.alive, site.timed)


def _tag(m: Message) -> int:
    """What a message and its receive have in common."""
    return zlib.crc32(b"%d %d" % (m.seq, m.nbytes)) & 0x3FFFFFFF | 1 << 30


def _tensor(raw: Any) -> torch.Tensor:
    """The bytes of a message as gloo wants them."""
    return raw if isinstance(raw, torch.Tensor) else torch.frombuffer(raw, dtype=torch.uint8)


_NOTHING = torch.zeros(1, dtype=torch.uint8)
