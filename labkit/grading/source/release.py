"""From an instructor's notebook to a student's.

Solutions are replaced by stubs, hidden cells, rubrics and hidden-test regions are gone, hints are folded, and nothing
of a run is left: outputs, counts, times. Ids stay, so that a submission can be matched cell by cell. Pure: the same
notebook always gives the same notebook, and one that was released comes back as it was, but for outputs.
"""

from __future__ import annotations

import copy
from typing import Any

import nbformat

from labkit.grading.source.exercise import PRIVATE, Cell, Exercise, Notebook, label, role
from labkit.grading.source.grouping import exercises_in
from labkit.grading.source.markers import HIDDEN_TESTS, without
from labkit.grading.source.problems import SourceError
from labkit.grading.source.rules import problems_of
from labkit.grading.source.stub import stubbed

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
# What a student's cell may carry. Everything else of a source cell is the author's own, or a window's.
LABELS = ("exercise", "role", "kind", "points", "core", "objective", "section", "level", "step")
METADATA = ("tags", "nbgrader", "labkit", "slideshow", "jupyter")


def release(notebook: Notebook) -> Notebook:
    """A new notebook: what a student receives, without outputs. The argument is not changed.

    Cells that belong to no exercise stay. Raises SourceError for a source that would not be safe to release: its
    markers, roles, ids or points are not in order. References to the course file are for `read_source` to check.
    """
    if not is_released(notebook):
        _refuse_broken(notebook)
    exercises = exercises_in(notebook)
    by_id = {exercise.id: exercise for exercise in exercises}
    steps = {cell.id: step for exercise in exercises for step, cell in enumerate(exercise.by_role("hint"), 1)}
    cells = [_released(cell, by_id, steps) for cell in notebook.cells if role(cell) not in PRIVATE]
    metadata = {"kernelspec": KERNEL, "labkit": {"released": True}, "language_info": {"name": "python"}}
    return nbformat.from_dict({
        "cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": notebook.nbformat_minor,
    })  # fmt: skip


def is_released(notebook: Notebook) -> bool:
    """Whether a notebook says that it was made by `release`, and holds no marker that would deny it."""
    told = notebook.metadata.get("labkit", {}).get("released") is True
    return told and not any("### BEGIN " in cell.source or role(cell) in PRIVATE for cell in notebook.cells)


def _refuse_broken(notebook: Notebook) -> None:
    """Everything that the rules refuse but references, which need the chapter's name."""
    own = copy.deepcopy(notebook)
    own.metadata.pop("labkit", None)
    objectives = {exercise.objective: "" for exercise in exercises_in(own)}
    if found := problems_of(own, objectives, None):
        raise SourceError("the source", found)


def _released(cell: Cell, exercises: dict[str, Exercise], steps: dict[str, int]) -> dict[str, Any]:
    kind, told = role(cell), label(cell)
    source = cell.source
    if kind == "answer":
        source = stubbed(cell, exercises[told["exercise"]])
    elif kind == "public":
        source = without(source, HIDDEN_TESTS)
    elif kind == "hint":
        source = folded(source, steps[cell.id])
    metadata = {key: copy.deepcopy(cell.metadata[key]) for key in METADATA if key in cell.metadata}
    if kind:
        metadata["labkit"] = {key: told[key] for key in LABELS if key in told}
        metadata |= {"deletable": False} | ({} if kind == "answer" else {"editable": False})
    new: dict[str, Any] = {"cell_type": cell.cell_type, "id": cell.id, "metadata": metadata, "source": source}
    shown = {name: data for name, data in cell.get("attachments", {}).items() if f"attachment:{name}" in source}
    if shown:
        new["attachments"] = copy.deepcopy(shown)
    if cell.cell_type == "code":
        new |= {"execution_count": None, "outputs": []}
    return new


def folded(text: str, step: int) -> str:
    """A hint behind a line to click on; one that is folded already stays as it is."""
    if text.startswith("<details>"):
        return text
    return f"<details><summary>Hint {step}</summary>\n\n{text.strip()}\n\n</details>"
