"""What `isend` and `irecv` began on the `local` transport is finished here, while the caller computes."""

from __future__ import annotations

import collections
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

from ..message import Message

if TYPE_CHECKING:
    from .lane import LocalLane

LOOK = 100  # milliseconds between two looks at whether the other ranks still live


class Background:
    """The thread that finishes what `isend` and `irecv` began, in order for each peer and direction."""

    def __init__(self, lane: LocalLane):
        self.lane = lane
        self.queues: dict[tuple[Any, int], collections.deque[Message]] = {}
        self.outstanding = 0
        self.lock = threading.Lock()
        self.bell, self._rope = socket.socketpair()
        self.bell.setblocking(False)
        self._rope.setblocking(False)
        self.thread = threading.Thread(target=self._loop, name="labkit-messages", daemon=True)
        self.thread.start()

    def busy(self) -> bool:
        return self.outstanding > 0

    def post(self, advance: Any, m: Message) -> None:
        if m.done is None:
            m.done = threading.Event()
        with self.lock:
            self.outstanding += 1
            self.queues.setdefault((advance.__name__, m.peer), collections.deque()).append(m)
        self._ring()

    def _ring(self) -> None:
        try:
            self._rope.send(b"\1")
        except BlockingIOError:
            pass

    def wait(self, m: Message, timeout: float) -> None:
        assert m.done is not None
        if not m.done.wait(timeout):
            self.lane._late(m.peer, timeout)
        if m.error is not None:
            raise m.error

    def stop(self) -> None:
        self._rope.close()

    def _loop(self) -> None:
        quiet = False
        while True:
            poll = select.poll()
            poll.register(self.bell.fileno(), select.POLLIN)
            with self.lock:
                heads = [(key, q) for key, q in self.queues.items() if q]
            for (name, _), queue in heads:
                advance = getattr(self.lane, name)
                while queue:
                    m = queue[0]
                    try:
                        if not advance(m):
                            if quiet and not self.lane.lives(m.peer) and not advance(m):
                                raise self.lane._lost(m.peer, OSError("it is no longer running"))
                            poll.register(*m.stuck)  # type: ignore[misc]
                            break
                    except BaseException as error:
                        m.error = error
                    with self.lock:
                        queue.popleft()
                        self.outstanding -= 1
                    m.finish()
                    del m  # while this thread sleeps it keeps no tensor alive
            quiet = not poll.poll(LOOK if self.outstanding else None)
            try:
                if self.bell.recv(4096) == b"":
                    self.bell.close()
                    return
            except BlockingIOError:
                pass
