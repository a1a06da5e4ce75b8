"""What a call of a submission's function leaves: results as data, and what the grader itself saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Failure:
    """Why a call has no results.

    kind: "time", "memory", "output", "died" (a process ended by itself or was killed), "protocol" (what a rank wrote
    to the grader was not well-formed, or too much), "data" (a result that is no data), "missing" (no such name),
    "wire" (a mismatch, a lost or a late rank, as labkit says it), "raised", or "sandbox" (not the submission's fault).
    text: in words. rank: where; -1 if not on one. error: the name of the exception, as the submission says it.
    traceback: likewise, the submission's own frames only. What a submission says is text and nothing else.
    """

    kind: str
    text: str
    rank: int = -1
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Delivery:
    """One message, as the switch saw it pass. begun, ended: places in the order of all events (ended -1: never).

    operation, call, group, lane and seq are what the sender wrote in the header: claims, like the bytes themselves.
    src is not a claim. nbytes: payload that really passed. round: from 1 on, where rounds were asked for; else 0.
    """

    src: int
    dst: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    operation: int
    call: int
    group: int
    lane: int
    seq: int
    begun: int
    ended: int
    round: int = 0


@dataclass(frozen=True)
class Evidence:
    """What a call left, by rank.

    results: what each rank returned. bytes_between[a][b]: payload from a to b, messages[a]: messages from a, both
    counted by the grader's switch; order: every message, in the order in which the switch saw their headers.
    peak_bytes: growth of the memory of each rank's process since just before it read the answer cells, as the kernel
    accounts it; the inputs are not in it (`input_bytes` says what they take). failure: None, or why there are no
    results; what was counted until then is there all the same. output: what the ranks printed, cut at the limit.
    longer: seconds beyond the limit that they were given, because others had the cores. seconds: from when the ranks
    had their inputs to the end of the call, less what a rank stood in line for a core on average.
    """

    results: list[Any] = field(default_factory=list)
    bytes_between: list[list[int]] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    order: list[Delivery] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    input_bytes: list[int] = field(default_factory=list)
    failure: Failure | None = None
    output: str = ""
    longer: float = 0.0
    seconds: float = 0.0

    @property
    def bytes_sent(self) -> list[int]:
        """Payload bytes that each rank sent."""
        return [sum(row) for row in self.bytes_between]

    @property
    def rounds(self) -> int:
        """Messages that had to follow one another, where rounds were asked for; else 0."""
        return max((message.round for message in self.order), default=0)
