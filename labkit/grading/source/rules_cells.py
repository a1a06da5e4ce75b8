"""The rules for one cell by itself: its metadata, nbgrader's metadata, its markers, its code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from labkit.grading.source.code import is_nothing, why_not_python
from labkit.grading.source.exercise import ROLES, SETUP, Cell, label, role, solution_lines
from labkit.grading.source.markers import HIDDEN_TESTS, SOLUTION, count, faults, without

TYPES = {"statement": "markdown", "hint": "markdown", "public": "code", "hidden": "code", "rubric": "markdown",
         SETUP: "code"}  # fmt: skip
FIELDS = {"schema_version": int, "grade": bool, "solution": bool, "locked": bool, "task": bool, "grade_id": str}
GRADE_ID = re.compile(r"[A-Za-z0-9_-]+")


def cell_faults(cell: Cell) -> Iterator[str]:
    """What is wrong with this cell, whatever stands around it."""
    kind = role(cell)
    for markers, allowed in ((SOLUTION, ("answer",)), (HIDDEN_TESTS, ("public", "hidden"))):
        mentioned = any(markers.mentioned(line) for line in cell.source.split("\n"))
        if mentioned and kind not in allowed:
            yield f"it has a marker of {markers.words}, which belongs into a cell of the role {' or '.join(allowed)}"
        else:
            yield from faults(cell.source, markers)
    if "labkit" in cell.metadata and not kind:
        yield f"its labkit metadata has no role: choose one of {', '.join((SETUP, *ROLES))}"
    if not kind:
        if "nbgrader" in cell.metadata:
            yield "it has nbgrader metadata but no role: add labkit metadata, or take nbgrader's away"
        return
    if kind not in (SETUP, *ROLES):
        yield f"its role is {kind!r}: choose one of {', '.join((SETUP, *ROLES))}"
        return
    if TYPES.get(kind, cell.cell_type) != cell.cell_type or cell.cell_type == "raw":
        yield f"it is a {cell.cell_type} cell; a cell of the role {kind} is {TYPES.get(kind, 'code or markdown')}"
    if (label(cell).get("exercise") or "") == "" and kind != SETUP:
        yield "its labkit metadata names no exercise"
    if kind == SETUP and label(cell).get("exercise", "") != "":
        yield 'the setup cell belongs to no exercise: give it the exercise ""'
    if kind != SETUP and not without(cell.source, SOLUTION).strip() and kind != "answer":
        yield f"this {kind} is empty" + ("; a hint is a step that helps" if kind == "hint" else "")
    if cell.cell_type == "code" and (why := why_not_python(cell.source)):
        yield f"it is no plain Python: {why}; the graders run it outside IPython"
    if kind == "answer":
        yield from _answer_faults(cell)
    if kind in ("public", "hidden") and "nbval-check-output" in cell.metadata.get("tags", []):
        yield "it is tagged nbval-check-output, but a right answer shows another mark than the stub: drop the tag"
    if kind == "hidden" and HIDDEN_TESTS.is_line(cell.source.strip().split("\n")[0], "BEGIN") is False:
        yield "nbgrader hides a cell only between markers: begin it with ### BEGIN HIDDEN TESTS"
    if kind == "hidden" and without(cell.source, HIDDEN_TESTS).strip():
        yield "lines outside its markers would be seen in nbgrader: end the cell with ### END HIDDEN TESTS"
    yield from nbgrader_faults(cell.metadata.get("nbgrader"), kind, cell.cell_type)


def _answer_faults(cell: Cell) -> Iterator[str]:
    if not count(cell.source, SOLUTION):
        yield "this answer has no solution: put it between ### BEGIN SOLUTION and ### END SOLUTION"
    elif cell.cell_type == "code" and is_nothing(solution_lines(cell)):
        yield "there is nothing but comments between its solution markers"
    elif not "".join(solution_lines(cell)).strip():
        yield "there is nothing between its solution markers"


def nbgrader_faults(given: Any, kind: str, cell_type: str) -> Iterator[str]:
    """What nbgrader would refuse (metadata schema 3), or would grade otherwise than this cell's role says."""
    if not isinstance(given, dict):
        yield "it has no nbgrader metadata" if given is None else "its nbgrader metadata is no dictionary"
        return
    for key, kind_of in FIELDS.items():
        value = given.get(key)
        if key not in given:
            yield f"its nbgrader metadata lacks {key}"
        elif not isinstance(value, kind_of) or (kind_of is int and isinstance(value, bool)):
            yield f"nbgrader's {key} is {value!r}, which is no {kind_of.__name__}"
    for key in given:
        if key not in (*FIELDS, "points"):
            yield f"nbgrader's schema 3 knows no {key!r}: put it into labkit's metadata"
    if given.get("schema_version", 3) != 3:
        yield f"nbgrader's schema_version is {given['schema_version']!r}: it must be 3"
    if isinstance(given.get("grade_id"), str) and not GRADE_ID.fullmatch(given["grade_id"]):
        yield f"nbgrader's grade_id {given['grade_id']!r} may hold only letters, digits, _ and -, at least one"
    graded = kind in ("public", "hidden") or (kind == "answer" and cell_type == "markdown")
    want = {"grade": graded, "solution": kind == "answer", "locked": kind != "answer", "task": False}
    for key, value in want.items():
        if isinstance(given.get(key), bool) and given[key] is not value:
            yield f"nbgrader's {key} is {given[key]}: for a {kind} cell it must be {value}"
    points = given.get("points")
    if graded and (isinstance(points, bool) or not isinstance(points, int | float) or points < 0):
        yield f"nbgrader's points are {points!r}: a {kind} cell needs a number from 0"
    if not graded and "points" in given:
        yield "nbgrader's points belong to check cells only: remove them"
