"""One connection from a client to the quorum service: greeted, then one call at a time."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from . import greeting
from .errors import BadCall, Unanswered, WrongToken
from .frames import Reader, encode

PATIENCE = 10.0  # seconds for what the service answers at once: connecting, greeting, and beyond a call's own time

Address = tuple[str, int]


def parse(address: str | Address | list[Any]) -> Address:
    """("host", port) of "host:port" or of a pair. BadCall for anything else."""
    host, port = address.rpartition(":")[::2] if isinstance(address, str) else tuple(address)[:2]
    try:
        number = int(port)
    except (TypeError, ValueError):
        number = -1
    if not host or not 0 < number < 65536:
        raise BadCall(f"address {address!r}: needs 'host:port', as QuorumService.address has it")
    return str(host).strip("[]"), number


class Connection:
    """Open and greet. Raises Unanswered, WrongToken or WrongVersion; `close` may be called at any time."""

    def __init__(self, address: Address, token: str, patience: float = PATIENCE):
        self.where = f"{address[0]}:{address[1]}"
        self._reader = Reader()
        try:
            self._socket = socket.create_connection(address, timeout=patience)
        except OSError as why:
            raise Unanswered(
                f"nobody answers at {self.where} ({why}): is the quorum service running, and is this its address?"
            ) from why
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(token, patience)
        except BaseException:
            self.close()
            raise

    def _greet(self, token: str, patience: float) -> None:
        strange = f"what answers at {self.where} is not a quorum service of labkit"
        try:
            greeted = self.receive(patience)
        except (BadCall, Unanswered) as why:
            raise Unanswered(f"{strange} ({why})") from why
        if greeted.get("service") != greeting.SERVICE:
            raise Unanswered(strange)
        own = greeting.nonce()
        self.send(greeting.answer(token, greeted, own))
        admitted = self.receive(patience)
        greeting.raise_refusal(admitted)
        expected = greeting.proof(token, "service", str(greeted["nonce"]), own)
        if not greeting.same(admitted["ok"].get("proof"), expected):
            raise WrongToken(f"{strange}: it does not know the token")

    def call(self, request: dict[str, Any], wait: float = 0.0) -> dict[str, Any]:
        """Send one request and return its result. wait: seconds that the service itself may take to answer."""
        self.send(request)
        reply = self.receive(wait + PATIENCE)
        greeting.raise_refusal(reply)
        return reply["ok"]

    def more(self, wait: float) -> dict[str, Any] | None:
        """One more answer to the last call (`watch` has many), None if none comes within `wait` seconds."""
        if self._reader.waiting == 0 and not select.select([self._socket], [], [], wait)[0]:
            return None
        reply = self.receive(PATIENCE)
        greeting.raise_refusal(reply)
        return reply["ok"]

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        try:
            self._socket.settimeout(PATIENCE)
            self._socket.sendall(encode(message))
        except OSError as why:
            raise Unanswered(f"the quorum service at {self.where} is gone ({why})") from why

    def receive(self, wait: float) -> dict[str, Any]:
        """The next message, waiting at most `wait` seconds for it; Unanswered if none comes."""
        end = time.monotonic() + wait
        while (message := self._reader.next()) is None:
            try:
                self._socket.settimeout(max(end - time.monotonic(), 0.001))
                data = self._socket.recv(65536)
            except TimeoutError as why:
                raise Unanswered(f"the quorum service at {self.where} has not answered for {wait:.3g} s") from why
            except OSError as why:
                raise Unanswered(f"the quorum service at {self.where} is gone ({why})") from why
            if not data:
                raise Unanswered(
                    f"the quorum service at {self.where} has closed the connection: it ended, or was stopped"
                )
            self._reader.feed(data)
        return message

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    @property
    def ended(self) -> bool:
        """Whether the service has closed it, as far as is known here, while no call is waiting."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def arrived(self) -> list[dict[str, Any]]:
        """The messages that are here already, after `select` said that something is. Unanswered if it is the end."""
        self._socket.settimeout(0.0)
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as why:
            raise Unanswered(f"the quorum service at {self.where} is gone ({why})") from why
        if not data:
            raise Unanswered(f"the quorum service at {self.where} has closed the connection")
        self._reader.feed(data)
        found = []
        while (message := self._reader.next()) is not None:
            found.append(message)
        return found

    def close(self) -> None:
        self._socket.close()
