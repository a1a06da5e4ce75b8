"""`fetch_state`: take over the state of a healthy replica, piece by piece, from another one if the first is lost."""

from __future__ import annotations

import http.client
import json
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.resilience.errors import Recoverable

from .state import Snapshot, room_for


@dataclass
class Fetched:
    """A state that was taken over. source: the replica that gave the last piece. nbytes: payload that was received.

    lost: replicas that were asked and could not give it (all), with why.
    """

    snapshot: Snapshot
    source: int
    nbytes: int
    lost: list[tuple[int, str]] = field(default_factory=list)


class _Gone(Exception):
    """This source cannot give it."""


def fetch_state(
    sources: Sequence[tuple[int, str]], token: str, version: tuple[int, int], *, piece: int = 4 << 20,
    patience: float = 5.0, deadline: float | None = None, cancel: threading.Event | None = None,
) -> Fetched:  # fmt: skip
    """The state `version` from the first of `sources` ((replica, "host:port"), ...) that can give it.

    piece: bytes of one request; each is checked by its CRC-32. patience: seconds that one answer may take. deadline:
    on the monotonic clock, for all of it. A source that fails is left for the next one, which gives the pieces that are
    missing: states of one version are equal. Raises Recoverable, naming all sources and what was wrong with them.
    """
    if not sources:
        raise Recoverable(f"the state of step {version[0]} has no source: nobody in the quorum holds it")
    end = time.monotonic() + 10**6 if deadline is None else deadline
    lost: list[tuple[int, str]] = []
    snapshot: Snapshot | None = None
    have = 0
    for replica, address in sources:
        connection: http.client.HTTPConnection | None = None
        try:
            host, _, port = address.rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=_left(end, patience))
            path = f"/state/{version[0]}/{version[1]}"
            header = json.loads(_get(connection, path, token)[0])
            if snapshot is None or snapshot.header != header:  # what comes from one state fits no other
                snapshot, have = room_for(header), 0
            into = snapshot.raw.numpy().data
            while have < header["nbytes"]:
                if cancel is not None and cancel.is_set():
                    raise Recoverable("the fetch was given up")
                if connection.sock is not None:
                    connection.sock.settimeout(_left(end, patience))
                last = min(have + piece, header["nbytes"])
                body, crc = _get(connection, f"{path}/{have}-{last}", token)
                if len(body) != last - have or crc != zlib.crc32(body):
                    raise _Gone(f"bytes {have} to {last} were damaged on their way")
                into[have:last] = body
                have = last
            return Fetched(snapshot, replica, header["nbytes"], lost)
        except (OSError, http.client.HTTPException, _Gone, ValueError, KeyError) as why:
            lost.append((replica, f"{type(why).__name__}: {why}" if not isinstance(why, _Gone) else str(why)))
        finally:
            if connection is not None:
                connection.close()
    names = "; ".join(f"replica {r}: {why}" for r, why in lost)
    raise Recoverable(f"nobody could give the state of step {version[0]}, lineage {version[1]} ({names})")


def _left(end: float, patience: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise _Gone("the time for the fetch is over")
    return min(left, patience)


def _get(connection: http.client.HTTPConnection, path: str, token: str) -> tuple[Any, int | None]:
    """The body, and the CRC-32 that came with it."""
    connection.request("GET", path, headers={"X-Labkit-Token": token})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise _Gone(f"{answer.status}: {body.decode(errors='replace')}")
    crc = answer.headers.get("X-Crc32")
    return body, None if crc is None else int(crc, 16)


class Fetch:
    """`fetch_state` in a thread of its own, while this rank takes part in the exchange."""

    def __init__(self, *args: Any, **options: Any):
        self._cancel = threading.Event()
        self._result: Fetched | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(args, options), name="labkit-fetch", daemon=True)
        self._thread.start()

    def _run(self, args: Any, options: Any) -> None:
        try:
            self._result = fetch_state(*args, **options, cancel=self._cancel)
        except BaseException as error:
            self._error = error

    def wait(self, seconds: float) -> Fetched:
        """What was fetched, waiting at most `seconds`. Raises Recoverable if there is nothing; then it is given up."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._cancel.set()
            raise Recoverable(f"the state was not here {seconds:g} s after the exchange: the others go on without us")
        if self._error is not None:
            raise (
                self._error if isinstance(self._error, Recoverable) else RuntimeError(str(self._error))
            ) from self._error
        assert self._result is not None
        return self._result
