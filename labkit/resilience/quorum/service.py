"""The quorum service as a process of its own, started and ended from here."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import BadCall
from .greeting import new_token
from .rules import Rules

ROOT = Path(__file__).resolve().parents[3]  # where this labkit lies
STARTING = 20.0  # seconds; it takes a tenth of one


class QuorumService:
    """address: "host:port" for clients. token: they have to know it. pid: of the process.

    The process ends with `stop()`, with this object, or with this process, however that ends: it reads from a pipe that
    only this process holds, and looks who its parent is.
    """

    def __init__(self, process: subprocess.Popen[bytes], address: str, token: str):
        self.address, self.token, self.pid = address, token, process.pid
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)

    @staticmethod
    def start(
        replicas: int, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, first_id: int = 1,
        incarnations: Sequence[int] = (), **options: Any,
    ) -> QuorumService:  # fmt: skip
        """Start it, and return when it listens. options: those of `Rules` (join=, first=, heartbeat=, ...).

        host: loopback unless told otherwise. first_id, incarnations: what a service that was lost had come to, for one
        that takes its place. BadCall for what cannot work.
        """
        try:
            rules = Rules(replicas, **options)
        except TypeError as why:
            raise BadCall(f"QuorumService.start: {why}") from why
        token = new_token() if token is None else token
        if not token or "\n" in token:
            raise BadCall("QuorumService.start(token=...): needs a text of one line that is not empty")
        asked = {
            "token": token, "host": host, "port": port, "first_id": first_id, "incarnations": list(incarnations),
            "rules": rules.to_json(),
        }  # fmt: skip
        process = subprocess.Popen(
            interpreter("__main__", "--child"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            return QuorumService(process, _address(process, json.dumps(asked).encode() + b"\n"), token)
        except BaseException:
            _end(process)
            raise

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it; its clients learn at once. May be called twice."""
        self._finalizer()

    def __enter__(self) -> QuorumService:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def interpreter(module: str, *arguments: str) -> list[str]:
    """The command that runs `main(arguments)` of a module here, whatever lies in the working directory."""
    code = f"import sys; sys.path[0] = {str(ROOT)!r}; from labkit.resilience.quorum.{module} import main; "
    return [sys.executable, "-c", f"{code}sys.exit(main({list(arguments)!r}))"]


def _address(process: subprocess.Popen[bytes], asked: bytes) -> str:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.write(asked)
        process.stdin.flush()
    there, _, _ = select.select([process.stdout], [], [], STARTING)
    line = process.stdout.readline() if there else b""
    process.stdout.close()
    said: dict[str, Any] = (
        json.loads(line) if line else {"error": "it ended, or said nothing; its standard error may say why"}
    )
    if "error" in said:
        raise BadCall(f"the quorum service did not start: {said['error']}")
    host, port = tuple(said["address"])
    return f"{host}:{port}"


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                if pipe is process.stdin:
                    os.write(pipe.fileno(), b"stop\n")  # a fork of this process may keep the pipe open
            with contextlib.suppress(OSError, ValueError):
                pipe.close()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
