"""The telemetry channel: reports of the ranks of many hosts, gathered in one place over TCP.

Each host (or each rank, where no process of the host sees all pages) has an `Agent`, a thread that reads the status
pages and sends their reports; a `Collector` keeps the latest of each rank, and when it was heard. Silence is evidence,
too: it is measured on the collector's own clock, so clocks need not agree. A report is some kilobytes; what is sent is
counted. Frames carry their length; the first one of a connection is the token.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from typing import Any

from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .reading import Pages
from .report import Report

_LENGTH = struct.Struct("<I")
MOST = 1 << 20  # bytes of one report: the paper's telemetry takes less than 1 MB a GPU
EVERY = 0.2  # seconds between two reports of a rank


class Collector:
    """Listens for reports, on loopback unless told otherwise.

    address, token: what agents need. nbytes: received so far. refused: connections that brought another token, or
    something that is no report.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        self.token = token or secrets.token_hex(16)
        self.nbytes = self.refused = 0
        self._latest: dict[int, tuple[Report, float]] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, port))
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._bell, self._rope = socket.socketpair()
        self._thread = threading.Thread(target=self._loop, name="labkit-telemetry", daemon=True)
        self._thread.start()

    def reports(self) -> dict[int, Report]:
        """The latest report of each rank."""
        with self._lock:
            return {rank: report for rank, (report, _) in sorted(self._latest.items())}

    def silent(self, seconds: float) -> set[int]:
        """Ranks that were heard of before, but not during the last `seconds`."""
        now = time.monotonic()
        with self._lock:
            return {rank for rank, (report, at) in self._latest.items() if now - at > seconds and not report.over}

    def close(self) -> None:
        """Stop listening, and let every connection go."""
        with contextlib.suppress(OSError):
            self._rope.send(b"\1")
        self._thread.join(5)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            open_ = True
            while open_:
                for key, _ in selector.select():
                    sock = key.fileobj
                    if sock is self._bell:
                        open_ = False
                    elif sock is self._listener:
                        with contextlib.suppress(OSError):
                            new, _ = self._listener.accept()
                            new.setblocking(False)
                            selector.register(new, selectors.EVENT_READ, {"data": bytearray(), "known": False})
                    elif not self._hear(sock, key.data):  # type: ignore[arg-type]
                        selector.unregister(sock)
                        sock.close()  # type: ignore[union-attr]
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
        self._rope.close()

    def _hear(self, sock: socket.socket, state: dict[str, Any]) -> bool:
        """Take what has come; False when the connection is to be closed."""
        try:
            data = sock.recv(1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        buffer: bytearray = state["data"]
        buffer += data
        self.nbytes += len(data)
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MOST or (not state["known"] and length > 256):
                self.refused += 1
                return False
            if len(buffer) < _LENGTH.size + length:
                break
            frame = bytes(buffer[_LENGTH.size : _LENGTH.size + length])
            del buffer[: _LENGTH.size + length]
            if not self._take(frame, state):
                self.refused += 1
                return False
        return True

    def _take(self, frame: bytes, state: dict[str, Any]) -> bool:
        if not state["known"]:
            state["known"] = hmac.compare_digest(frame, self.token.encode())
            return bool(state["known"])
        try:
            report = Report.from_bytes(frame)
        except ValueError:
            return False
        with self._lock:
            self._latest[report.rank] = report, time.monotonic()
        return True


class Agent:
    """Sends the reports of `pages` every `every` seconds, in a thread of its own, until it is closed.

    A collector that is gone is looked for again; training never waits for it. seconds: spent on reading and sending.
    """

    def __init__(self, pages: Pages, address: tuple[str, int], token: str, every: float = EVERY) -> None:
        if not 0 < every < 10**5:
            raise RefusedError(f"Agent(every={every!r}): needs a number of seconds above 0")
        self._pages, self._address, self._token, self.every = pages, (address[0], int(address[1])), token, every
        self._sock: socket.socket | None = None
        self._over = threading.Event()
        self.seconds, self.looks = 0.0, 0
        self._thread = threading.Thread(target=self._loop, name="labkit-telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send a last report, and stop."""
        self._over.set()
        self._thread.join(5)

    def _loop(self) -> None:
        last = False
        while not last:
            last = self._over.wait(self.every)
            begun = time.thread_time()
            reports = self._pages.look()
            try:
                sock = self._connected()
                for report in reports.values():
                    data = report.to_bytes()
                    sock.sendall(_LENGTH.pack(len(data)) + data)
            except OSError:
                self._let_go()
            self.seconds += time.thread_time() - begun
            self.looks += 1
        self._let_go()

    def _connected(self) -> socket.socket:
        if self._sock is None:
            sock = socket.create_connection(self._address, timeout=2)
            sock.sendall(_LENGTH.pack(len(self._token.encode())) + self._token.encode())
            self._sock = sock
        return self._sock

    def _let_go(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def report_to(group: Group, address: tuple[str, int], token: str, every: float = EVERY) -> Agent:
    """Have this rank report itself to a collector on another host. It ends with the process, or by `close()`."""
    return Agent(Pages([group.context.recorder.page], group.transport), address, token, every)
