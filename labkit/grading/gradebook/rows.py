"""The gradebook of a class: one row a student, each with notebooks, each with exercises.

An exercise without a record has 0 points. A free response that waits for a person, and an exercise at which the grader
itself failed, have none yet: they count neither in `score` nor in `max_score`; their points are in `to_mark`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from labkit.grading.gradebook.overrides import Override
from labkit.grading.gradebook.rubric import HandMark, Place, Response
from labkit.grading.gradebook.text import clean, points
from labkit.grading.gradebook.weights import Weight
from labkit.grading.grader.one import is_trouble
from labkit.grading.grader.results import TO_MARK, Graded, Result

MISSING = "missing"  # the state of an exercise without a record
UNGRADED = "ungraded"  # the grader failed, and not the student


@dataclass(frozen=True)
class Column:
    """An exercise of the class. label: its id, with the notebook where two have the same."""

    notebook: str
    exercise: str
    title: str
    kind: str
    of: float
    label: str


@dataclass(frozen=True)
class Entry:
    """One exercise of one student. state: one of `GRADED_STATES`, "missing" or "ungraded".

    points: what counts, before lateness. graded: what the grader found, None if missing. override, hand: what a person
    decided, None if nobody did.
    """

    column: Column
    state: str
    points: float
    of: float
    graded: Graded | None = None
    override: Override | None = None
    hand: HandMark | None = None

    @property
    def waits(self) -> bool:
        return self.state in (TO_MARK, UNGRADED)


@dataclass(frozen=True)
class Handed:
    """One notebook of one student. result: None if nothing came. percent: what lateness takes of `earned` points."""

    notebook: str
    result: Result | None
    entries: tuple[Entry, ...]
    late: timedelta | None = None
    percent: float = 0.0

    @property
    def absent(self) -> bool:
        """Whether nothing was handed in. Where the grader failed, that is not known."""
        return self.result is None or not (self.result.submission.file or any(map(is_trouble, self.result.exercises)))

    @property
    def penalty(self) -> float:
        """Points lost by lateness. Points that an instructor set stay as they are."""
        return sum(entry.points for entry in self.entries if entry.override is None) * self.percent / 100

    @property
    def score(self) -> float:
        return sum(entry.points for entry in self.entries) - self.penalty

    @property
    def max_score(self) -> float:
        return sum(entry.of for entry in self.entries if not entry.waits)

    @property
    def to_mark(self) -> float:
        return sum(entry.of for entry in self.entries if entry.waits)


@dataclass(frozen=True)
class Row:
    """A student. name: as shown to a marker. grade: of the course so far, in percent; None where nothing counts."""

    student: str
    name: str
    handed: tuple[Handed, ...]
    grade: float | None

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for handed in self.handed for entry in handed.entries)

    @property
    def score(self) -> float:
        return sum(handed.score for handed in self.handed)

    @property
    def max_score(self) -> float:
        return sum(handed.max_score for handed in self.handed)

    @property
    def to_mark(self) -> float:
        return sum(handed.to_mark for handed in self.handed)

    @property
    def penalty(self) -> float:
        return sum(handed.penalty for handed in self.handed)

    @property
    def absent(self) -> bool:
        return all(handed.absent for handed in self.handed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the row should know, in sentences."""
        found = []
        if self.absent:
            found.append("No submission.")
        for handed in self.handed:
            problems = handed.result.submission.problems if handed.result is not None else ()
            found += [f"{handed.notebook}: {said(problem)}" for problem in problems]
            if handed.absent and not problems and not self.absent:
                found.append(f"{handed.notebook}: no submission.")
            if handed.late is not None:
                found.append(f"{handed.notebook}: {in_words(handed.late)} late{lost(handed)}.")
        for entry in self.entries:
            if entry.state == UNGRADED:
                found.append(f"{entry.column.label}: could not be graded yet.")
            if entry.override is not None:
                found.append(f"{entry.column.label}: set to {points(entry.points)}. {said(entry.override.reason)}")
        return tuple(found)


@dataclass(frozen=True)
class Book:
    """The class. rows: by name as shown. responses: all free ones, with `marks` by place. problems: in sentences."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    weights: tuple[Weight, ...]
    responses: tuple[Response, ...]
    marks: Mapping[Place, HandMark]
    problems: tuple[str, ...]


def lost(handed: Handed) -> str:
    """ " and loses 10 percent: 1.2 points", or nothing."""
    if not handed.percent:
        return ""
    return f", which costs {points(handed.percent)} percent: {points(handed.penalty)} points"


def in_words(time: timedelta) -> str:
    """5 minutes, 3 hours, 2 days: rounded up."""
    minutes = -(-time // timedelta(minutes=1))
    for size, word in ((1440, "day"), (60, "hour"), (1, "minute")):
        if minutes >= size:
            count = -(-minutes // size)
            return f"{count} {word}{'' if count == 1 else 's'}"
    return "0 minutes"


def said(sentence: str) -> str:
    """A sentence with a full stop at its end."""
    sentence = " ".join(clean(sentence).split())
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
