"""The `nccl` transport: messages between GPUs by NCCL's point-to-point calls.

NCCL has no tags and no headers, and a communicator carries out its calls one after the other: a receive that is issued
first holds up every send behind it. (`labkit.wire.stand_in.contract` has the rules, with their sources.) So

- the collectives of a group have a communicator of their own, made at once with their lane. They call in one order on
  all ranks, and what goes on at the same time is one group call;
- the reader's own messages, and all that is posted, may be waited for in any order, so each direction between two ranks
  is a communicator of its own. The two of a pair are made together at its first message, the second split from the
  first.

A communicator is made in the background, without blocking, by a deadline, and aborted by whoever gives it up. NCCL does
not tell the others; a key in the store does, which those who wait look at. So groups can be left and formed anew.

Not promised by NVIDIA, and relied on here as in PyTorch: kernels of several communicators run on a GPU at one time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import torch

from ..accelerator import CUDA, Accelerator
from ..errors import RefusedError, WaitTimeout
from ..message import Message
from . import FOREVER, Lane, Site, Transport, kind
from .channel import Channel, Making
from .epoch import Epoch


class NcclTransport(Transport):
    """Lanes over the communicators of an accelerator. Also of the stand-in, under another name."""

    host_memory = False
    rebuildable = True

    def __init__(self, site: Site, accelerator: Accelerator = CUDA, name: str = "nccl"):
        self.rank, self.name, self.accelerator, self.device = site.rank, name, accelerator, accelerator.device
        self.store, self._site = site.store, site
        self._sockets: Any = None
        self._lanes: list[NcclLane] = []
        self._place = None if accelerator.device is not None else torch.device("cuda", torch.cuda.current_device())

    def lane(self, key: int, lane: int, timeout: float, epoch: Epoch | None = None) -> NcclLane:
        """One lane; `open` says who its members are."""
        made = NcclLane(self, _name(key, lane, epoch), lane, timeout)
        self._lanes.append(made)
        return made

    def choose_device(self) -> None:
        """A new thread would be on the first device."""
        if self._place is not None:
            self.accelerator.choose(self._place)

    def address(self, peer: int) -> Any:
        """Where labkit's own sockets reach `peer`; another place after a restart."""
        return self._own_sockets().addresses[peer]

    def must_be_rebuildable(self, what: str) -> None:
        """Groups can be left and formed anew; what also needs a relay (`labkit.wire.relay`) cannot be had yet."""
        if not what.endswith("()"):
            raise RefusedError(f"{what} needs transport='local' or 'gloo', not {self.name!r}: there its relay can wait")

    def lost(self, peer: int, lane: str) -> str | None:
        """Why nothing more will come from `peer` on the lane of this name, None if something may."""
        if self.store.check([f"left {lane} {peer}"]):
            return "it left the group"
        alive = self._own_sockets().alive
        return None if alive is None or alive(peer) else "it is no longer running"

    def _own_sockets(self) -> Any:
        if self._sockets is None:
            self._sockets = self._site.sockets()
        return self._sockets

    def forget(self, lane: Any) -> None:
        lane.close()
        if lane in self._lanes:
            self._lanes.remove(lane)

    def close(self) -> None:
        """Leave every lane: whoever waits for this rank learns that it is gone."""
        for lane in list(self._lanes):
            lane.leave([])
            lane.close()


class NcclLane(Lane):
    """The messages of one lane of one group. name: the same on all members, used once."""

    def __init__(self, transport: NcclTransport, name: str, lane: int, timeout: float):
        self.transport, self.name, self.number, self.timeout = transport, name, lane, timeout
        self._channels: dict[Any, Channel] = {}

    @functools.cached_property
    def combining(self) -> Any:
        """The stream on which what came in is combined."""
        return self.transport.accelerator.stream()

    # `push` and `pull` say which call of a communicator moves which bytes of a message
    push = staticmethod(lambda m: ("send", m.raw if m.nbytes else m.scratch))
    pull = staticmethod(lambda m: ("recv", m.scratch if m.op or not m.nbytes else m.raw))

    def open(self, members: Sequence[int]) -> None:
        """Begin to make the communicator of a lane of collectives."""
        if self.number and len(members) > 1:
            self._channels[None] = Channel(self, Making(self.transport, [self.name], members), 0, members)

    def run(self, *messages: tuple[Any, Message], limit: float = FOREVER) -> None:
        """Move the messages and return when the GPU has."""
        limit = min(limit, self.timeout)
        until, after = time.monotonic() + limit, self.transport.accelerator.event()
        together: dict[Channel, list[tuple[Any, Message]]] = {}
        for advance, m in messages:
            channel = self._channels[None] if self.number else self._way(advance, m)
            together.setdefault(channel, []).append((advance, m))
        if any(channel.busy() for channel in together):  # behind what was posted
            for advance, m in messages:
                self.post(advance, m)
            for _, m in messages:
                self.wait(m, limit)
            return
        begun = [(channel, steps, channel.begin(steps, after, until, limit)) for channel, steps in together.items()]
        for channel, steps, event in begun:
            channel.finish(steps, event, until, limit)

    def post(self, advance: Any, m: Message) -> None:
        """Issue a message, behind those of its direction; a thread waits for its end."""
        self._way(advance, m).post((advance, m), self.transport.accelerator.event())

    def wait(self, m: Message, limit: float = FOREVER) -> None:
        """Wait for a message that was begun, and raise what went wrong with it."""
        assert m.done is not None
        limit = min(limit, self.timeout + 1)  # whoever polls has the better story
        if not m.done.wait(limit):
            self.close()
            error = WaitTimeout(f"rank {self.transport.rank} waited {limit:g} s for rank {m.peer}: nothing moved")
            error.peer = m.peer
            raise error
        if m.error is not None:
            raise m.error

    def _way(self, advance: Any, m: Message) -> Channel:
        """The communicator of one direction between two ranks."""
        me = self.transport.rank
        way = (me, m.peer) if advance is self.push else (m.peer, me)
        if way not in self._channels:
            pair = sorted(way)
            ways = [(pair[0], pair[1]), (pair[1], pair[0])]
            making = Making(self.transport, [f"{self.name} {a}-{b}" for a, b in ways], pair)
            for number, one in enumerate(ways):
                self._channels[one] = Channel(self, making, number, pair)
        return self._channels[way]

    def leave(self, peers: list[int]) -> None:
        """Say in the store that this rank leaves, and abort."""
        self.transport.store.set(f"left {self.name} {self.transport.rank}", "")
        self._abort()

    def idle(self) -> bool:
        return not any(channel.busy() for channel in self._channels.values())

    def close(self) -> None:
        """A communicator with a dead member cannot be closed in good order: all are aborted."""
        self._abort()

    def _abort(self) -> None:
        for channel in list(self._channels.values()):
            channel.abort()


def _name(key: int, lane: int, epoch: Epoch | None) -> str:
    which = "" if epoch is None else f"/{epoch.number}/{epoch.lives}"
    return f"{key}{which}/{lane}"


@kind("nccl", device="cuda", carries_time=False)
def _nccl(site: Site) -> NcclTransport:
    return NcclTransport(site)
