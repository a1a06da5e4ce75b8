"""`Ftar`: all-reduces that run one after the other while the caller computes, and end together when one fails.

It plays the part of the communication stream between replicas: gradients are handed over as backward produces them.
After an error what is queued behind it is skipped, because the group is of no more use; `rebuild` makes a new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from labkit.collectives.checks import check_call
from labkit.resilience.errors import Fatal, Recoverable, Skipped
from labkit.wire.errors import WaitTimeout
from labkit.wire.group import Group
from labkit.wire.handle import WorkHandle
from labkit.wire.ops import SUM
from labkit.wire.stream import Stream

from .exchange import CHUNK_BYTES, CHUNKS, check_limits, ft_all_reduce

if TYPE_CHECKING:
    from labkit.resilience.deadlines import Deadlines


class Work:
    """One all-reduce of the queue. The tensor must not be touched before it is `done()`.

    error: None as long as nothing went wrong; Skipped if it was never begun, because one before it failed.
    """

    def __init__(self, x: Tensor, number: int, handle: WorkHandle):
        self.number = number
        self.error: Recoverable | Fatal | None = None
        self._x: Tensor | None = x
        self._handle = handle

    def done(self) -> bool:
        """Whether `wait()` would return (or raise) at once."""
        return self._handle.done()

    @property
    def skipped(self) -> bool:
        return isinstance(self.error, Skipped)

    def wait(self) -> None:
        """Until it is over; raises what went wrong. Its deadline begins to run when its turn comes."""
        handle = self._handle
        while not handle.done():
            try:
                handle.wait()
            except WaitTimeout:  # of this wait: those of the exchanges end by themselves, each in its own time
                if handle.limited():
                    raise
        if self.error is not None:
            raise self.error


class Ftar:
    """All-reduces over a group that is formed anew when a member is lost.

    group: of which rank i of every replica is a member, and which nothing else uses; any group of this rank will do as
    a beginning, if the first call is `rebuild` (which leaves that group and its subgroups).
    deadlines: those of the run; `message` limits how long nothing may move, and `exchange` one all-reduce.
    """

    def __init__(
        self, group: Group, deadlines: Deadlines | None = None, *, chunk_bytes: int = CHUNK_BYTES, chunks: int = CHUNKS
    ):
        check_limits(group, chunk_bytes, chunks, None, None)
        self.group, self.deadlines = group, deadlines
        self._options: dict[str, Any] = {"chunk_bytes": chunk_bytes, "chunks": chunks}
        if deadlines is not None:
            self._options |= {"deadline": deadlines.exchange, "quiet": deadlines.message}
        self._stream: Stream | None = None
        self._queue: list[Work] = []
        self._number = 0
        self._error: Recoverable | Fatal | None = None

    def all_reduce(self, x: Tensor) -> Work:
        """Queue the sum of `x` over the group, in place. The calls of all members come in the same order."""
        if self._stream is None:
            self._stream = Stream(self.group.context, "labkit-ftar")
        check_call("all_reduce", x, self.group, SUM, {})
        self._number += 1
        work = Work(x, self._number, WorkHandle(self.group, 0))
        self._queue.append(work)
        self._stream.submit(lambda: self._run(work), work._handle, self.group.context.clock_here().now())
        return work

    def _run(self, work: Work) -> None:
        """In the stream's thread."""
        x, work._x = work._x, None
        assert x is not None
        if self._error is not None:
            work.error = Skipped(f"all-reduce {work.number} was skipped, because one before it failed: {self._error}",
                                 getattr(self._error, "peer", -1))  # fmt: skip
            return
        try:
            ft_all_reduce(x, self.group, **self._options)
        except (Recoverable, Fatal) as error:
            work.error = self._error = error
        except BaseException as error:
            work.error = self._error = Fatal(f"{type(error).__name__}: {error}")
            work.error.__cause__ = error

    def finish(self) -> Recoverable | None:
        """Wait until the queue is empty: None if all went well, or what went wrong first. Raises it if it is Fatal.

        After an error nothing more is exchanged until `rebuild`.
        """
        queue, self._queue = self._queue, []
        for work in queue:
            with contextlib.suppress(Recoverable, Fatal):
                work.wait()
        if isinstance(self._error, Fatal):
            raise self._error
        return self._error

    def abort(self) -> None:
        """End what runs, as if a peer were gone, and skip what is queued. All others learn of it at once."""
        self._error = self._error or Recoverable(f"rank {self.group.context.rank} gave its all-reduces up itself")
        self.group.leave()

    def rebuild(self, members: Sequence[int], epoch: int) -> Group:
        """Form the group anew from these world ranks; every one of them calls it alike. Returns the group.

        epoch: the number of the quorum. What is still queued is ended first. The old group is left, whether or not
        something went wrong, so bytes that are still on their way in it reach nobody.
        """
        if any(not work.done() for work in self._queue):
            self.abort()
            with contextlib.suppress(Fatal):
                self.finish()
        if isinstance(self._error, Fatal):
            raise self._error
        self._queue = []
        self.group = self.group.rebuild(members, epoch)
        self._error = None
        return self.group

    def close(self) -> None:
        """Leave the group and end the thread."""
        self.abort()
        with contextlib.suppress(Fatal):
            self.finish()
        if self._stream is not None:
            self._stream.stop()
            self._stream = None
