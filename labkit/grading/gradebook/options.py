"""What an instructor asks of a gradebook beside the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from labkit.grading.gradebook.errors import PolicyError
from labkit.grading.gradebook.overrides import Override, read_overrides
from labkit.grading.gradebook.policy import Accommodation, LatePolicy, Policy, read_moment, read_policy
from labkit.grading.gradebook.rubric import HandMark, Place, read_rubric
from labkit.grading.gradebook.sheets import read


@dataclass(frozen=True)
class GradebookOptions:
    """Everything is optional. deadline: of all notebooks; deadlines: by notebook, and stronger.

    rubric: marks of free responses, by (student or pseudonym, notebook, exercise). roster: all students of the class,
    so that those who handed in nothing have a row. contact: whom a student asks, for the feedback pages.
    """

    accommodations: Mapping[str, Accommodation] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    rubric: Mapping[Place, HandMark] = field(default_factory=dict)
    deadline: datetime | None = None
    anonymous: bool = False
    roster: tuple[str, ...] = ()
    deadlines: Mapping[str, datetime] = field(default_factory=dict)
    opens: datetime | None = None
    late: LatePolicy = LatePolicy()
    contact: str = "your instructor"

    def due(self, student: str, notebook: str) -> datetime | None:
        """When this student hands in this notebook."""
        common = self.deadlines.get(notebook, self.deadline)
        return self.accommodations.get(student, Accommodation()).due(notebook, common, self.opens)

    def lateness(self, student: str, notebook: str, received: str | None) -> timedelta | None:
        """How long after its deadline it came; None where it is in time, or one of the two is not known."""
        due = self.due(student, notebook)
        if due is None or received is None:
            return None
        came = datetime.fromisoformat(received)
        late = (came if came.tzinfo is not None else came.astimezone()) - due
        return late if self.late.is_late(late) else None


def read_options(
    *, accommodations: Path | None = None, overrides: Path | None = None, rubric: Path | None = None,
    deadline: str | None = None, anonymous: bool = False, roster: Path | None = None, contact: str = "your instructor",
) -> GradebookOptions:  # fmt: skip
    """The options from the files and words of a command line. Raises PolicyError."""
    policy = read_policy(accommodations) if accommodations is not None else Policy()
    return GradebookOptions(
        accommodations=policy.accommodations,
        overrides=read_overrides(overrides) if overrides is not None else (),
        rubric=read_rubric(rubric) if rubric is not None else {},
        deadline=read_moment(deadline) if deadline is not None else None,
        anonymous=anonymous,
        roster=read_roster(roster) if roster is not None else (),
        deadlines=policy.deadlines, opens=policy.opens, late=policy.late, contact=contact,
    )  # fmt: skip


def read_roster(path: Path) -> tuple[str, ...]:
    """The students of a CSV file with a column student_id (or student), each once. Raises PolicyError."""
    try:
        rows = [row["student_id"] for _, row in read(path, ("student_id",))]
    except PolicyError as error:
        if "has no column" not in str(error):
            raise
        try:
            rows = [row["student"] for _, row in read(path, ("student",))]
        except PolicyError:
            raise error from None
    return tuple(dict.fromkeys(name.strip() for name in rows if name.strip()))
