"""How a rank's messages leave and arrive: checked, numbered, written down, timed, moved.

`Messenger` is the lower half of a `Group`. A message goes through the same steps whichever call it came from: it is
checked and numbered (`_message`), written down with the time at which it departs (`_out`, `_in`), moved by the
lane (`_move`, or `_post` and `_wait` for an asynchronous one), and its end is written down.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.cost.collectives.links import Links
from labkit.wire import staging
from labkit.wire.recording import record as rec
from labkit.wire.recording.places import Places

from .clock import Clock
from .context import Context
from .dtypes import CODES
from .errors import RefusedError
from .handle import MessageHandle
from .message import ACK, Message
from .ops import ReduceOp
from .transports.epoch import Epoch

USER, COLLECTIVES = 0, 1  # the two lanes of a group: messages of the reader's own, and those of collectives


class Messenger:
    """Point-to-point messages between the members of a group. All rank numbers are positions in the group."""

    def __init__(self, context: Context, members: Sequence[int], key: int, lane: int, epoch: Epoch | None = None):
        self.context, self.key, self._epoch = context, key, epoch
        self.global_ranks = tuple(members)
        self.rank, self.size = self.global_ranks.index(context.rank), len(self.global_ranks)
        self._lane_number = lane
        self._lane = context.transport.lane(key, lane, context.timeout, epoch)
        self._lane.open(self.global_ranks)
        self._sequence: dict[tuple[str, int], int] = {}
        self._operation = (0, 0)  # the collective that messages belong to: (number of its name, its call)
        self._places: Places | None = None  # where buffers lie in the tensor that the collective works on

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def backend(self) -> str:
        return self.context.backend

    @property
    def transport(self) -> str:
        return self.context.transport.name

    @functools.cached_property
    def link_model(self) -> Links | None:
        """alpha and beta of the links of this group, the same on every rank; what `algorithm="auto"` chooses by.

        Those of the machine; with an emulated `Network` its links where they are slower, inside nodes and between.
        """
        links = self.context.links
        return links if links is None else dataclasses.replace(links, ranks_per_node=self.ranks_per_node)

    @property
    def ranks_per_node(self) -> int:
        """How many neighbouring ranks of this group share a node."""
        nodes = [r // self.context.ranks_per_node for r in self.global_ranks]
        return next((i for i, node in enumerate(nodes) if node != nodes[0]), self.size)

    # -- messages ----------------------------------------------------------------------------------------------

    def send(self, x: Tensor, to: int) -> None:
        """Send `x` (contiguous) to rank `to`. Returns when the receiver has taken it (a rendezvous, as in gloo)."""
        clock, lane = self.context.clock_here(), self._lane
        m = self._message("send", x, to, None, ACK)
        if m is None:
            return
        self._out(m, clock, 0)
        self._move(m.record, 0, (lane.push, m))
        clock.reach(m.free)
        self.context.recorder.end(m.record, clock.now())

    def recv(self, like: Tensor, source: int, op: ReduceOp | None = None) -> Tensor:
        """Receive into `like` (contiguous) from rank `source` and return it; with `op`, like = op(like, incoming)."""
        clock, lane = self.context.clock_here(), self._lane
        m = self._message("recv", like, source, op, 0)
        assert m is not None
        self._in(m, clock, 0)
        self._move(0, m.record, (lane.pull, m))
        self._arrived(m, clock)
        return like

    def exchange(self, x: Tensor, to: int, like: Tensor, source: int, op: ReduceOp | None = None) -> Tensor:
        """Send `x` to rank `to` and receive `like` from rank `source` at the same time; returns `like`.

        With `op` what arrives is combined: like = op(like, incoming), piece by piece. `x` and `like` may not overlap.
        """
        clock, lane = self.context.clock_here(), self._lane
        out = self._message("send", x, to, None, 0)
        into = self._message("recv", like, source, op, 0)
        assert into is not None
        if out is None:  # a fault dropped it
            self._in(into, clock, 0)
            self._move(0, into.record, (lane.pull, into))
            self._arrived(into, clock)
            return like
        self._out(out, clock, rec.EXCHANGE)
        self._in(into, clock, rec.EXCHANGE)
        self._move(out.record, into.record, (lane.push, out), (lane.pull, into))
        recorder = self.context.recorder
        if clock.timed:
            arrived = clock.arrive(into.peer, into.nbytes, into.sent)
            clock.reach(max(out.free, arrived))
            recorder.end(out.record, max(out.free, 1))
            recorder.end(into.record, max(arrived, into.begun), into.sent)  # it may have been here before it was wanted
        else:
            now = clock.now()
            recorder.end(out.record, now)
            recorder.end(into.record, now, into.sent)
        return like

    def isend(self, x: Tensor, to: int) -> MessageHandle:
        """Begin to send; the handle's `wait()` returns when the receiver has taken it. Do not touch `x` before."""
        clock = self.context.clock_here()
        m = self._message("send", x, to, None, ACK)
        if m is None:  # a fault dropped it
            return MessageHandle(self, Message(self.global_ranks[to], 0, x, None, (0, 0)), "send")
        self._out(m, clock, rec.ASYNC)
        self._post(m, "send")
        return MessageHandle(self, m, "send")

    def irecv(self, like: Tensor, source: int, op: ReduceOp | None = None) -> MessageHandle:
        """Begin to receive into `like`; the handle's `wait()` returns it. Do not touch `like` before."""
        clock = self.context.clock_here()
        m = self._message("recv", like, source, op, 0)
        assert m is not None
        self._in(m, clock, rec.ASYNC)
        self._post(m, "recv")
        return MessageHandle(self, m, "recv")

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """No wait of this thread in the enclosed calls goes on beyond `seconds` from now: WaitTimeout.

        For messages, collectives and handles of any group, but not over NCCL. One `within` inside another cannot be
        longer. After a wait that ran out the group is of no more use to its members, except for `rebuild`.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise RefusedError(f"within({seconds!r}): needs a number of seconds above 0")
        self.context.transport.must_be_rebuildable("within()")
        local = self.context.local
        before = getattr(local, "until", None)
        until = time.monotonic() + seconds
        local.until = until if before is None else min(before, until)
        try:
            yield
        finally:
            local.until = before

    # -- for the algorithms of collectives ---------------------------------------------------------------------

    def work_on(self, whole: Tensor, first_row: int = 0) -> None:
        """Say that `whole` holds the collective's tensor, all rows of it, from row `first_row` on and around.

        Only records depend on it: a replay can then tell what lies where (`labkit.wire.recording.places`).
        """
        if self._places is not None:
            self._places.whole(whole, first_row)

    def copy_of(self, part: Tensor) -> Tensor:
        """A copy of `part`, which the records take for the same place in the collective's tensor."""
        copy = part.clone()
        self.stands_for(copy, part)
        return copy

    def stands_for(self, copy: Tensor, part: Tensor) -> None:
        """Say that `copy`, made by other means than `copy_of`, holds what `part` does."""
        if self._places is not None:
            self._places.copy(copy, part)

    # -- inside ------------------------------------------------------------------------------------------------

    def _message(self, way: str, x: Tensor, other: int, op: ReduceOp | None, flags: int) -> Message | None:
        """The message, checked and numbered; None for one that a fault makes vanish."""
        if type(other) is not int or not 0 <= other < self.size:
            raise RefusedError(
                f"rank {other!r} is not in this group of {self.size}: ranks go from 0 to {self.size - 1}"
            )
        if other == self.rank:
            raise RefusedError(f"rank {self.rank} cannot {way} {'to' if way == 'send' else 'from'} itself")
        staged = self._check(way, x)
        peer = self.global_ranks[other]
        faults = self.context.faults
        sent = faults.at_message(x, peer) if faults is not None and way == "send" else x
        if sent is None and not self.context.transport.numbers_messages:
            return None  # to a wire without headers it never existed
        seq = self._number(way, peer)
        if sent is None:
            return None
        m = Message(peer, seq, sent, op, self._operation, flags)
        m.staged = staged
        return m

    def _check(self, way: str, x: Tensor) -> bool:
        """Refuse a tensor that cannot be moved; whether it goes by way of host memory."""
        if not isinstance(x, Tensor):
            raise RefusedError(f"only tensors can be sent and received, not {type(x).__name__}")
        staged = staging.needs_staging(x)
        if staged and x.is_meta:
            raise RefusedError(f"{way} needs a tensor with values, and this one is on the meta device")
        if not self.context.transport.host_memory:
            if not staged:
                raise RefusedError(
                    f"{way} over {self.transport} needs a tensor on {self.device}, and this one is on "
                    f"{x.device}: call .to(group.device) first"
                )
            staged = False
        if not x.is_contiguous():
            raise RefusedError(
                f"{way} needs a contiguous tensor; call .contiguous() first "
                f"(shape {tuple(x.shape)}, strides {x.stride()})"
            )
        if x.dtype not in CODES:
            raise RefusedError(f"labkit cannot send dtype {x.dtype}")
        if x.is_conj() or x.is_neg():
            raise RefusedError(
                f"{way} needs the values as they lie in memory; call .resolve_conj().resolve_neg() first"
            )
        return staged

    def _number(self, way: str, peer: int) -> int:
        place = (way, peer)
        seq = self._sequence[place] = self._sequence.get(place, 0) + 1
        return seq

    def _begin(self, m: Message, kind: int, now: int, flags: int) -> None:
        m.begun, x, context = now, m.x, self.context
        offset = -1 if self._places is None else self._places.find(x) * x.itemsize
        m.record = context.recorder.message(
            kind, now, m.peer, self.key, self._lane_number, m.seq, context.enclosing(), m.nbytes,
            offset if offset >= 0 else -1, m.code, m.shape, flags,
        )  # fmt: skip

    def _out(self, m: Message, clock: Clock, flags: int) -> None:
        """Write a send down, with the time at which it departs."""
        now = clock.now()
        m.sent, m.free = clock.depart(m.peer, m.nbytes)
        self._begin(m, rec.SEND, m.sent if flags & rec.ASYNC else now, flags)

    def _in(self, m: Message, clock: Clock, flags: int) -> None:
        """Write a receive down."""
        self._begin(m, rec.RECV, clock.now(), flags | (rec.COMBINE if m.op is not None else 0))

    def _move(self, send: int, recv: int, *messages: tuple[Any, Message]) -> None:
        """Let the lane move the messages, and say meanwhile which of them this thread is blocked on."""
        context = self.context
        recorder, slot, parent = context.recorder, context.slot_here(), context.enclosing()
        staged = [m for _, m in messages if m.staged]
        recorder.slot(slot, parent, send, recv)
        for m in staged:
            staging.leave(m) if m.record == send else staging.expect(m)
        self._lane.run(*messages, limit=context.limit())
        for m in staged:
            staging.land(m)
        recorder.slot(slot, parent)

    def _arrived(self, m: Message, clock: Clock) -> None:
        arrived = max(clock.arrive(m.peer, m.nbytes, m.sent), m.begun)  # it may have been here before it was wanted
        clock.reach(arrived)
        self.context.recorder.end(m.record, arrived, m.sent)

    def _post(self, m: Message, way: str) -> None:
        """Start an asynchronous message."""
        clock = self.context.clock_here()
        if not clock.timed:  # the thread that finishes it writes the time
            m.then = lambda m: self.context.recorder.end(m.record, clock.now(), m.sent if way == "recv" else 0)
        if m.staged:
            staging.leave(m) if way == "send" else staging.expect(m)
        context = self.context
        recorder, slot, parent = context.recorder, context.slot_here(), context.enclosing()
        # NCCL connects two ranks when they first talk, and may wait here until the peer opens its side
        recorder.slot(slot, parent, *((m.record, 0) if way == "send" else (0, m.record)), used=rec.OPENING)
        self._lane.post(self._lane.push if way == "send" else self._lane.pull, m)
        recorder.slot(slot, parent)

    def _wait(self, m: Message, way: str) -> None:
        """Wait for an asynchronous message; `MessageHandle.wait` calls it once."""
        if m.done is None:
            return
        context = self.context
        recorder, clock, slot = context.recorder, context.clock_here(), context.slot_here()
        # also where nothing is left to wait for: what follows in the program follows the message from here on
        number = recorder.begin(rec.WAIT, clock.now(), name=recorder.intern("wait"), detail=m.record,
                                parent=context.enclosing())  # fmt: skip
        recorder.slot(slot, context.enclosing(), *((m.record, 0) if way == "send" else (0, m.record)))
        self._lane.wait(m, limit=context.limit())
        staging.land(m)
        if m.then is None:
            if way == "send":
                clock.reach(m.free)
                recorder.end(m.record, m.free)
            else:
                self._arrived(m, clock)
        recorder.slot(slot, context.enclosing())
        recorder.end(number, clock.now())
