"""Messages between the service and its clients: four bytes of length (big-endian), then JSON."""

from __future__ import annotations

import json
from typing import Any

from .errors import BadCall

STRANGER = 4096  # bytes in a message of one that has not shown the token yet
LARGEST = 16 << 20  # bytes in any other message: the data of all ranks of a large replica


class TooLong(BadCall):
    """A length that no message of ours has: the other side speaks something else, or sends too much."""


def encode(message: dict[str, Any]) -> bytes:
    """The message as bytes. BadCall if it holds what JSON cannot carry, or too much."""
    try:
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as why:
        raise BadCall(
            f"what is sent to the quorum service has to be plain data (numbers, text, lists, dicts): {why}"
        ) from why
    if len(body) > LARGEST:
        raise BadCall(
            f"a message of {len(body):,} bytes to the quorum service: at most {LARGEST:,} fit. Send less as data="
        )
    return len(body).to_bytes(4, "big") + body


class Reader:
    """Takes bytes as they come and gives whole messages. limit: bytes in one message, may be raised later."""

    def __init__(self, limit: int = LARGEST):
        self.limit = limit
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        self._held += data

    @property
    def waiting(self) -> int:
        """Bytes that were fed and not taken yet."""
        return len(self._held)

    def next(self) -> dict[str, Any] | None:
        """The next whole message, or None. BadCall for what is not one of ours."""
        held = self._held
        if len(held) < 4:
            return None
        size = int.from_bytes(held[:4], "big")
        if size > self.limit:
            raise TooLong(f"a message of {size:,} bytes, where at most {self.limit:,} are allowed")
        if len(held) < 4 + size:
            return None
        body = bytes(held[4 : 4 + size])
        del held[: 4 + size]
        try:
            message = json.loads(body)
        except ValueError as why:
            raise BadCall(f"a message that is not JSON: {why}") from why
        if not isinstance(message, dict):
            raise BadCall("a message that is not a JSON object")
        return message
