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

from labkit.wire.recording import record as rec
from labkit.wire.recording.places import Places

from .compute import Compute
from .context import Context
from .dtypes import CODES
from .errors import RefusedError
from .handle import WorkHandle
from .message import number_operation
from .messenger import COLLECTIVES, USER, Messenger
from .stream import Stream
from .transports.epoch import Epoch, epoch_of


class Group(Messenger):
    """This rank's view of a group.

    rank, size: its place and the number of members. global_ranks: the members' world ranks.
    device: where its tensors live. backend: "gloo" or "nccl". transport: "gloo", "nccl" or "local".
    `send`, `recv`, `exchange`, `isend` and `irecv` are those of `Messenger`.
    """

    def __init__(
        self, context: Context, members: Sequence[int], key: int = rec.WORLD, lane: int = USER, inner: bool = False,
        epoch: Epoch | None = None,
    ):  # fmt: skip
        super().__init__(context, members, key, lane, epoch)
        self._inner = inner
        self._calls = 0
        self._collective_group: Group | None = None
        self._stream: Stream | None = None
        self._subgroups: dict[tuple[int, ...], Group] = {}
        context.recorder.intern(f"group {key} {' '.join(map(str, self.global_ranks))}")

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size}, world ranks {list(self.global_ranks)}, {self.transport})"

    @property
    def calls(self) -> int:
        """How many collectives this rank has called in the group."""
        return 0 if self._collective_group is None else self._collective_group._calls

    @property
    def kept(self) -> dict[str, Any]:
        """What functions of a kept world (`labkit.world(size)`) leave on this rank for those that run after them."""
        return self.context.kept

    @property
    def native(self) -> Any:
        """The backend's own collectives on this group, or None where the transport has none."""
        from .native import native_of

        return native_of(self)

    def barrier(self) -> None:
        """Return when every member has called it (Hensgen, Finkel & Manber 1988: log2 N rounds of empty messages)."""
        self.context.collectives.barrier(self)

    # -- groups ------------------------------------------------------------------------------------------------

    def subgroup(self, ranks: Sequence[int]) -> Group:
        """A group of these ranks of mine, without communication. Every one of them must call it; the result is kept."""
        ranks = tuple(ranks)
        if len(set(ranks)) != len(ranks) or not all(isinstance(r, int) and 0 <= r < self.size for r in ranks):
            raise RefusedError(f"subgroup({list(ranks)}): needs different ranks between 0 and {self.size - 1}")
        if self.rank not in ranks:
            raise RefusedError(f"subgroup({list(ranks)}): rank {self.rank}, which calls it, is not in it")
        found = self._subgroups.get(ranks)
        if found is None:
            members = [self.global_ranks[r] for r in ranks]
            key = zlib.crc32(repr((self.key, self._lane_number, members)).encode()) | 1
            found = Group(self.context, members, key, self._lane_number, self._inner, self._epoch)
            self._subgroups[ranks] = found
        found._operation, found._places = self._operation, self._places
        return found

    def split(self, color: int, key: int | None = None) -> Group:
        """Groups of equal `color`, ordered by `key` (then by rank), as MPI_Comm_split. Every member calls it."""
        mine = torch.tensor([[color, self.rank if key is None else key, self.rank]], dtype=torch.int64)
        table = self.context.collectives.all_gather(mine.to(self.device), self, algorithm="bruck").tolist()
        return self.subgroup([r for c, _, r in sorted(table, key=lambda t: (t[1], t[2])) if c == color])

    def rebuild(self, members: Sequence[int], epoch: int | None = None) -> Group:
        """A new group of these world ranks, without restarting a process. Every one of them calls it alike.

        Its sockets are new: what a failed collective left on the old ones cannot disturb it. This rank leaves the
        old group and its subgroups: who still waits for it there gets PeerLost, and can rebuild in turn.

        epoch: a number that the members have agreed on elsewhere (a quorum's), used once for the same members. With
        it ranks meet that have failed differently often; without it, those that have rebuilt equally often.
        """
        context = self.context
        context.transport.must_be_rebuildable("rebuild()")
        members = list(members)
        size = context.size
        if len(set(members)) != len(members) or not all(type(r) is int and 0 <= r < size for r in members):
            raise RefusedError(f"rebuild({members}): needs different world ranks between 0 and {size - 1}")
        if context.rank not in members:
            raise RefusedError(f"rebuild({members}): rank {context.rank}, which calls it, is not in it")
        if epoch is None:
            self._leave()
            # A restarted rank knows nothing of earlier rebuilds, but it has a new address: so all agree on the number.
            lives = tuple((r, context.transport.address(r)) for r in members)
            count = context.rebuilt[lives] = context.rebuilt.get(lives, 0) + 1
            key = zlib.crc32(repr(("rebuilt", lives, count)).encode()) | 1
            return Group(context, members, key)
        new = epoch_of(epoch, members, context.transport.address)
        if (tuple(members), epoch) in context.rebuilt:
            raise RefusedError(
                f"rebuild({members}, epoch={epoch}): rank {context.rank} has been in this epoch before, and "
                "what is left of it could reach the new group: agree on another number"
            )
        self._leave()
        self._close()
        context.rebuilt[tuple(members), epoch] = 1
        # Not the addresses: members that see different lives of a third must meet, to tell each other that it is over.
        key = zlib.crc32(repr(("epoch", members, epoch)).encode()) | 1
        return Group(context, members, key, epoch=new)

    def leave(self) -> None:
        """Leave this group and its subgroups for good: who waits for this rank there, now or later, gets PeerLost.

        The group is of no more use, except for `rebuild`. Leaving again does nothing. Not over NCCL.
        """
        self.context.transport.must_be_rebuildable("leave()")
        self._leave()

    def _leave(self) -> None:
        if not self._inner and self.size > 1:
            self._collectives()  # others may wait there already for a first collective that will not come
        for group in (*self._subgroups.values(), self._collective_group):
            if group is not None:
                group._leave()
        self._lane.leave([r for r in self.global_ranks if r != self.context.rank])
        self.context.recorder.intern(f"left {self.key}")

    def _close(self) -> None:
        """Give back the sockets of a group that was left, unless another thread may still be at one."""
        for group in (*self._subgroups.values(), self._collective_group):
            if group is not None:
                group._close()
        if self._lane.idle() and (self._stream is None or not self._stream.busy()):
            self.context.transport.forget(self._lane)

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
        device = context.device_clock
        begun: Any = device.mark() if device is not None else None
        context.local.parent = number
        try:
            yield
        except BaseException:
            recorder.flag(number, rec.ERROR)
            raise
        finally:
            context.local.parent = parent
            recorder.end(number, clock.now())
            if device is not None:
                device.span(number, begun)
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
            raise RefusedError(f"compute({seconds}): needs a finite number of seconds, 0 or more")
        return Compute(self, seconds)

    # -- collectives (called by labkit.collectives) ------------------------------------------------------------

    def run_collective(
        self, name: str, algorithm: str, body: Callable[..., Any], x: Tensor | None, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None, *, op: str = "", root: int = -1, async_op: bool = False,
        first_row: int = 0, of: str = "",
    ) -> Any:  # fmt: skip
        """Run `body(x, lane, *args, **kwargs)` as one collective: recorded, in order, on the collectives' lane.

        first_row: where the rows of `x` begin in the collective's tensor, for one that joins rows. of: what `x` is a
        part of, by name; ranks whose names differ in one call are a mismatch, found on the status pages. Not sent.
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
            lane=COLLECTIVES, seq=call, name=recorder.intern(name),
            detail=recorder.intern(f"{algorithm} {op} {of}" if of else f"{algorithm} {op}"),
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
            device = context.device_clock
            begun: Any = device.mark() if device is not None else None
            context.charged += 1
            try:
                if context.faults is not None and not self._inner:
                    context.faults.at_span(name)
                return body(x, lane, *args, **(kwargs or {}))
            except BaseException:
                recorder.flag(number, rec.ERROR)
                raise
            finally:
                context.charged -= 1
                local.parent = outer
                lane._operation, lane._places = before
                if places is not None:
                    places.origin = origin
                recorder.slot(slot, outer if self._inner else 0)
                recorder.end(number, here.now())
                if device is not None:
                    device.span(number, begun)

        # Virtual time may not depend on whether the stream's thread happens to be through: if there is one, it is used.
        queued = self._stream is not None and (clock.virtual or self._stream.busy())
        if self._inner or not (async_op or queued):
            return work()
        if self._stream is None:
            self._stream = Stream(context, f"labkit-stream-{self.key}")
            context.streams.append(self._stream)
        handle = WorkHandle(self, number)
        self._stream.submit(work, handle, clock.now())
        return handle if async_op else handle.wait()

    def _collectives(self) -> Group:
        """This group as collectives see it: with sockets (or a tag) of its own."""
        if self._collective_group is None:
            self._collective_group = Group(self.context, self.global_ranks, self.key, COLLECTIVES, True, self._epoch)
        return self._collective_group
