"""Small pickled messages between the processes of a run, with file descriptors attached."""

from __future__ import annotations

import array
import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<Q")
_MAX_FDS = 8


class Closed(ConnectionError):
    """The process at the other end is gone."""


class Channel:
    """One end of a Unix socket. `send` blocks; `receive` blocks; `ready` takes only what has come."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._buffer = bytearray()
        self._fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(a), cls(b)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Send one message; raises Closed if nobody is there."""
        raw = pickle.dumps(message, protocol=5)
        head = _LENGTH.pack(len(raw)) + bytes([len(fds)])
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                self.sock.sendmsg([head[:1]], rights)
                head = head[1:]
            self.sock.sendall(head + raw)
        except OSError as why:
            raise Closed(str(why)) from why

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for one message and the descriptors that came with it."""
        while True:
            message = self._take()
            if message is not None:
                return message
            self._fill(0)

    def ready(self) -> Iterator[tuple[Any, list[int]]]:
        """The messages that have come; raises Closed after the last one when the other end is gone."""
        closed = None
        try:
            while True:
                self._fill(socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except Closed as why:
            closed = why
        while (message := self._take()) is not None:
            yield message
        if closed is not None:
            raise closed

    def _fill(self, flags: int) -> None:
        try:
            data, extra, _, _ = self.sock.recvmsg(1 << 16, socket.CMSG_SPACE(_MAX_FDS * 4), flags)
        except BlockingIOError:
            raise
        except OSError as why:
            raise Closed(str(why)) from why
        if not data:
            raise Closed("closed by the other end")
        self._buffer += data
        for level, kind, raw in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += array.array("i", raw[: len(raw) // 4 * 4])

    def _take(self) -> tuple[Any, list[int]] | None:
        head = _LENGTH.size + 1
        if len(self._buffer) < head:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if len(self._buffer) < head + length:
            return None
        n = self._buffer[head - 1]
        fds, self._fds = self._fds[:n], self._fds[n:]
        message = pickle.loads(memoryview(self._buffer)[head : head + length])
        del self._buffer[: head + length]
        return message, fds

    def close(self) -> None:
        self.sock.close()
