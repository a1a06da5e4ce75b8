"""What a source notebook consists of: exercises, each a run of cells, and the checks that its cells define."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.grading.source.code import Check, checks_in, names_asked
from labkit.grading.source.markers import HIDDEN_TESTS, SOLUTION, inside, without

Notebook = Any  # nbformat.NotebookNode, which carries no types
Cell = Any

KINDS = ("derivation", "program", "explanation")
ROLES = ("statement", "hint", "answer", "public", "hidden", "rubric")  # in the order of their cells
PRIVATE = ("hidden", "rubric")  # cells that a student does not receive: a rubric says what a good answer says
SETUP = "setup"


def label(cell: Cell) -> dict[str, Any]:
    """The `labkit` metadata of a cell; empty where there is none, or none that can be read."""
    value = cell.get("metadata", {}).get("labkit")
    return dict(value) if isinstance(value, dict) else {}


def role(cell: Cell) -> str:
    """The role of a cell, "" for one that belongs to no exercise: a heading, an introduction."""
    value = label(cell).get("role", "")
    return value if isinstance(value, str) else ""


@dataclass(frozen=True)
class Exercise:
    """One exercise, in the instructor's form. Cells are nodes of the notebook, with their ids.

    points: of all checks, the hidden ones included. core: whether it is on every reader's path. objective: id in the
    course file. section: anchor of a heading in the chapter. level: 1 (easy) to 3.
    """

    id: str
    title: str
    kind: str
    points: float
    core: bool
    objective: str
    section: str
    level: int
    cells: tuple[Cell, ...]

    def by_role(self, *wanted: str) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if role(cell) in wanted)

    @property
    def answers(self) -> tuple[Cell, ...]:
        """The cells that a student fills in. Their ids are the same in the released notebook and in submissions."""
        return self.by_role("answer")

    @property
    def check_cells(self) -> tuple[Cell, ...]:
        """The cells that define checks, public ones before hidden ones."""
        return self.by_role("public", "hidden")

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, in the order in which they are defined."""
        return tuple(check for cell in self.check_cells for check in checks_of(cell))

    @property
    def names(self) -> tuple[str, ...]:
        """What the checks ask the student's work for: functions to run, values to look at."""
        return tuple(dict.fromkeys(name for cell in self.check_cells for name in names_asked(cell.source)))


def checks_of(cell: Cell) -> list[Check]:
    """The checks that a cell defines; hidden are those of a hidden cell and those between hidden-test markers."""
    everything = checks_in(cell.source)
    if role(cell) == "hidden":
        return [check.but_hidden() for check in everything]
    shown = {check.name for check in checks_in(without(cell.source, HIDDEN_TESTS))}
    return [check if check.name in shown else check.but_hidden() for check in everything]


@dataclass(frozen=True)
class Source:
    """A source notebook that was found in order: its name, such as "03_collectives", and its exercises."""

    name: str
    notebook: Notebook
    setup: Cell
    exercises: tuple[Exercise, ...]

    @property
    def points(self) -> float:
        return sum(exercise.points for exercise in self.exercises)

    def exercise(self, id: str) -> Exercise:
        """The exercise with that id. Raises KeyError, naming those there are."""
        for exercise in self.exercises:
            if exercise.id == id:
                return exercise
        raise KeyError(f"{self.name} has no exercise {id!r}; it has {', '.join(self.ids)}")

    @property
    def ids(self) -> Sequence[str]:
        return [exercise.id for exercise in self.exercises]


def solution_lines(cell: Cell) -> list[str]:
    """The lines between the solution markers of an answer cell."""
    return inside(cell.source, SOLUTION)
