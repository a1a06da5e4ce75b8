"""What can go wrong in a fault-tolerant run, in two classes: try again with the others, or end this rank.

    recoverable   a peer is gone, or a wait took too long: leave the group, get a new quorum, try the step again
    fatal         anything else: a bug or broken hardware. Trying again would only waste time, so this rank ends

After Salpekar et al. 2026, "Training LLMs with Fault Tolerant HSDP on 100,000 GPUs", section 4.2, "Timeout and error
handling". No import of PyTorch.
"""

from __future__ import annotations

from typing import Any

from labkit.wire.errors import MessageLost, PeerLost, RefusedError, WaitTimeout, WireError


class Recoverable(WireError):
    """An exchange did not come off, and its group is of no more use: rebuild it over the living and try again.

    peer: the world rank this one was waiting for, -1 if unknown; it need not be the culprit, for who gives up leaves
    the group, and its neighbours lose it. late: the wait ran out (the peer may be alive), else the peer was gone.
    """

    def __init__(self, message: str, peer: int = -1, late: bool = False):
        super().__init__(message)
        self.peer, self.late = peer, late

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.peer, self.late)


class Skipped(Recoverable):
    """Work that was queued behind one that failed, and was never begun."""


class Fatal(RuntimeError):
    """This rank cannot go on: a bug, or hardware that fails. Its cause is `__cause__`."""


class NoQuorum(Recoverable):
    """The quorum service did not answer, or not in time."""


class WrongToken(RefusedError):
    """A request without the token of this run."""


class WrongVersion(RefusedError):
    """The other side runs another version of the code."""


class OldIncarnation(RefusedError):
    """A request of a life of a replica that is over: a newer one has begun."""


RECOVERABLE = (Recoverable, PeerLost, WaitTimeout, MessageLost, ConnectionError)


def classify(error: BaseException) -> type[Recoverable] | type[Fatal]:
    """Recoverable or Fatal, by the kind of `error`."""
    return Recoverable if isinstance(error, RECOVERABLE) else Fatal


def as_class(error: BaseException) -> Recoverable | Fatal:
    """`error` as one of the two classes, with its words; raise it `from error`."""
    if isinstance(error, Recoverable | Fatal):
        return error
    if classify(error) is Recoverable:
        return Recoverable(str(error), getattr(error, "peer", -1), isinstance(error, WaitTimeout))
    return Fatal(f"{type(error).__name__}: {error}")
