"""Makes the gradebook: results, and what people decided about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from labkit.grading.gradebook.names import Names
from labkit.grading.gradebook.options import GradebookOptions
from labkit.grading.gradebook.overrides import Override
from labkit.grading.gradebook.rows import MISSING, UNGRADED, Book, Column, Entry, Handed, Row
from labkit.grading.gradebook.rubric import HandMark, Place, Response, merged
from labkit.grading.gradebook.text import clean, listed, points
from labkit.grading.gradebook.weights import course_grade, weights_of
from labkit.grading.grader.one import is_trouble
from labkit.grading.grader.results import TO_MARK, Graded, Result

# Columns that grades.csv has of its own: an exercise of such a name goes with its notebook's.
RESERVED = ("student_id", "score", "max_score", "to_mark", "late_penalty", "course_grade", "late", "notes")


def make_book(results: Sequence[Result], options: GradebookOptions, names: Names) -> Book:
    """All results with what was decided about them. A decision that fits nothing is a problem, and never an error."""
    results = sorted(results, key=lambda result: (result.notebook, result.student))
    by_place = {(result.student, result.notebook): result for result in results}
    columns = _columns(results)
    notebooks = tuple(dict.fromkeys(column.notebook for column in columns))
    students = sorted({*(result.student for result in results), *options.roster})
    overrides, problems = _overrides(options.overrides, students, columns, names)
    responses = tuple(_responses(results))
    marks, more = merged(responses, options.rubric)
    weights = weights_of(notebooks)
    rows = []
    for student in students:
        handed = tuple(
            _handed(student, notebook, by_place.get((student, notebook)), columns, overrides, marks, options)
            for notebook in notebooks
        )
        shares = {one.notebook: one.score / one.max_score if one.max_score else None for one in handed}
        rows.append(Row(student, names.shown(student), handed, course_grade(shares, weights)))
    strangers = sorted({*options.accommodations} - {*students})
    problems += more + ([f"accommodations for {listed(strangers)}: no such student here"] if strangers else [])
    return Book(columns, tuple(sorted(rows, key=lambda row: row.name)), weights, responses, marks, tuple(problems))


def _columns(results: Sequence[Result]) -> tuple[Column, ...]:
    found: dict[tuple[str, str], Graded] = {}
    for result in results:
        for graded in result.exercises:
            found.setdefault((result.notebook, graded.exercise), graded)
    ids = [*RESERVED, *(exercise for _, exercise in found)]
    return tuple(
        Column(notebook, id, graded.title, graded.kind, graded.of, id if ids.count(id) == 1 else f"{notebook}/{id}")
        for (notebook, id), graded in found.items()
    )


def _overrides(
    overrides: Sequence[Override], students: Sequence[str], columns: Sequence[Column], names: Names
) -> tuple[dict[Place, Override], list[str]]:
    found: dict[Place, Override] = {}
    problems = []
    for override in overrides:
        student = names.real(override.student)
        there = [c for c in columns if c.exercise == override.exercise and override.notebook in ("", c.notebook)]
        if student not in students:
            problems.append(f"{override.where}: there is no student {clean(override.student)!r}")
        elif not there:
            problems.append(f"{override.where}: there is no exercise {override.exercise!r}")
        elif len(there) > 1:
            places = " and in ".join(column.notebook for column in there)
            problems.append(f"{override.where}: {override.exercise!r} is in {places}: say in which")
        elif override.points > there[0].of:
            problems.append(f"{override.where}: {points(override.points)} points for {override.exercise}, which has "
                            f"{points(there[0].of)}")  # fmt: skip
        else:
            found[student, there[0].notebook, override.exercise] = override
    return found, problems


def _responses(results: Sequence[Result]) -> list[Response]:
    return [
        Response(
            (result.student, result.notebook, graded.exercise), graded.title, graded.of, graded.free_response or ""
        )
        for result in results
        for graded in result.exercises
        if graded.state == TO_MARK
    ]


def _handed(
    student: str, notebook: str, result: Result | None, columns: Sequence[Column],
    overrides: Mapping[Place, Override], marks: Mapping[Place, HandMark], options: GradebookOptions,
) -> Handed:  # fmt: skip
    entries = []
    absent = Handed(notebook, result, ()).absent
    for column in columns:
        if column.notebook == notebook:
            place = (student, notebook, column.exercise)
            graded = result.exercise(column.exercise) if result is not None else None
            entries.append(_entry(column, graded, absent, overrides.get(place), marks.get(place)))
    late = options.lateness(student, notebook, result.submission.received) if result is not None else None
    percent = options.late.percent(late) if late is not None else 0.0
    return Handed(notebook, result, tuple(entries), late, percent)


def _entry(
    column: Column, graded: Graded | None, absent: bool, override: Override | None, hand: HandMark | None
) -> Entry:
    if graded is None or absent:
        entry = Entry(column, MISSING, 0.0, graded.of if graded is not None else column.of)
    elif is_trouble(graded):
        entry = Entry(column, UNGRADED, 0.0, graded.of, graded)
    else:
        entry = Entry(column, graded.state, 0.0 if graded.state == TO_MARK else graded.points, graded.of, graded)
    if hand is not None and hand.points is not None:
        entry = replace(entry, points=hand.points, state=_state(hand.points, entry.of), hand=hand)
    if override is not None:
        entry = replace(entry, points=override.points, state=_state(override.points, entry.of), override=override)
    return entry


def _state(earned: float, of: float) -> str:
    return "right" if earned >= of else "partly" if earned > 0 else "wrong"
