"""The grader's handle on its template: started with the first sandbox, ended with the grader."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any

START = 120.0  # seconds that loading PyTorch may take on a slow machine


class Nursery:
    """Starts the template when it is needed, and again if it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._owner = 0

    def warden(self, order: dict[str, Any]) -> socket.socket:
        """The control socket of a new warden."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with self._lock, theirs:
            for attempt in (0, 1):
                sock = self._template()
                try:
                    socket.send_fds(sock, [json.dumps(order).encode()], [theirs.fileno()])
                    return ours
                except OSError:
                    self._stop()
                    if attempt:
                        raise
        raise AssertionError

    def _template(self) -> socket.socket:
        if self._owner != os.getpid():  # a fork of the grader makes its own
            self._process = self._sock = None
        if self._sock is None or self._process is None or self._process.poll() is not None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "template.py")
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-B", script, str(theirs.fileno())], pass_fds=[theirs.fileno()], env={},
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/", start_new_session=True,
                )  # fmt: skip
            ours.settimeout(START)
            if not ours.recv(16):
                raise RuntimeError("the sandbox's template process could not load PyTorch and labkit: see its errors")
            ours.settimeout(None)
            self._sock, self._owner = ours, os.getpid()
        return self._sock

    def _stop(self) -> None:
        if self._owner == os.getpid() and self._process is not None:
            if self._sock is not None:
                self._sock.close()
            self._process.kill()
            self._process.wait()
        self._process = self._sock = None

    def stop(self) -> None:
        """End the template; sandboxes that are open go on."""
        with self._lock:
            self._stop()


NURSERY = Nursery()
atexit.register(NURSERY.stop)
