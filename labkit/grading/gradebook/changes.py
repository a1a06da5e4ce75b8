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
LATE = "(lateness)"  # in the place of an exercise: points lost by it

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
        if a is None or b is None or (a["points"], a["state"]) != (b["points"], b["state"]):
            found.append(Change(
                *key, a["points"] if a else None, b["points"] if b else None, a["state"] if a else GONE,
                b["state"] if b else GONE, _why(a, b) if key[2] != LATE else "deadline, time of receipt, or points",
            ))  # fmt: skip
    return found


def _entries(text: str) -> dict[Key, dict[str, Any]]:
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}")
        found: dict[Key, dict[str, Any]] = {}
        for row in data["students"]:
            for handed in row["notebooks"]:
                where = row["student_id"], handed["notebook"]
                for entry in handed["exercises"]:
                    found[*where, entry["exercise"]] = entry | {"sha256": handed["sha256"]}
                if handed["exercises"]:
                    found[*where, LATE] = _penalty(handed)
        return found
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not in order: {type(error).__name__} {error}") from None


def _penalty(handed: dict[str, Any]) -> dict[str, Any]:
    """What lateness takes, as an entry of its own, so that all changes together are the change of the score."""
    state = f"{points(handed['penalty_percent'])} percent"
    return {"points": -handed["penalty"] or 0.0, "state": state, "sha256": handed["sha256"], "check_hash": ""}


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
    return ", ".join(reasons) or "graded again"


def changes_csv(changes: Iterable[Change]) -> str:
    return written(COLUMNS, (
        {"student_id": c.student, "notebook": c.notebook, "exercise": c.exercise, "points_before": c.before,
         "points_after": c.after, "change": c.change, "state_before": c.state_before, "state_after": c.state_after,
         "why": c.why}
        for c in changes
    ))  # fmt: skip


def changes_txt(changes: Sequence[Change]) -> str:
    """The same to read: a line for each mark that changed, and how many are new."""
    changed = [change for change in changes if change.state_before != GONE]
    new = len(changes) - len(changed)
    more = f" {counted(new, 'mark')} of what was not there before." if new else ""
    if not changed:
        return f"No mark changed.{more}\n"
    students = len({change.student for change in changed})
    lines = [f"{counted(len(changed), 'mark')} changed, of {counted(students, 'student')}.{more}"]
    for c in changed:
        lines.append(f"{c.student}, {c.notebook}, {c.exercise}: {_told(c.before, c.state_before)} -> "
                     f"{_told(c.after, c.state_after)} ({c.change:+g}; {c.why})")  # fmt: skip
    return "\n".join(lines) + "\n"


def _told(value: float | None, state: str) -> str:
    return state if value is None else f"{points(value)} ({state})"
