"""`Group`: the one door through which bytes leave a rank.

A group is an ordered set of ranks that exchange messages. Everything above it (collectives, sharding, pipelines)
is written against these few methods; everything below it (sockets, gloo, NCCL, emulated links, faults, the
status page) works for all of them at once. All rank numbers are positions in this group.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from . import record as rec
from .compute import Compute
from .context import Context, LinkModel
from .dtypes import CODES
from .errors import Refused
from .handle import MessageHandle, WorkHandle
from .message import ACK, Message, number_operation
from .ops import ReduceOp
from .places import Places
from .stream import Stream

USER, COLLECTIVES = 0, 1  # the two lanes of a group: messages of the reader's own, and those of collectives


class Group:
    """This rank's view of a group.

    rank, size: its place and the number of members. global_ranks: the members' world ranks.
    device: where its tensors live. backend: "gloo" or "nccl". transport: "gloo", "nccl" or "local".
    """

    def __init__(self, context: Context, members: Sequence[int], key: int = 1, lane: int = USER, inner: bool = False):
        self.context, self.key = context, key
        self.global_ranks = tuple(members)
        self.rank, self.size = self.global_ranks.index(context.rank), len(self.global_ranks)
        self._lane_number, self._inner = lane, inner
        self._lane = context.transport.lane(key, lane, context.timeout)
        self._sequence: dict[tuple[str, int], int] = {}
        self._calls = 0
        self._operation = (0, 0)  # the collective that messages belong to: (number of its name, its call)
        self._places: Places | None = None  # where buffers lie in the tensor that the collective works on
        self._collective_group: Group | None = None
        self._stream: Stream | None = None
        self._subgroups: dict[tuple[int, ...], Group] = {}
        context.recorder.intern(f"group {key} {' '.join(map(str, self.global_ranks))}")

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size}, world ranks {list(self.global_ranks)}, {self.transport})"

    @property
    def device(self) -> torch.device:
        return self.context.device

    @property
    def backend(self) -> str:
        return self.context.backend

    @property
    def transport(self) -> str:
        return self.context.transport.name

    @property
    def link_model(self) -> LinkModel | None:
        """This machine's alpha and beta, the same on every rank; what `algorithm="auto"` chooses by."""
        return self.context.link_model

    @property
    def ranks_per_node(self) -> int:
        """How many neighbouring ranks of this group share a node."""
        nodes = [r // self.context.ranks_per_node for r in self.global_ranks]
        return next((i for i, node in enumerate(nodes) if node != nodes[0]), self.size)

    @property
    def native(self) -> Any:
        """The backend's own collectives on this group, or None where the transport has none."""
        from .native import native_of

        return native_of(self)

    # -- messages ----------------------------------------------------------------------------------------------

    def send(self, x: Tensor, to: int) -> None:
        """Send `x` (contiguous) to rank `to`. Returns when the receiver has taken it (a rendezvous, as in gloo)."""
        clock, lane = self.context.clock_here(), self._lane
        m = self._message("send", x, to, None, ACK)
        if m is None:
            return
        self._out(m, clock, 0)
        self._move(clock, m.record, 0, (lane.push, m))
        clock.reach(m.free)
        self.context.recorder.end(m.record, clock.now())

    def recv(self, like: Tensor, source: int, op: ReduceOp | None = None) -> Tensor:
        """Receive into `like` (contiguous) from rank `source` and return it; with `op`, like = op(like, incoming)."""
        clock, lane = self.context.clock_here(), self._lane
        m = self._message("recv", like, source, op, 0)
        assert m is not None
        self._in(m, clock, 0)
        self._move(clock, 0, m.record, (lane.pull, m))
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
            self._move(clock, 0, into.record, (lane.pull, into))
            self._arrived(into, clock)
            return like
        self._out(out, clock, rec.EXCHANGE)
        self._in(into, clock, rec.EXCHANGE)
        self._move(clock, out.record, into.record, (lane.push, out), (lane.pull, into))
        recorder = self.context.recorder
        if clock.virtual or clock.link_to is not None:
            arrived = clock.arrive(self.global_ranks[source], into.nbytes, into.sent)
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

    def barrier(self) -> None:
        """Return when every member has called it (Hensgen, Finkel & Manber 1988: log2 N rounds of empty messages)."""
        from labkit import collectives

        collectives.barrier(self)

    # -- groups ------------------------------------------------------------------------------------------------

    def subgroup(self, ranks: Sequence[int]) -> Group:
        """A group of these ranks of mine, without communication. Every one of them must call it; the result is kept."""
        ranks = tuple(ranks)
        if len(set(ranks)) != len(ranks) or not all(isinstance(r, int) and 0 <= r < self.size for r in ranks):
            raise Refused(f"subgroup({list(ranks)}): needs different ranks between 0 and {self.size - 1}")
        if self.rank not in ranks:
            raise Refused(f"subgroup({list(ranks)}): rank {self.rank}, which calls it, is not in it")
        found = self._subgroups.get(ranks)
        if found is None:
            members = [self.global_ranks[r] for r in ranks]
            key = zlib.crc32(repr((self.key, self._lane_number, members)).encode()) | 1
            found = Group(self.context, members, key, self._lane_number, self._inner)
            self._subgroups[ranks] = found
        found._operation, found._places = self._operation, self._places
        return found

    def split(self, color: int, key: int | None = None) -> Group:
        """Groups of equal `color`, ordered by `key` (then by rank), as MPI_Comm_split. Every member calls it."""
        from labkit import collectives

        mine = torch.tensor([[color, self.rank if key is None else key, self.rank]], dtype=torch.int64)
        table = collectives.all_gather(mine.to(self.device), self, algorithm="bruck").tolist()
        return self.subgroup([r for c, _, r in sorted(table, key=lambda t: (t[1], t[2])) if c == color])

    def rebuild(self, members: Sequence[int]) -> Group:
        """A new group of these world ranks, without restarting a process. Every one of them calls it alike.

        Its sockets are new: what a failed collective left on the old ones cannot disturb it. This rank leaves the
        old group and its subgroups: who still waits for it there gets PeerLost, and can rebuild in turn.
        """
        if not self.context.transport.rebuildable:
            raise Refused(f"transport={self.transport!r} cannot be rebuilt: a failed wait closes its pairs. "
                          "Use transport='local'")  # fmt: skip
        members = list(members)
        size = self.context.size
        if len(set(members)) != len(members) or not all(type(r) is int and 0 <= r < size for r in members):
            raise Refused(f"rebuild({members}): needs different world ranks between 0 and {size - 1}")
        if self.context.rank not in members:
            raise Refused(f"rebuild({members}): rank {self.context.rank}, which calls it, is not in it")
        self._leave()
        # A restarted rank knows nothing of earlier rebuilds, but it has a new address: so all agree on the number.
        lives = tuple((r, self.context.transport.address(r)) for r in members)
        count = self.context.rebuilt[lives] = self.context.rebuilt.get(lives, 0) + 1
        key = zlib.crc32(repr(("rebuilt", lives, count)).encode()) | 1
        return Group(self.context, members, key)

    def _leave(self) -> None:
        for group in (*self._subgroups.values(), self._collective_group):
            if group is not None:
                group._leave()
        self._lane.leave([r for r in self.global_ranks if r != self.context.rank])

    # -- marks on the timeline ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def span(self, name: str, /, **attrs: Any) -> Iterator[None]:
        """Put a named box on the timeline around the enclosed work."""
        context = self.context
        recorder, clock = context.recorder, context.clock_here()
        if context.faults is not None:
            context.faults.at_span(name)
        parent = context.enclosing()
        number = recorder.begin(rec.SPAN, clock.now(), name=recorder.intern(name), detail=recorder.attrs(attrs),
                                parent=parent, group=self.key)  # fmt: skip
        context.local.parent = number
        try:
            yield
        except BaseException:
            recorder.flag(number, rec.ERROR)
            raise
        finally:
            context.local.parent = parent
            recorder.end(number, clock.now())
            if context.sampler is not None:
                context.sampler.sample()

    def step(self, n: int) -> None:
        """Mark the beginning of training step `n`; what follows belongs to it."""
        context = self.context
        context.recorder.step = context.recorder.page.step = int(n)
        now = context.clock_here().now()
        context.recorder.begin(rec.STEP, now, name=context.recorder.intern("step"), end=now or 1)
        if context.sampler is not None:
            context.sampler.sample()
        if context.faults is not None:
            context.faults.at_step(int(n))

    def compute(self, seconds: float) -> Compute:
        """Stand for a kernel of `seconds`. As a context manager it pads the real work inside to that length."""
        if not 0 <= seconds < float("inf"):
            raise Refused(f"compute({seconds}): needs a finite number of seconds, 0 or more")
        return Compute(self, seconds)

    # -- for the algorithms of collectives ---------------------------------------------------------------------

    def work_on(self, whole: Tensor, first_row: int = 0) -> None:
        """Say that `whole` holds the collective's tensor, all rows of it, from row `first_row` on and around.

        Only records depend on it: a replay can then tell what lies where (`labkit.wire.places`).
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

    # -- collectives (called by labkit.collectives) ------------------------------------------------------------

    def run_collective(
        self, name: str, algorithm: str, body: Callable[..., Any], x: Tensor | None, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None, *, op: str = "", root: int = -1, async_op: bool = False,
        first_row: int = 0,
    ) -> Any:  # fmt: skip
        """Run `body(x, lane, *args, **kwargs)` as one collective: recorded, in order, on the collectives' lane.

        first_row: where the rows of `x` begin in the collective's tensor, for one that joins rows.
        """
        context = self.context
        recorder, clock = context.recorder, context.clock_here()
        lane = self if self._inner else self._collectives()
        native = algorithm == "native"
        flags = (rec.NATIVE if native else 0) | (rec.NESTED if self._inner else 0) | (rec.ASYNC if async_op else 0)
        if not self._inner:
            lane._calls += 1
        call = 0 if self._inner else lane._calls
        tensor = x if isinstance(x, Tensor) else None
        number = recorder.begin(
            rec.COLLECTIVE, clock.now(), peer=-1 if root < 0 else self.global_ranks[root], group=self.key,
            lane=COLLECTIVES, seq=call, name=recorder.intern(name), detail=recorder.intern(f"{algorithm} {op}"),
            parent=context.enclosing(), nbytes=0 if tensor is None else tensor.nbytes,
            shape=() if tensor is None else tuple(tensor.shape), flags=flags,
            dtype=0 if tensor is None else CODES.get(tensor.dtype, 0),
        )  # fmt: skip

        def work() -> Any:
            local, here, slot = context.local, context.clock_here(), context.slot_here()
            outer, before, origin = context.enclosing(), (lane._operation, lane._places), 0
            local.parent = number
            if not self._inner:
                lane._operation, lane._places = (number_operation(name), call), Places()
            places = lane._places
            if places is not None:
                origin = places.origin
                places.enter(tensor, first_row, self._inner)
            recorder.slot(slot, number)
            try:
                if context.faults is not None and not self._inner:
                    context.faults.at_span(name)
                return body(x, lane, *args, **(kwargs or {}))
            except BaseException:
                recorder.flag(number, rec.ERROR)
                raise
            finally:
                local.parent = outer
                lane._operation, lane._places = before
                if places is not None:
                    places.origin = origin
                recorder.slot(slot, outer if self._inner else 0)
                recorder.end(number, here.now())

        # Virtual time may not depend on whether the stream's thread happens to be through: if there is one, it is used.
        queued = self._stream is not None and (clock.virtual or self._stream.busy())
        if self._inner or not (async_op or queued):
            return work()
        if self._stream is None:
            self._stream = Stream(context, f"labkit-stream-{self.key}")
        handle = WorkHandle(self, number)
        self._stream.submit(work, handle, clock.now())
        return handle if async_op else handle.wait()

    def _collectives(self) -> Group:
        """This group as collectives see it: with sockets (or a tag) of its own."""
        if self._collective_group is None:
            self._collective_group = Group(self.context, self.global_ranks, self.key, COLLECTIVES, inner=True)
        return self._collective_group

    # -- inside ------------------------------------------------------------------------------------------------

    def _message(self, way: str, x: Tensor, other: int, op: ReduceOp | None, flags: int) -> Message | None:
        if type(other) is not int or not 0 <= other < self.size:
            raise Refused(f"rank {other!r} is not in this group of {self.size}: ranks go from 0 to {self.size - 1}")
        if other == self.rank:
            raise Refused(f"rank {self.rank} cannot {way} {'to' if way == 'send' else 'from'} itself")
        if not isinstance(x, Tensor):
            raise Refused(f"only tensors can be sent and received, not {type(x).__name__}")
        if self.device.type == "cpu" and x.device.type != "cpu":
            raise Refused(
                f"{way} needs a tensor on the {self.device}, and this one is on {x.device}: call .cpu() first"
            )
        if not x.is_contiguous():
            raise Refused(
                f"{way} needs a contiguous tensor; call .contiguous() first "
                f"(shape {tuple(x.shape)}, strides {x.stride()})"
            )
        if x.dtype not in CODES:
            raise Refused(f"labkit cannot send dtype {x.dtype}")
        if x.is_conj() or x.is_neg():
            raise Refused(f"{way} needs the values as they lie in memory; call .resolve_conj().resolve_neg() first")
        peer = self.global_ranks[other]
        faults = self.context.faults
        sent = faults.at_message(x, peer) if faults is not None and way == "send" else x
        place = (way, peer)
        if sent is None and not getattr(self.context.transport, "numbers_messages", False):
            return None  # to a wire without headers it never existed
        seq = self._sequence[place] = self._sequence.get(place, 0) + 1
        return None if sent is None else Message(peer, seq, sent, op, self._operation, flags)

    def _begin(self, m: Message, kind: int, now: int, flags: int) -> None:
        m.begun, shape = now, m.x.shape
        offset = -1 if self._places is None else self._places.find(m.x) * m.x.itemsize
        m.record = self.context.recorder.begin(
            kind, now, peer=m.peer, group=self.key, lane=self._lane_number, seq=m.seq, parent=self.context.enclosing(),
            nbytes=m.nbytes, offset=max(offset, -1), dtype=CODES[m.x.dtype],
            shape=tuple(shape), flags=flags,
        )  # fmt: skip

    def _out(self, m: Message, clock: Any, flags: int) -> None:
        now = clock.now()
        m.sent, m.free = clock.depart(m.peer, m.nbytes)
        self._begin(m, rec.SEND, m.sent if flags & rec.ASYNC else now, flags)
        self.context.recorder.count(m.peer, m.nbytes)

    def _in(self, m: Message, clock: Any, flags: int) -> None:
        self._begin(m, rec.RECV, clock.now(), flags | (rec.COMBINE if m.op is not None else 0))

    def _move(self, clock: Any, send: int, recv: int, *messages: tuple[Any, Message]) -> None:
        context = self.context
        slot, parent = context.slot_here(), context.enclosing()
        context.recorder.slot(slot, parent, send, recv)
        self._lane.run(*messages)
        context.recorder.slot(slot, parent)

    def _arrived(self, m: Message, clock: Any) -> None:
        arrived = max(clock.arrive(m.peer, m.nbytes, m.sent), m.begun)  # it may have been here before it was wanted
        clock.reach(arrived)
        self.context.recorder.end(m.record, arrived, m.sent)

    def _post(self, m: Message, way: str) -> None:
        clock = self.context.clock_here()
        if not (clock.virtual or clock.link_to is not None):  # the thread that finishes it writes the time
            m.then = lambda m: self.context.recorder.end(m.record, clock.now(), m.sent if way == "recv" else 0)
        self._lane.post(self._lane.push if way == "send" else self._lane.pull, m)

    def _wait(self, m: Message, way: str) -> None:
        if m.done is None:
            return
        context = self.context
        recorder, clock, slot = context.recorder, context.clock_here(), context.slot_here()
        number = 0
        if not m.done.is_set() or clock.virtual:
            number = recorder.begin(
                rec.WAIT,
                clock.now(),
                name=recorder.intern("wait"),
                detail=m.record,
                parent=context.enclosing(),
            )
            recorder.slot(slot, context.enclosing(), *((m.record, 0) if way == "send" else (0, m.record)))
        self._lane.wait(m)
        if m.then is None:
            if way == "send":
                clock.reach(m.free)
                recorder.end(m.record, m.free)
            else:
                self._arrived(m, clock)
        if number:
            recorder.slot(slot, context.enclosing())
            recorder.end(number, clock.now())
