"""The rules for a source notebook: everything that is wrong with one, in the order of its cells."""

from __future__ import annotations

import copy
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import nbformat

from labkit.course.errors import did_you_mean
from labkit.grading.source.code import defined
from labkit.grading.source.exercise import ROLES, SETUP, Cell, Exercise, Notebook, label, role
from labkit.grading.source.grouping import exercises_in
from labkit.grading.source.problems import Problem
from labkit.grading.source.rules_cells import cell_faults
from labkit.grading.source.rules_exercise import exercise_faults

ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def problems_of(notebook: Notebook, objectives: Mapping[str, str], sections: Collection[str] | None) -> list[Problem]:
    """All problems of a source notebook, those of the whole before those of a cell.

    objectives: text by id, of this chapter. sections: anchors of the chapter's headings, None when not to be looked at.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cells with the same id: they are named below
            nbformat.validate(copy.deepcopy(notebook), relax_add_props=True)  # a copy: it mends ids in place
    except (nbformat.ValidationError, AttributeError, KeyError, TypeError) as error:
        return [Problem("", "", 0, f"it is not valid as a notebook: {(str(error) or 'no cells').splitlines()[0]}")]
    old = (notebook.nbformat, notebook.nbformat_minor) < (4, 5)
    if old or any("id" not in cell for cell in notebook.cells):
        return [Problem("", "", 0, "its format has no cell ids: open it and save it in JupyterLab 4")]
    numbers = {id(cell): number for number, cell in enumerate(notebook.cells, 1)}

    def problem(cell: Cell | None, text: str, exercise: str = "") -> Problem:
        if cell is None:
            return Problem(exercise, "", 0, text)
        return Problem(exercise or str(label(cell).get("exercise", "")), cell.id, numbers[id(cell)], text)

    found = [problem(cell, text) for cell, text in _whole(notebook)]
    for cell in notebook.cells:
        found += [problem(cell, text) for text in cell_faults(cell)]
    exercises = exercises_in(notebook)
    for exercise in exercises:
        found += [problem(cell, text, exercise.id) for cell, text in exercise_faults(exercise)]
        found += [problem(*fault) for fault in _references(exercise, objectives, sections)]
    found += [problem(cell, text, name) for cell, text, name in _shared_names(exercises)]
    return sorted(dict.fromkeys(found), key=lambda one: one.number)


def _whole(notebook: Notebook) -> Iterator[tuple[Cell | None, str]]:
    """What is wrong with the order of the cells and with their ids."""
    if notebook.metadata.get("labkit", {}).get("released"):
        yield None, "it is a released notebook: its source lies in solutions/"
    setups = [cell for cell in notebook.cells if role(cell) == SETUP]
    if not setups:
        yield None, 'there is no setup cell: give one the role "setup" and the exercise ""'
    for cell in setups[1:]:
        yield cell, f"it is a second setup cell: put its lines into {setups[0].id}"
    cell_ids, grade_ids = [cell.id for cell in notebook.cells], [_grade_id(cell) for cell in notebook.cells]
    for what, ids in (("cell id", cell_ids), ("grade_id", grade_ids)):
        for value, times in Counter(ids).items():
            if times > 1 and value:
                last = [cell for cell, own in zip(notebook.cells, ids, strict=True) if own == value][-1]
                yield last, f"{times} cells have the {what} {value!r}: copies keep it, so give this one its own"
    seen: list[str] = []
    for cell in notebook.cells:
        name, kind = str(label(cell).get("exercise", "")), role(cell)
        if kind == SETUP and seen:
            yield cell, "the setup cell must come before all exercises"
        if kind in ROLES and name and (not seen or seen[-1] != name):
            if name in seen:
                yield cell, "the exercise is interrupted by cells of others, or its id is used twice"
            seen.append(name)
    if not seen:
        yield None, 'there is no exercise: its cells carry "labkit": {"exercise": ..., "role": ...}'


def _grade_id(cell: Cell) -> str:
    value = cell.metadata.get("nbgrader")
    return str(value.get("grade_id", "")) if isinstance(value, dict) else ""


def _references(
    exercise: Exercise, objectives: Mapping[str, str], sections: Collection[str] | None
) -> Iterator[tuple[Any, str, str]]:
    place = next(iter(exercise.by_role("statement")), exercise.cells[0])
    if not ID.fullmatch(exercise.id):
        yield place, f"the id {exercise.id!r} must be of small letters, digits and single hyphens", exercise.id
    if exercise.objective not in objectives:
        known = ", ".join(objectives) or "no objectives: is the notebook named as its chapter?"
        near = did_you_mean(exercise.objective, objectives)
        yield place, f"the chapter has no objective {exercise.objective!r}{near}; it has {known}", exercise.id
    if sections is not None and exercise.section not in sections:
        near = did_you_mean(exercise.section, sections)
        yield place, f"the chapter has no section {exercise.section!r}{near}; write a heading with hyphens", exercise.id


def _shared_names(exercises: list[Exercise]) -> Iterator[tuple[Any, str, str]]:
    """A name that two exercises define: the check of the first, run again, would judge the answer to the second."""
    owner: dict[str, str] = {}
    for exercise in exercises:
        names = {name: cell for cell in exercise.answers if cell.cell_type == "code" for name in defined(cell.source)}
        for name, cell in names.items():
            if name in owner and name in (*exercise.names, *_asked(exercises, owner[name])):
                text = f"exercise {owner[name]!r} also defines {name!r}, and a check asks for it: take another name"
                yield cell, text, exercise.id
            owner.setdefault(name, exercise.id)


def _asked(exercises: list[Exercise], id: str) -> tuple[str, ...]:
    return next(exercise.names for exercise in exercises if exercise.id == id)
