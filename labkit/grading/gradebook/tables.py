"""grades.csv: a row a student, for a gradebook of any learning management system.

`student_id`, a column for each exercise (empty while it waits to be marked), `score` and `max_score` of what is
marked, `to_mark` (points that wait), `late_penalty`, `course_grade` (percent, by the weights of the course file),
`late`, `notes`.
"""

from __future__ import annotations

from labkit.grading.gradebook.rows import Book, Row
from labkit.grading.gradebook.sheets import written


def grades_csv(book: Book) -> str:
    labels = [column.label for column in book.columns]
    more = ["score", "max_score", "to_mark", "late_penalty", "course_grade", "late", "notes"]
    return written(["student_id", *labels, *more], (_row(row) for row in sorted(book.rows, key=lambda r: r.student)))


def _row(row: Row) -> dict[str, object]:
    return {
        "student_id": row.student,
        **{entry.column.label: None if entry.waits else entry.points for entry in row.entries},
        "score": row.score, "max_score": row.max_score, "to_mark": row.to_mark, "late_penalty": row.penalty,
        "course_grade": row.grade, "late": "late" if any(one.late for one in row.handed) else "",
        "notes": " ".join(row.notes),
    }  # fmt: skip
