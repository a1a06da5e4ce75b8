"""Points that an instructor sets in place of the checks', each with a reason that the student reads.

[[override]]                 or a CSV file with the columns student, exercise, points, reason, and notebook
student = "ada"              where an exercise of that name is in two notebooks
exercise = "ring-bytes"
points = 2
reason = "The statement could be read in another way."
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.grading.gradebook.errors import PolicyError
from labkit.grading.gradebook.policy import only, toml_of
from labkit.grading.gradebook.sheets import number, read
from labkit.grading.gradebook.text import clean

_NEEDS = ("student", "exercise", "points", "reason")
_KEYS = (*_NEEDS, "notebook")


@dataclass(frozen=True)
class Override:
    """Points set by a person. notebook: "" where the exercise is in one notebook only. where: file and place."""

    student: str
    exercise: str
    points: float
    reason: str
    notebook: str = ""
    where: str = ""


def read_overrides(path: Path) -> tuple[Override, ...]:
    """The overrides of a TOML or CSV file. Raises PolicyError: no reason, no number, two for the same exercise."""
    if path.suffix.lower() == ".toml":
        table = toml_of(path)
        only(table, ("override",), path.name)
        rows = table.get("override", [])
        if not isinstance(rows, list):
            raise PolicyError(f"{path.name}: write [[override]] with two brackets: each is one of a list")
        found = [_one(row, f"{path.name}, override {place}") for place, row in enumerate(rows, 1)]
    else:
        sheet = read(path, _NEEDS, _KEYS)
        found = [_one(row, f"{path.name}, line {line}") for line, row in sheet]
    seen: dict[tuple[str, str, str], str] = {}
    for override in found:
        key = (override.student, override.notebook, override.exercise)
        if key in seen:
            raise PolicyError(
                f"{override.where}: {override.student} has an override of {override.exercise} already, "
                f"in {seen[key].rpartition(', ')[2]}: leave one"
            )
        seen[key] = override.where
    return tuple(found)


def _one(row: Any, where: str) -> Override:
    if not isinstance(row, dict):
        raise PolicyError(f"{where} is {row!r}: it must be a table")
    only(row, _KEYS, where)
    for name in _NEEDS:
        if name not in row or not str(row[name]).strip():
            why = ": the student will read why" if name == "reason" else ""
            raise PolicyError(f"{where} has no {name}{why}. It needs {', '.join(_NEEDS)}")
        if name != "points" and not isinstance(row[name], str):
            raise PolicyError(f"{where}: {name} is {row[name]!r}; put it between quotes")
    if isinstance(row["points"], bool):
        raise PolicyError(f"{where}: points are {row['points']}, which is no number")
    value = number(str(row["points"]), where)
    texts = {name: clean(str(row.get(name, ""))).strip() for name in ("reason", "notebook", "exercise")}
    return Override(student=row["student"].strip(), points=value, where=where, **texts)
