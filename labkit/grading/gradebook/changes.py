"""What became different since the marks before: for a regrade, and for whoever wonders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.grading.gradebook.report import SCHEMA
from labkit.grading.gradebook.sheets import written
from labkit.grading.gradebook.text import counted, points

COLUMNS = ("student_id", "notebook", "exercise", "points_before", "points_after", "change", "state_before",
           "state_after", "why")  # fmt: skip
GONE = "not there"

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Change:
    """One exercise whose points or state differ. points None: to mark, or not there. why: what else differs."""

    student: str
    notebook: str
    exercise: str
    before: float | None
    after: float | None
    state_before: str
    state_after: str
    why: str

    @property
    def change(self) -> float:
        return (self.after or 0.0) - (self.before or 0.0)


def differences(before: str, after: str) -> list[Change]:
    """The changes from one grades.json to another, by student. Raises ValueError where `before` cannot be read."""
    old, new = _entries(before), _entries(after)
    found = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if a is None or b is None or (a["points"], a["state"], a["penalty"]) != (b["points"], b["state"], b["penalty"]):
            found.append(Change(
                *key, a["points"] if a else None, b["points"] if b else None, a["state"] if a else GONE,
                b["state"] if b else GONE, _why(a, b),
            ))  # fmt: skip
    return found


def _entries(text: str) -> dict[Key, dict[str, Any]]:
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}")
        return {
            (row["student_id"], handed["notebook"], entry["exercise"]): entry
            | {"sha256": handed["sha256"], "penalty": handed["penalty_percent"]}
            for row in data["students"]
            for handed in row["notebooks"]
            for entry in handed["exercises"]
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not in order: {type(error).__name__} {error}") from None


def _why(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str:
    if a is None or b is None:
        return "new here" if a is None else "no longer here"
    reasons = []
    if a.get("override") != b.get("override") or ("override" in b and a["points"] != b["points"]):
        reasons.append("set by the instructor" if "override" in b else "no longer set by the instructor")
    if "marked_by_hand" in b and a["points"] != b["points"]:
        reasons.append("marked by hand")
    if a["sha256"] != b["sha256"]:
        reasons.append("another submission")
    if a["check_hash"] != b["check_hash"]:
        reasons.append("other checks")
    if a["penalty"] != b["penalty"]:
        reasons.append(f"lateness costs {points(b['penalty'])} percent instead of {points(a['penalty'])}")
    return ", ".join(reasons) or "graded again"


def changes_csv(changes: Iterable[Change]) -> str:
    return written(COLUMNS, (
        {"student_id": c.student, "notebook": c.notebook, "exercise": c.exercise, "points_before": c.before,
         "points_after": c.after, "change": c.change, "state_before": c.state_before, "state_after": c.state_after,
         "why": c.why}
        for c in changes
    ))  # fmt: skip


def changes_txt(changes: Sequence[Change]) -> str:
    """The same to read: a line a change, and how many there are."""
    if not changes:
        return "No mark changed.\n"
    students = len({change.student for change in changes})
    lines = [f"{counted(len(changes), 'mark')} changed, of {counted(students, 'student')}."]
    for c in changes:
        lines.append(f"{c.student}, {c.notebook}, {c.exercise}: {_told(c.before, c.state_before)} -> "
                     f"{_told(c.after, c.state_after)} ({c.change:+g}; {c.why})")  # fmt: skip
    return "\n".join(lines) + "\n"


def _told(value: float | None, state: str) -> str:
    return state if value is None else f"{points(value)} ({state})"
