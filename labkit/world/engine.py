"""From a call in a cell to processes that run it: the zygote of this process, and the two ways to get ranks."""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.telling import Telling
from labkit.wire.errors import RefusedError

from .channel import Channel, Closed
from .job import Job, Run, plainly
from .spec import make_spec, needs, refuse_many, sensible_ranks

IDLE_SECONDS = 1800.0


class _Zygote:
    """The forkserver of this process: started on first use, again when it is gone, never inherited by a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._owner = -1
        self._retired: list[subprocess.Popen[bytes] | None] = []

    def host(self, telling: Telling) -> Channel:
        """A new host process, and the channel to it."""
        with self._lock:
            mine, theirs = Channel.pair()
            for attempt in (1, 2):
                self._ensure(telling)
                assert self._sock is not None
                try:
                    socket.send_fds(self._sock, [b"j"], [theirs.fileno()])
                    break
                except OSError:  # it went idle; it still looks after jobs of ours that run
                    self._retired.append(self._process)
                    self._process = self._sock = None
                    if attempt == 2:
                        raise
            theirs.close()
            return mine

    def warm(self) -> None:
        """Have it ready for the first launch."""
        with self._lock:
            self._ensure(Telling(False))

    def _ensure(self, telling: Telling) -> None:
        if self._owner != os.getpid():
            self._process = self._sock = None  # a fork of the process that owned it
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._retired = [p for p in self._retired if p is not None and p.poll() is None]
        mine, theirs = socket.socketpair()
        idle = float(os.environ.get("LABKIT_IDLE_SECONDS", IDLE_SECONDS))
        script = Path(__file__).with_name("zygote.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(theirs.fileno()), str(idle)], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        end = time.monotonic() + 120
        while not select.select([mine], [], [], 0.5)[0] and time.monotonic() < end:
            telling.tell(lambda: "PyTorch is being loaded for the ranks, once")
        mine.settimeout(0.1)
        try:
            ready = mine.recv(1)
        except TimeoutError:
            ready = b""
        if not ready:
            code = self._process.poll()
            self._process.kill()
            self._process.wait()
            self._process = None
            raise RuntimeError(
                f"labkit could not start its worker process (exit code {code}); `labkit doctor` may say why"
            )
        mine.settimeout(None)
        self._sock, self._owner = mine, os.getpid()
        # One that ends by itself (idle, or killed) must not stay behind as a zombie.
        threading.Thread(target=self._process.wait, name="labkit-reaper", daemon=True).start()

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


_zygote = _Zygote()
atexit.register(_zygote.close)


@plainly
def start(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Job:
    """Start `fn(group, *args)` on `world_size` ranks and return at once with the `Job`.

    fn may be defined in a cell; closures, lambdas and classes of the notebook travel with it. For the options
    see `labkit.world.Spec`. Raises `RefusedError` (a ValueError) for anything that cannot work, before a rank starts.
    """
    from .torchrun import is_torchrun

    if is_torchrun():
        raise RefusedError("under torchrun the ranks exist already: use launch(), which runs on them")
    if os.environ.get("LABKIT_RANK") is not None:
        raise RefusedError("launch was called inside a rank: a rank cannot start a world of its own")
    if not callable(fn):
        raise RefusedError(f"launch needs a function fn(group, *args), not {type(fn).__name__}")
    spec = make_spec(world_size, options)
    refuse_many(spec)
    call = pack(fn, args)
    telling = Telling(spec.progress)
    if world_size > sensible_ranks():
        telling.say(needs(world_size))
    from .machine import link_model

    channel = _zygote.host(telling)
    path = [p or os.getcwd() for p in sys.path]
    try:
        channel.send(
            {
                "spec": spec,
                "call": call,
                "cwd": os.getcwd(),
                "path": path,
                "environ": dict(os.environ),
                "link_model": link_model(spec.transport),
            }
        )
    except Closed as why:
        raise RuntimeError("labkit's worker process ended before it could start the ranks") from why
    return Job(spec, channel, telling)


@plainly
def launch(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Run:
    """Run `fn(group, *args)` on `world_size` ranks and return the `Run` (see `start`).

    Raises `RankFailed` with the first failing rank's traceback unless on_failure says otherwise.
    """
    from .torchrun import is_torchrun, run_here

    if is_torchrun():
        return run_here(fn, world_size, args, options)
    return start(fn, world_size, *args, **options).wait()


def warm() -> None:
    """Start the worker process now, so that the first launch is as fast as the others."""
    _zygote.warm()


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments as bytes (see `serialization`)."""
    import io

    from .serialization import Pickler

    out = io.BytesIO()
    try:
        Pickler(out, protocol=5).dump((fn, args))
    except Exception as why:
        name = getattr(fn, "__qualname__", repr(fn))
        raise RefusedError(
            f"{name} cannot be sent to the ranks: {why}. It may hold an open file, a lock, a widget or a Run; "
            "create such things inside the function"
        ) from why
    return out.getvalue()
