"""Cells of a source notebook with the metadata that labkit and nbgrader want, for those who write one from Python.

    notebook = compose(setup("import ..."), *exercise("ring-bytes", statement(...), hint(...), answer(...), ...))

The points of check cells are read from their checks; ids follow from the exercise and the role.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import nbformat

from labkit.grading.source.code import checks_in
from labkit.grading.source.exercise import SETUP, Cell, Notebook
from labkit.grading.source.release import KERNEL


def compose(*cells: Cell) -> Notebook:
    """A notebook of these cells, and of plain ones made by nbformat, in this order. It is not checked here."""
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=list(cells), metadata=metadata)


def setup(source: str) -> Cell:
    """The setup cell: imports, and `exercises = labkit.grading.open_exercises(...)`."""
    return _cell("code", source, {"exercise": "", "role": SETUP}, SETUP)


def statement(
    text: str, *, kind: str, points: float, core: bool, objective: str, section: str, level: int
) -> dict[str, Any]:
    told = {"kind": kind, "points": points, "core": core, "objective": objective, "section": section, "level": level}
    return {"role": "statement", "source": text, **told}


def hint(text: str) -> dict[str, Any]:
    """The next step of the hints."""
    return {"role": "hint", "source": text}


def answer(source: str, stub: str = "", stub_code: str = "") -> dict[str, Any]:
    """An answer cell, with its solution between the markers. stub: what to do, said to a student; of a program."""
    told = {"stub": stub, "stub_code": stub_code}
    return {"role": "answer", "source": source, **{key: value for key, value in told.items() if value}}


def essay(model: str, points: float) -> dict[str, Any]:
    """The Markdown answer of an explanation, marked by hand. model: an answer with full marks, for the marker."""
    fence = "<!-- ### {} SOLUTION -->"
    source = f"{fence.format('BEGIN')}\n{model}\n{fence.format('END')}"
    return {"role": "answer", "source": source, "cell_type": "markdown", "essay_points": points}


def public(source: str) -> dict[str, Any]:
    return {"role": "public", "source": source}


def hidden(source: str) -> dict[str, Any]:
    """A hidden check cell; the markers that nbgrader needs are put around it."""
    return {"role": "hidden", "source": f"### BEGIN HIDDEN TESTS\n{source.strip()}\n### END HIDDEN TESTS"}


def rubric(text: str) -> dict[str, Any]:
    return {"role": "rubric", "source": text}


def exercise(id: str, *parts: dict[str, Any]) -> list[Cell]:
    """The cells of one exercise, from the parts that the functions above make."""
    times: Counter[str] = Counter()
    cells = []
    for part in parts:
        told = dict(part)
        source, kind = str(told.pop("source")), str(told["role"])
        cell_type = told.pop("cell_type", "code" if kind in ("answer", "public", "hidden") else "markdown")
        points = told.pop("essay_points", None)
        if kind in ("public", "hidden"):
            points = sum(check.points or 0 for check in checks_in(source))
        times[kind] += 1
        name = f"{id}-{kind}" + (f"-{times[kind]}" if kind == "hint" or times[kind] > 1 else "")
        cells.append(_cell(cell_type, source, {"exercise": id, **told}, name, points))
    return cells


def _cell(cell_type: str, source: str, told: dict[str, Any], name: str, points: float | None = None) -> Cell:
    solution = told["role"] == "answer"
    nbgrader = {
        "schema_version": 3, "grade": points is not None, "solution": solution, "locked": not solution, "task": False,
        "grade_id": name,
    }  # fmt: skip
    if points is not None:
        nbgrader["points"] = points
    make = nbformat.v4.new_code_cell if cell_type == "code" else nbformat.v4.new_markdown_cell
    return make(source, id=name, metadata={"labkit": told, "nbgrader": nbgrader})
