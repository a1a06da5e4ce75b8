"""What can go wrong on the wire, by name. Every message says who, what, and what to do."""

from __future__ import annotations

from typing import Any


class WireError(RuntimeError):
    """Base of all errors that `Group` raises about messages."""


class Mismatch(WireError):
    """Two ranks disagree: about the operation, its order, its dtype or its shape."""


class MessageLost(Mismatch):
    """A message never came, and the next one did: it was lost on the way."""


class PeerLost(WireError):
    """The rank at the other end is gone (it died, finished, or closed the connection)."""

    def __init__(self, message: str, peer: int = -1):
        super().__init__(message)
        self.peer = peer

    def __reduce__(self) -> Any:
        return (type(self), (self.args[0], self.peer))


class WaitTimeout(WireError, TimeoutError):
    """One wait took longer than it may. peer: the rank that was waited for, -1 if it was not one alone."""

    peer = -1


class RefusedError(ValueError):
    """A request that cannot work, refused before anything was started."""
