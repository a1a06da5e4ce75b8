"""One client, seen from the service: its bytes in both directions, and what it has been allowed to say."""

from __future__ import annotations

import socket
from typing import Any

from . import greeting
from .errors import Trouble
from .frames import LARGEST, STRANGER, Reader, encode
from .membership import Quorum
from .slots import Source

UNREAD = 64 << 20  # bytes that wait for a client that does not read; more, and it is dropped


class Peer:
    """beats: which sources it beats for, with their incarnation. watches: it is told of every quorum.

    waits: a call of its is not answered yet. since: when it came.
    """

    def __init__(self, sock: socket.socket, now: float):
        self.socket, self.since = sock, now
        self.reader = Reader(STRANGER)
        self.nonce = greeting.nonce()
        self.admitted = self.waits = self.watches = self.over = False
        self.beats: dict[tuple[int, Source], int] = {}
        self._out = bytearray()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(encode(greeting.hello(self.nonce)))

    def admit(self, token: str, message: dict[str, Any]) -> None:
        """Take the answer to the greeting. Raises WrongToken or WrongVersion."""
        self.send(encode(greeting.admit(token, self.nonce, message)))
        self.admitted, self.reader.limit = True, LARGEST

    def read(self) -> bool:
        """Take what has come. False if the client has closed its side, or is gone."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.reader.feed(data)
        return bool(data)

    def send(self, data: bytes) -> None:
        """Send, or keep what does not go out yet."""
        self._out += data
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as it goes."""
        try:
            if self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.over = True  # reading says so as well
        if len(self._out) > UNREAD:
            self.over = True

    @property
    def unsent(self) -> bool:
        return bool(self._out)


def reply(result: dict[str, Any] | Quorum | Trouble) -> bytes:
    """The answer to a call, as bytes."""
    if isinstance(result, Quorum):
        return encode({"ok": result.to_json()})
    return encode({"ok": result} if isinstance(result, dict) else greeting.refusal(result))
