"""Marks: what one check says, and what an exercise comes to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

MARK = "application/vnd.labkit.mark+json"
SCHEMA = 1

STATES = ("unattempted", "right", "partly", "wrong", "error")
# Kinds of evidence.
KINDS = ("result", "work", "bytes", "messages", "rounds", "memory", "order", "overlap", "failure", "answer")


@dataclass(frozen=True)
class Mark:
    """What one check says. points: earned, of `of`. kind: the evidence it looked at. detail: a traceback, or empty.

    state: "right", "wrong", "error" (the student's code failed) or "unattempted" (a stub).
    """

    name: str
    kind: str
    points: float
    of: float
    sentence: str
    state: str = "right"
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """An exercise after its checks: the marks in the order of the checks, and how to repeat them."""

    exercise: str
    marks: tuple[Mark, ...]
    seed: int
    version: str
    checks_hash: str
    student: str = ""
    state: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", state_of(self.marks))

    @property
    def points(self) -> float:
        return sum(mark.points for mark in self.marks)

    @property
    def of(self) -> float:
        return sum(mark.of for mark in self.marks)

    def record(self) -> dict[str, Any]:
        """The outcome as plain JSON: the display of MIME type `MARK`."""
        return {
            "schema": SCHEMA, "exercise": self.exercise, "state": self.state, "points": self.points, "of": self.of,
            "checks": [asdict(mark) for mark in self.marks], "seed": self.seed, "student": self.student,
            "version": self.version, "check_hash": self.checks_hash,
        }  # fmt: skip


def state_of(marks: tuple[Mark, ...]) -> str:
    """One word for all marks: partly right beats an error, and an error a wrong answer; stubs alone are neither."""
    states = [mark.state for mark in marks]
    if all(state == "unattempted" for state in states):
        return "unattempted"
    if all(state == "right" for state in states):
        return "right"
    if any(mark.points > 0 for mark in marks):
        return "partly"
    return "error" if "error" in states else "wrong"
