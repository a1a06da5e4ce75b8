"""The worker process from which ranks are forked (`world/zygote.py`), as the process that needs it sees it.

It is started on first use, or early: the kernel of `labkit lab` does so before its reader has run a cell. Then PyTorch
is being loaded there, and here in a thread, while the reader reads. So nothing here may import PyTorch.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from labkit.telling import Telling

IDLE_SECONDS = 1800.0


class Zygote:
    """The forkserver of this process: started on first use, again when it is gone, never inherited by a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._owner = -1
        self._ready = False
        self._retired: list[subprocess.Popen[bytes] | None] = []

    def host(self, fd: int, telling: Telling) -> None:
        """Have a new host process made, at the other end of whose channel `fd` is."""
        with self._lock:
            for attempt in (1, 2):
                self._ensure(telling)
                assert self._sock is not None
                try:
                    socket.send_fds(self._sock, [b"j"], [fd])
                    break
                except OSError:  # it went idle; it still looks after jobs of ours that run
                    self._retired.append(self._process)
                    self._process = self._sock = None
                    if attempt == 2:
                        raise

    def warm(self) -> None:
        """Have it ready for the first launch."""
        with self._lock:
            self._ensure(Telling(False))

    def begin(self) -> None:
        """Start it and do not wait until it is ready."""
        with self._lock:
            if self._process is None:
                self._spawn()

    def _spawn(self) -> None:
        self._retired = [p for p in self._retired if p is not None and p.poll() is None]
        mine, theirs = socket.socketpair()
        idle = float(os.environ.get("LABKIT_IDLE_SECONDS", IDLE_SECONDS))
        script = Path(__file__).with_name("world") / "zygote.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(theirs.fileno()), str(idle)], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._sock, self._owner, self._ready = mine, os.getpid(), False
        # One that ends by itself (idle, or killed) must not stay behind as a zombie.
        threading.Thread(target=self._process.wait, name="labkit-reaper", daemon=True).start()

    def _ensure(self, telling: Telling) -> None:
        if self._owner != os.getpid():
            self._process = self._sock = None  # a fork of the process that owned it
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._spawn()
        if self._ready:
            return
        assert self._process is not None and self._sock is not None
        end = time.monotonic() + 120
        while not select.select([self._sock], [], [], 0.5)[0] and time.monotonic() < end:
            telling.tell(lambda: "PyTorch is being loaded for the ranks, once")
        self._sock.settimeout(0.1)
        try:
            ready = self._sock.recv(1)
        except TimeoutError:
            ready = b""
        if not ready:
            code = self._process.poll()
            self._process.kill()
            self._process.wait()
            self._process = self._sock = None
            raise RuntimeError(
                f"labkit could not start its worker process (exit code {code}); `labkit doctor` may say why"
            )
        self._sock.settimeout(None)
        self._ready = True

    def close(self) -> None:
        """End it, if it is ours."""
        if self._process is None or self._owner != os.getpid():
            return
        if self._sock is not None:
            self._sock.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._sock = None


zygote = Zygote()
atexit.register(zygote.close)


def begin() -> None:
    """Load PyTorch for ranks, and in a thread for this process too."""

    def load() -> None:
        zygote.begin()
        import torch  # noqa: F401

    threading.Thread(target=load, name="labkit-begin", daemon=True).start()
