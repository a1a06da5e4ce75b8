"""What the figures read from a trace: `labkit.wire.Trace` has all of it, and so has anything that looks like one.

Times are seconds since the run began; ranks are world ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from labkit.book.drawing.units import listing


class Message(Protocol):
    """One message. In `sends`, `start` and `end` are its sender's; in `recvs` they are its receiver's."""

    @property
    def src(self) -> int: ...
    @property
    def dst(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def recv_start(self) -> float: ...  # the receiver began to wait
    @property
    def arrived(self) -> float: ...  # the receiver had it; NaN if nobody did
    @property
    def offset(self) -> int: ...  # first element in the tensor of the outermost collective, -1 if elsewhere
    @property
    def recv_offset(self) -> int: ...  # the same at the receiver
    @property
    def collective(self) -> int: ...  # the sender's, as an index into collectives(), or -1
    @property
    def recv_collective(self) -> int: ...
    @property
    def index(self) -> int: ...  # the sender's record: records of a rank are numbered in the order of their beginning
    @property
    def recv_index(self) -> int: ...
    @property
    def step(self) -> int: ...  # of training, as its sender marked it
    @property
    def combine(self) -> bool: ...  # received with `op`: combined with what was there, not written over it


class Collective(Protocol):
    """One call of a collective, on one rank."""

    @property
    def rank(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def op(self) -> Any: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def root(self) -> int: ...  # a world rank, -1 for none
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def group(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def native(self) -> bool: ...
    @property
    def nested(self) -> bool: ...  # called by another collective
    @property
    def step(self) -> int: ...


class Span(Protocol):
    """A named stretch of time on one rank."""

    @property
    def rank(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def step(self) -> int: ...


class Trace(Protocol):
    """The evidence of a run."""

    @property
    def world_size(self) -> int: ...
    @property
    def badge(self) -> str: ...
    @property
    def duration(self) -> float: ...
    @property
    def groups(self) -> Mapping[int, Sequence[int]]: ...  # number of a group -> its world ranks, in its order
    @property
    def sends(self) -> Sequence[Message]: ...
    @property
    def recvs(self) -> Sequence[Message]: ...
    def collectives(self, name: str | None = None) -> Sequence[Collective]: ...
    def spans(self, name: str | None = None) -> Sequence[Span]: ...
    def bytes_between(self) -> Sequence[Sequence[int]]: ...
    def step_breakdown(self, step: int | None = None) -> Sequence[Mapping[str, Any]]: ...


def longest_waits(ranks: Sequence[int], waiting: Sequence[float]) -> str:
    """Who waits longest, several if they wait alike: "Rank 4 waits", "Ranks 2, 3 and 5 wait"."""
    most = max(waiting)
    named = [str(rank) for rank, seconds in zip(ranks, waiting, strict=True) if seconds > 0.99 * most]
    return f"Rank {named[0]} waits" if len(named) == 1 else f"Ranks {listing(named)} wait"
