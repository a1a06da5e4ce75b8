"""What the class found hard: which checks fail most, and how exercises went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from labkit.grading.gradebook.rows import MISSING, UNGRADED, Book, Column, Row
from labkit.grading.grader.results import GRADED_STATES


@dataclass(frozen=True)
class CheckCount:
    """One check. failed: of those who attempted its exercise. sentence: that most of them read."""

    column: Column
    name: str
    kind: str
    attempted: int
    failed: int
    sentence: str

    @property
    def share(self) -> float:
        return self.failed / self.attempted


@dataclass(frozen=True)
class ExerciseCount:
    """How often each state occurs, those without a record as "missing"; the mean share of points of what is marked."""

    column: Column
    states: dict[str, int]
    mean: float | None


def checks(book: Book) -> list[CheckCount]:
    """All checks that someone failed, those with the largest share first."""
    seen: Counter[tuple[Column, str, str]] = Counter()
    sentences: dict[tuple[Column, str, str], Counter[str]] = {}
    for entry in (entry for row in book.rows for entry in row.entries if entry.graded is not None):
        for mark in entry.graded.marks if entry.graded is not None else ():
            if mark.state != "unattempted" and entry.state != UNGRADED:
                key = (entry.column, mark.name, mark.kind)
                seen[key] += 1
                if mark.state != "right":
                    sentences.setdefault(key, Counter())[mark.sentence] += 1
    found = [
        CheckCount(*key, seen[key], said.total(), min(said, key=lambda text: (-said[text], text)))
        for key, said in sentences.items()
    ]
    return sorted(found, key=lambda one: (-one.share, -one.failed, one.column.label, one.name))


def exercises(book: Book) -> list[ExerciseCount]:
    """All exercises, in the order of the columns."""
    found = []
    for place, column in enumerate(book.columns):
        entries = [row.entries[place] for row in book.rows]
        states = Counter(entry.state for entry in entries)
        shares = [entry.points / entry.of for entry in entries if entry.of and not entry.waits]
        known = {name: states[name] for name in (*GRADED_STATES, MISSING, UNGRADED)}
        found.append(ExerciseCount(column, known, fmean(shares) if shares else None))
    return found


def percents(rows: Sequence[Row]) -> list[float]:
    """The percent of points of each student, sorted; without those of whom nothing is marked."""
    return sorted(100 * row.score / row.max_score for row in rows if row.max_score)
