"""The `nccl` transport: point-to-point messages of NCCL, between GPUs.

NCCL has no tags and no headers: messages between two ranks of a communicator match in the order they are issued, and
each lane of each group therefore has a communicator of its own. A send and a receive that belong together are
issued as one NCCL group, or they could deadlock.
A call returns when the work is *queued* on the stream; `run` waits for the stream, so that times on the trace are those
of the GPU and a rank that hangs is seen to hang here. Waiting is done by polling, never by blocking in the driver: a
peer that died would hold it for ever.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from ..errors import PeerLost, WaitTimeout
from ..message import Message
from . import FOREVER, Lane, Site, Transport, kind
from .epoch import Epoch


class NcclTransport(Transport):
    """Lanes over NCCL communicators."""

    name = "nccl"
    host_memory = False

    def __init__(self, rank: int):
        self.rank = rank

    def lane(self, key: int, lane: int, timeout: float, epoch: Epoch | None = None) -> NcclLane:
        """A lane; its communicator is made with its first message."""
        return NcclLane(self, timeout)

    def close(self) -> None:
        """Abort what is under way: a communicator with a dead member cannot be closed in good order."""
        for pg in (dist.group.WORLD,):
            backend = pg._get_backend(torch.device("cuda")) if pg is not None else None
            if backend is not None and hasattr(backend, "abort"):
                backend.abort()


class NcclLane(Lane):
    """Sends and receives of one lane, on a stream of its own."""

    def __init__(self, transport: NcclTransport, timeout: float):
        self.transport, self.timeout = transport, timeout
        self._stream: Any = None

    # `push` and `pull` say what to do with a message; `run` and `post` do it
    push = staticmethod(lambda m: dist.P2POp(dist.isend, m.raw, m.peer))
    pull = staticmethod(lambda m: dist.P2POp(dist.irecv, m.raw if m.op is None else m.scratch, m.peer))

    def run(self, *messages: tuple[Any, Message], limit: float = FOREVER) -> None:
        """Move the messages and return when the GPU has."""
        self._finish([m for _, m in messages], self._begin(messages))
        torch.cuda.current_stream().wait_stream(self._stream)

    def post(self, advance: Any, m: Message) -> None:
        """Issue one message; a thread waits for its end and sets `m.done`."""
        m.done = m.done or threading.Event()
        event = self._begin(((advance, m),))

        def wait() -> None:
            try:
                self._finish([m], event)
            except BaseException as error:
                m.error = error
            m.finish()

        threading.Thread(target=wait, name="labkit-waiter", daemon=True).start()

    def wait(self, m: Message, limit: float = FOREVER) -> None:
        """Wait for an issued message and raise what went wrong with it."""
        assert m.done is not None
        if not m.done.wait(self.timeout):
            raise self._late(m)
        if m.error is not None:
            raise m.error

    def _begin(self, messages: Any) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                operations = []
                for advance, m in messages:
                    if m.op is not None:
                        m.scratch = torch.empty_like(m.raw)
                    if m.nbytes:
                        operations.append(advance(m))
                if operations:
                    for work in dist.batch_isend_irecv(operations):
                        work.wait()  # orders the stream; the host goes on
                for _, m in messages:
                    if m.op is not None and m.nbytes:
                        m.op.combine_(m.x.view(-1), m.scratch.view(m.x.dtype))
                event = torch.cuda.Event()
                event.record()
        except RuntimeError as why:
            raise PeerLost(f"rank {self.transport.rank}: {str(why).splitlines()[0]}", messages[0][1].peer) from why
        return event

    def _finish(self, messages: list[Message], event: Any) -> None:
        end = time.monotonic() + self.timeout
        pause = 20e-6
        while not event.query():
            if time.monotonic() > end:
                self.transport.close()
                raise self._late(messages[0])
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def _late(self, m: Message) -> WaitTimeout:
        return WaitTimeout(f"rank {self.transport.rank} waited {self.timeout:g} s for rank {m.peer}: nothing moved")

    def close(self) -> None:
        """Communicators are closed with the process."""


@kind("nccl", device="cuda", carries_time=False)
def _nccl(site: Site) -> NcclTransport:
    return NcclTransport(site.rank)
