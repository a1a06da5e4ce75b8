"""grades.json: the whole gradebook for programs, the same text for the same marks. The next run compares with it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from labkit.grading.gradebook.rows import Book, Entry, Handed, Row
from labkit.grading.gradebook.text import clean

SCHEMA = 1


def grades_json(book: Book) -> str:
    data = {
        "schema": SCHEMA,
        "columns": [
            asdict(column) for column in book.columns
        ],
        "weights": [
            {"notebook": w.notebook, "percent": w.course, "share_percent": w.share, "assistant_minutes": w.assistant}
            for w in book.weights
        ],
        "graders": graders(book),
        "students": [_row(row) for row in sorted(book.rows, key=lambda row: row.student)],
        "problems": list(book.problems),
    }  # fmt: skip
    return json.dumps(_clean(data), indent=1, ensure_ascii=False) + "\n"


def graders(book: Book) -> list[dict[str, str]]:
    """What graded: versions, seeds by their ids, tiers; each combination once."""
    found = {
        (i.labkit, i.tier, i.seed_id, i.overlay_sha256)
        for row in book.rows
        for one in row.handed
        if one.result is not None
        for i in [one.result.grader]
    }
    return [dict(zip(("labkit", "tier", "seed_id", "overlay_sha256"), one, strict=True)) for one in sorted(found)]


def _row(row: Row) -> dict[str, Any]:
    return {
        "student_id": row.student, "score": row.score, "max_score": row.max_score, "to_mark": row.to_mark,
        "late_penalty": row.penalty, "course_grade": row.grade, "notes": list(row.notes),
        "notebooks": [_handed(handed) for handed in row.handed],
    }  # fmt: skip


def _handed(handed: Handed) -> dict[str, Any]:
    submission = handed.result.submission if handed.result is not None else None
    return {
        "notebook": handed.notebook, "sha256": submission.sha256 if submission else "",
        "received": submission.received if submission else None,
        "late_seconds": handed.late.total_seconds() if handed.late is not None else 0,
        "penalty_percent": handed.percent, "penalty": handed.penalty, "score": handed.score,
        "max_score": handed.max_score,
        "exercises": [_entry(entry) for entry in handed.entries],
    }  # fmt: skip


def _entry(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "exercise": entry.column.exercise, "state": entry.state, "points": None if entry.waits else entry.points,
        "of": entry.of, "check_hash": entry.graded.check_hash if entry.graded else "",
    }  # fmt: skip
    if entry.override is not None:
        row["override"] = entry.override.reason
    if entry.hand is not None:
        row["marked_by_hand"] = entry.hand.comment
    return row


def _clean(value: Any) -> Any:
    """The value with every text in it clean, and numbers without the dust of adding them up."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {clean(key): _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list) else value
