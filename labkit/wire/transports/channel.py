"""A communicator of NCCL with what labkit needs around it: a deadline for its making, order, polling, and its end.

NCCL queues work and says nothing more. So a channel waits by polling an event, and asks meanwhile whether the
communicator has an error, whether a peer still runs, and whether one has left.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..accelerator import PAUSE, poll
from ..errors import PeerLost, WaitTimeout, WireError
from ..message import Message

if TYPE_CHECKING:
    from .nccl import NcclLane, NcclTransport

Step = tuple[Callable[[Message], tuple[str, Any]], Message]


class Making:
    """Communicators of the same ranks that are made together, in the background: a member may be long in coming.

    The others are split from the first, which needs that nothing is under way on it: so none is used before all are
    there. names: the same on all members, each used once. members: world ranks.
    """

    def __init__(self, transport: NcclTransport, names: Sequence[str], members: Sequence[int]):
        self._transport, self._names, self._members = transport, names, list(members)
        self.communicators: list[Any] = []
        self.gone = False
        self.why: Exception | None = None
        threading.Thread(target=self._make, name=f"labkit-init-{names[0]}", daemon=True).start()

    def _make(self) -> None:
        transport, place = self._transport, self._members.index(self._transport.rank)
        try:
            transport.choose_device()
            for name in self._names:
                parent = self.communicators[0] if self.communicators else None
                while parent is not None and not parent._is_initialized() and not self.gone:
                    time.sleep(PAUSE[1])
                if self.gone:
                    return
                made = transport.accelerator.communicator(transport.store, place, len(self._members), name, parent)
                self.communicators.append(made)
                if self.gone:
                    made.abort()
        except Exception as why:
            self.why = why

    def ready(self) -> bool:
        """Whether all are there. Raises what went wrong."""
        if self.why is not None:
            raise self.why
        return len(self.communicators) == len(self._names) and all(c._is_initialized() for c in self.communicators)

    def abort(self) -> None:
        """End all of them, also those that are not there yet."""
        self.gone = True
        for communicator in list(self.communicators):
            communicator.abort()


class Channel:
    """One of the communicators of `making`, for one lane, and the stream that labkit queues on."""

    def __init__(self, lane: NcclLane, making: Making, number: int, members: Sequence[int]):
        self.transport, self.lane, self.timeout, self.members = lane.transport, lane, lane.timeout, tuple(members)
        self._making, self._number = making, number
        self._place = {rank: i for i, rank in enumerate(self.members)}
        self._stream: Any = None
        self._posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock, self._waiting, self._unissued = threading.Lock(), 0, 0
        self._made = False  # whether the communicator was there when it was last asked for
        self._thread: threading.Thread | None = None

    @property
    def _communicator(self) -> Any:
        made = self._making.communicators
        return made[self._number] if len(made) > self._number else None

    # -- messages ------------------------------------------------------------------------------------------------

    def begin(self, steps: Sequence[Step], after: Any, until: float, limit: float) -> Any:
        """Issue the messages as one group call, behind the event `after`; returns the event of their end."""
        self._poll(self._making.ready, until, limit)
        self._made = True
        device, communicator = self.transport.accelerator, self._communicator
        if self._stream is None:
            self._stream = device.stream()
        self._stream.wait_event(after)
        try:
            with device.use(self._stream):
                for _, m in steps:
                    if m.op is not None or not m.nbytes:  # NCCL moves nothing for an empty message: one byte goes
                        m.scratch = torch.empty(m.nbytes or 1, dtype=torch.uint8, device=m.x.device)
                communicator._start_coalescing()
                for advance, m in steps:
                    call, x = advance(m)
                    getattr(communicator, call)([x], self._place[m.peer], 0)
                communicator._end_coalescing().wait()  # orders the stream; the host goes on
                return device.event()
        except WireError:
            raise
        except RuntimeError as why:
            words = str(why).splitlines()[0]
            raise PeerLost(f"rank {self.transport.rank}: {words}", steps[0][1].peer) from why

    def finish(self, steps: Sequence[Step], event: Any, until: float, limit: float) -> None:
        """Return when `event` has happened and what came in is combined.

        Several messages may be added to one tensor: so that is done on one stream of the lane, one after the other.
        """
        self._poll(event.query, until, limit)
        device = self.transport.accelerator
        for _, m in steps:
            if m.op is not None and m.nbytes:
                with device.use(self.lane.combining):
                    device.launch(m.op.combine_, m.x.detach().view(-1), m.scratch.view(m.x.dtype))
                    event = device.event()
                self._poll(event.query, until, limit)

    def post(self, step: Step, after: Any) -> None:
        """Issue a message behind those posted before, as soon as the communicator is there; returns at once.

        A thread waits for its end and calls `m.finish()`.
        """
        m = step[1]
        m.done = m.done or threading.Event()
        with self._lock:
            event = None
            if self._made and not self._unissued:
                event = self.begin((step,), after, time.monotonic() + self.timeout, self.timeout)
            self._unissued += event is None
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="labkit-waiter", daemon=True)
                self._thread.start()
            self._posted.put((step, after, event))

    def _loop(self) -> None:
        self.transport.choose_device()
        while (item := self._posted.get()) is not None:
            step, after, event = item
            m = step[1]
            try:
                until = time.monotonic() + self.timeout
                if event is None:
                    event = self._late_begin(step, after, until)
                self.finish((step,), event, until, self.timeout)
            except BaseException as error:
                m.error = error
            with self._lock:
                self._waiting -= 1
            m.finish()
            del item, step, m  # while this thread sleeps it keeps no tensor alive

    def _late_begin(self, step: Step, after: Any, until: float) -> Any:
        """Issue a message that was posted before the communicator was there."""
        try:
            self._poll(self._making.ready, until, self.timeout)
            with self._lock:
                return self.begin((step,), after, until, self.timeout)
        finally:
            self._made = True
            self._unissued -= 1

    def busy(self) -> bool:
        """Whether a posted message is under way."""
        return self._waiting > 0

    # -- waiting and ending --------------------------------------------------------------------------------------

    def _poll(self, over: Callable[[], bool], until: float, limit: float) -> None:
        """Wait until `over()` and the communicator is whole; raises what went wrong, or that it is too late."""

        def whole() -> bool:
            if self._making.gone:
                raise PeerLost(f"rank {self.transport.rank} has left the group of ranks {list(self.members)}")
            return over()

        if not poll(whole, until, self._look_around):
            raise self._late(limit)

    def _look_around(self) -> None:
        if self._communicator is not None:
            why = self.transport.accelerator.failure(self._communicator)
            if why is not None:
                self.abort()
                raise why
        for peer in self.members:
            lost = None if peer == self.transport.rank else self.transport.lost(peer, self.lane.name)
            if lost is not None:
                self.abort()
                raise PeerLost(f"rank {self.transport.rank} lost rank {peer}: {lost}", peer)

    def _late(self, limit: float) -> WaitTimeout:
        """What to say of a wait that ran out. The communicator is of no more use then."""
        made = self._communicator or next(iter(self._making.communicators), None)
        why = "" if made is None else self.transport.accelerator.explain(made)
        self.abort()
        others = [r for r in self.members if r != self.transport.rank]
        whom = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
        error = WaitTimeout(
            f"rank {self.transport.rank} waited {limit:.3g} s for {whom}: nothing moved. {why}".rstrip()
        )
        if len(others) == 1:
            error.peer = others[0]
        return error

    def abort(self) -> None:
        """End the communicators, from any thread; who waits here gets PeerLost."""
        self._making.abort()
        self._posted.put(None)
