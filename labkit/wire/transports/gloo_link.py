"""One connection of the `gloo` transport: a process group of this rank and one peer, for one lane of one group.

A group of two, because gloo closes *all* connections of a group as soon as one wait in it runs out; and one for each
lane, so that two lanes, two epochs of the same ranks, and two lives of a rank can never be matched with one another.
It is made when the two first have something for each other on that lane, by a thread of its own:

    announce    write on the store whom this rank wants to speak with, and in which lives it knows the two (or all, in
                an epoch); wait for the peer's word. Who sees other lives, who left, or whose process is gone ends here
    construct   `ProcessGroupGloo` over a prefix of the store that only these two lives use. Both sides are at it, so it
                takes milliseconds, or 5 CONNECT if the peer dies or stops in the middle. PyTorch cannot be told to give
                that up: when the peer dies or the lane is left meanwhile, the thread is left behind and counted
                (`GlooTransport.abandoned`)
    deliver     what was begun before the connection was there sets out, in order

What was measured with PyTorch 2.13 (two cores). A group of two takes 0.5 to 1 ms, one of 8 ranks 40 to 110 ms over a
FileStore, which looks every 10 ms. A killed peer: every operation on its pair raises within 25 ms, other pairs live on.
A stopped one: nothing, until `work.wait(timeout)` runs out; that closes all pairs of the group, here and at the peers.
`abort()` and `shutdown()` of a group wake nobody who waits in it. What does is a receive that is begun only in order to
run out (`close`): 4 ms later everybody who waits on the pair, on either side, has an error.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import PeerLost
from ..message import Message
from .board import LONGEST, PAUSE

if TYPE_CHECKING:
    from .gloo import GlooLane

CONNECT = 6.0  # seconds that the making of a group of two may take; gloo waits five times as long for the peer to call
_CLOSING = 1  # the tag of the receive that ends it; those of messages are above 1 << 30


class Link:
    """The way to one peer. ready: it is open or of no use. pg: the group of two, while it is. error: why it is not.

    waiting: how many threads wait here. missing: how often in a row the peer was looked for in vain. constructing:
    whether its own thread is where PyTorch cannot be told to stop.
    """

    def __init__(self, lane: GlooLane, peer: int):
        self.lane, self.peer = lane, peer
        self.ready = threading.Event()
        self.error: PeerLost | None = None
        self.waiting = self.missing = 0
        self.constructing = False
        self.pg: Any = None
        self._queue: collections.deque[tuple[Any, Message]] = collections.deque()
        self._lock = threading.Lock()
        threading.Thread(target=self._open, name=f"labkit-link-{peer}", daemon=True).start()

    # -- messages ----------------------------------------------------------------------------------------------

    def begin(self, advance: Any, m: Message) -> None:
        """Hand a message to gloo, or keep it until the connection is there. Never waits."""
        with self._lock:
            if self.pg is None and self.error is None:
                self._queue.append((advance, m))
            else:
                self._set_out(advance, m)

    def take_back(self, m: Message) -> bool:
        """Whether a message had not set out yet. It will not any more: its tensor is the caller's again."""
        with self._lock:
            waiting = [one for one in self._queue if one[1] is m]
            for one in waiting:
                self._queue.remove(one)
        return bool(waiting)

    def _set_out(self, advance: Any, m: Message) -> None:
        try:
            if self.error is not None:
                raise self.error
            m.works = advance(m)
        except RuntimeError as why:
            m.error = why

    def place(self, rank: int) -> int:
        """The rank of one of the two in the group of two."""
        return int(rank == max(self.peer, self.lane.transport.rank))

    # -- opening -----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        made, error = None, None
        try:
            made = self._construct(self._meet())
        except PeerLost as why:
            error = why
        except Exception as why:
            words = str(why).splitlines()[0]
            error = PeerLost(f"rank {self.lane.transport.rank} cannot reach rank {self.peer}: {words}", self.peer)
        with self._lock:
            self.error = self.error or error
            if self.error is None:
                self.pg = made
            while self._queue:
                self._set_out(*self._queue.popleft())
        self.ready.set()

    def _meet(self) -> str:
        """Wait until the peer wants this connection too; the prefix of the store that is theirs alone."""
        lane, me, peer = self.lane, self.lane.transport.rank, self.peer
        store, epoch = lane.store, lane.epoch
        mine = lane.life(me)
        pause, missing, told = PAUSE, 0, ""
        while not lane.gone:
            theirs = lane.life(peer)
            before, told = told, str(epoch.lives) if epoch is not None else f"{mine} {theirs}"
            if told != before:
                store.set(f"{me}>{peer}", told)
            if lane.left(peer):
                raise PeerLost(f"rank {me} lost rank {peer}: it has left the group", peer)
            if store.check([f"{peer}>{me}"]):
                heard = store.get(f"{peer}>{me}").decode()
                if heard == (told if epoch is not None else f"{theirs} {mine}"):
                    return f"{min(me, peer)}-{max(me, peer)} {sorted((mine, theirs))}"
                if epoch is not None:
                    raise PeerLost(f"rank {me} lost rank {peer}: a member of their group was restarted", peer)
            missing = 0 if lane.lives(peer) else missing + 1
            if missing > 1:
                raise PeerLost(f"rank {me} lost rank {peer}: it is no longer running", peer)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        raise lane.left_itself()

    def _construct(self, prefix: str) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=CONNECT)
        options._devices = [self.lane.transport.listener]
        options._threads = 0  # they run collectives, and here are only messages
        self.constructing = True
        try:
            store = dist.PrefixStore(prefix, self.lane.store.clone())  # type: ignore[attr-defined]
            return dist.ProcessGroupGloo(store, self.place(self.lane.transport.rank), 2, options)
        finally:
            self.constructing = False

    # -- the end -----------------------------------------------------------------------------------------------

    def close(self, why: PeerLost) -> None:
        """Nothing more goes over this connection: whoever waits for it, on either side, has an error at once."""
        with self._lock:
            self.error = self.error or why
            while self._queue:
                self._set_out(*self._queue.popleft())
            pg, self.pg = self.pg, None
        self.ready.set()
        if self.constructing:
            self.lane.transport.abandoned.add(self)
        if pg is not None:
            with contextlib.suppress(RuntimeError):  # that it runs out is what it is for
                pg.recv([torch.empty(1)], self.place(self.peer), _CLOSING).wait(timedelta(milliseconds=1))
