"""Runs checks against a student, whichever door that is, and makes marks of what they say."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import labkit
from labkit.grading.checks.marks import KINDS, Mark, Outcome
from labkit.grading.checks.student import NotRight, Student, StudentError, Unattempted
from labkit.grading.known import NotKnown

FINE = "Right."
UNEARNED = "This holds, but it counts only when a result is right."


@dataclass(frozen=True)
class Check:
    """One check of an exercise: a function of a `Student` that ends quietly, or with a sentence of praise, or raises
    what it has to say."""

    exercise: str
    name: str
    evidence: str
    points: float
    body: Callable[[Student], Any]

    def __post_init__(self) -> None:
        if self.evidence not in KINDS:
            raise ValueError(f"check {self.name!r}: evidence={self.evidence!r} is none of {', '.join(KINDS)}")
        if isinstance(self.points, bool) or not isinstance(self.points, (int, float)) or not 0 < self.points <= 100:
            raise ValueError(f"check {self.name!r}: points={self.points!r} needs a number above 0, at most 100")

    @property
    def source(self) -> str:
        """Its lines; its name where they are not to be had."""
        try:
            return inspect.getsource(self.body)
        except (OSError, TypeError):
            return self.name


def judge(exercise: str, checks: Iterable[Check], student: Student, who: str = "") -> Outcome:
    """Run the checks of one exercise, in order, on one student."""
    checks = list(checks)
    marks: list[Mark] = []
    for check in checks:
        marks.append(_mark(check, student, {mark.detail for mark in marks}))
    return Outcome(exercise, tuple(thrifty(marks)), student.seed, labkit.__version__, hash_of(checks), who)


def thrifty(marks: list[Mark]) -> list[Mark]:
    """The marks, where sending little earns nothing by itself: whoever does nothing sends least of all.

    Evidence of how a result came about (work, bytes, messages, rounds, memory, order) counts if some result is right.
    """
    results = [mark for mark in marks if mark.kind == "result"]
    if not results or any(mark.state == "right" for mark in results):
        return marks
    return [
        replace(mark, points=0, state="wrong", sentence=UNEARNED)
        if mark.state == "right" and mark.kind != "answer"
        else mark
        for mark in marks
    ]


def _mark(check: Check, student: Student, shown: set[str]) -> Mark:
    """One check. shown: tracebacks that stand above already."""
    student.begin_check()

    def lost(sentence: str, state: str, detail: str = "") -> Mark:
        return Mark(check.name, check.evidence, 0, check.points, sentence, state, detail)

    try:
        said = check.body(student)
    except NotRight as error:
        return lost(str(error), "wrong")
    except Unattempted as error:
        return lost(str(error), "unattempted")
    except StudentError as error:
        return lost(str(error), "error", "" if error.detail in shown else error.detail)
    except NotKnown:
        raise  # no fault of the student's
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return lost(f"This check could not use what your answer gave ({what}). Is it what the task asks for?", "error")
    fine = said if isinstance(said, str) else FINE
    return Mark(check.name, check.evidence, check.points, check.points, fine)


def hash_of(checks: Iterable[Check]) -> str:
    """Which version of the checks gave a mark: 16 hexadecimal digits."""
    text = "\n".join(f"{c.exercise} {c.name} {c.evidence} {c.points}\n{c.source}" for c in checks)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
