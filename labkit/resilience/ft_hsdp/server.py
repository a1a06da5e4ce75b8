"""`StateServer`: gives a staged state to who is behind, over HTTP on loopback, a piece at a time.

    GET /state/<step>/<lineage>          the header, as JSON; waits until that state is staged
    GET /state/<step>/<lineage>/<a>-<b>  bytes a to b (b not included), their CRC-32 in a header line

Every request brings the run's token. A state that is not there any more is 410, one that does not come in time 503.
The bytes do not travel through a `Group`: they are counted here, and by who fetches.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import threading
import time
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from labkit.wire.errors import RefusedError

from .state import Snapshot

HELD_BACK = 64  # connections that may wait to be accepted


class StateServer:
    """Serves one snapshot at a time, from threads of its own. patience: seconds to wait for a state to be staged.

    around: a context manager factory, entered for every piece that is sent (the rank's span "serve").
    """

    def __init__(
        self, token: str, *, patience: float = 30.0, host: str = "127.0.0.1",
        around: Callable[[], Any] = contextlib.nullcontext,
    ):  # fmt: skip
        if not token:
            raise RefusedError("StateServer(token=''): a state is given to nobody who does not know the run's token")
        self.token, self.patience, self.around = token, patience, around
        self.served = 0  # payload bytes
        self._snapshot: Snapshot | None = None
        self._gone: tuple[int, int] = (-1, -1)  # the newest version that was let go
        self._changed = threading.Condition()
        self._closed = False
        self._http = _Http((host, 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="labkit-state-server",
                                        daemon=True)  # fmt: skip
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port."""
        host, port = self._http.server_address[:2]
        return f"{host!s}:{port}"

    def offer(self, snapshot: Snapshot) -> None:
        """From now on serve this one."""
        with self._changed:
            self._let_go()
            self._snapshot = snapshot
            self._changed.notify_all()

    def drop(self) -> None:
        """Serve nothing. Who is in the middle of a piece gets that piece."""
        with self._changed:
            self._let_go()
            self._changed.notify_all()

    def find(self, version: tuple[int, int]) -> Snapshot | int:
        """The snapshot of this version, waiting for it at most `patience`; else the status that says why not."""
        end = time.monotonic() + self.patience
        with self._changed:
            while True:
                if self._snapshot is not None and self._snapshot.version == version:
                    return self._snapshot
                if self._gone >= version or (self._snapshot is not None and self._snapshot.version > version):
                    return 410
                left = end - time.monotonic()
                if left <= 0 or self._closed:
                    return 503
                self._changed.wait(left)

    def close(self) -> None:
        """Stop listening."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    def _let_go(self) -> None:
        if self._snapshot is not None:
            self._gone = max(self._gone, self._snapshot.version)
            self._snapshot = None


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = HELD_BACK
    owner: StateServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who fetches may go away at any time; that is no news here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for all pieces
    server: _Http
    timeout = 60.0  # an idle connection is closed

    def setup(self) -> None:
        threading.current_thread().name = "labkit-state-serving"
        super().setup()

    def do_GET(self) -> None:
        owner = self.server.owner
        if not hmac.compare_digest(self.headers.get("X-Labkit-Token", "").encode(), owner.token.encode()):
            self._say(401, b"the token of this run is missing or wrong")
            return
        try:
            words = self.path.strip("/").split("/")
            kind, step, lineage = words[0], int(words[1]), int(words[2])
            first, last = map(int, words[3].split("-")) if len(words) == 4 else (-1, -1)
            if kind != "state" or len(words) > 4:
                raise ValueError
        except (ValueError, IndexError):
            self._say(404, b"there are only /state/<step>/<lineage> and /state/<step>/<lineage>/<first>-<last>")
            return
        found = owner.find((step, lineage))
        if isinstance(found, int):
            what = "no longer here" if found == 410 else "not here, and did not come"
            self._say(found, f"the state of step {step}, lineage {lineage} is {what}".encode())
        elif first < 0:
            self._say(200, json.dumps(found.header).encode())
        elif not first < last <= found.header["nbytes"]:
            self._say(416, f"bytes {first} to {last} of {found.header['nbytes']}".encode())
        else:
            with owner.around():
                piece = found.raw.numpy().data[first:last]
                self._say(200, piece, zlib.crc32(piece))
                owner.served += last - first

    def _say(self, status: int, body: Any, crc: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if crc is not None:
            self.send_header("X-Crc32", f"{crc:08x}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""
