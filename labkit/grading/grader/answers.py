"""Which cells of a submission are answers. Nothing else in it is looked at: no statement, no check, no other cell.

An answer cell is known by the id of the pristine notebook, or by nbgrader's or labkit's metadata; where nothing of
these is left, by the names that it defines, or by its place among the released cells. Of several the last one is
taken that is not the stub. Each departure is a sentence in `problems`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.grading.grader.reading import LONGEST_CELL, Cell
from labkit.grading.source.code import defined
from labkit.grading.source.exercise import PRIVATE, Cell as SourceCell, Exercise, Source, label, role
from labkit.grading.source.stub import stubbed


@dataclass(frozen=True)
class Answer:
    """What was handed in for one answer cell. source: None where there is none. stub: it is still the stub."""

    exercise: str
    cell: str
    type: str
    source: str | None
    stub: bool


def take_answers(source: Source, cells: Sequence[Cell], problems: list[str]) -> dict[str, list[Answer]]:
    """The answers of a submission by exercise, in the order of the pristine notebook. Never raises."""
    return _Taking(source, cells, problems).all()


class _Taking:
    def __init__(self, source: Source, cells: Sequence[Cell], problems: list[str]):
        self.source, self.cells, self.problems = source, list(cells), problems
        self.order = [cell.id for cell in source.notebook.cells if role(cell) not in PRIVATE]
        self.answers = {cell.id: (exercise, cell) for exercise in source.exercises for cell in exercise.answers}
        self.claims = [self._claim(cell) for cell in self.cells]

    def all(self) -> dict[str, list[Answer]]:
        return {e.id: [self._take(e, cell) for cell in e.answers] for e in self.source.exercises}

    def _claim(self, cell: Cell) -> str | None:
        """The answer cell that this one is, by id, then by metadata; "" for another released cell, None if unknown."""
        if cell.id in self.answers:
            return cell.id
        if cell.id in self.order:
            return ""
        nbgrader, labkit = cell.metadata.get("nbgrader"), cell.metadata.get("labkit")
        grade = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
        for id, (exercise, own) in self.answers.items():
            if isinstance(grade, str) and grade == own.metadata.get("nbgrader", {}).get("grade_id", id):
                return id
            if isinstance(labkit, dict) and labkit.get("role") == "answer" and len(exercise.answers) == 1:
                if labkit.get("exercise") == exercise.id:
                    return id
        released = isinstance(labkit, dict) and labkit.get("role") in ("statement", "hint", "public", "rubric")
        return "" if released else None

    def _take(self, exercise: Exercise, own: SourceCell) -> Answer:
        stub = stubbed(own, exercise)
        name = f"{_title(exercise)}: "
        claimed = [i for i, claim in enumerate(self.claims) if claim == own.id]
        found = [i for i in claimed if self.cells[i].type == own.cell_type]
        if claimed and not found:
            kind = self.cells[claimed[0]].type or "unknown"
            self.problems.append(f"{name}its answer cell has become a cell of type {kind[:20]}, and is not read.")
        if not claimed:
            found = self._by_names(exercise, own) or self._by_place(own)
            if found:
                self.problems.append(f"{name}its answer cell lost its id; cell {found[-1] + 1} was taken in its place.")
        long = [i for i in found if len(self.cells[i].source) > LONGEST_CELL]
        if long:
            self.problems.append(f"{name}a cell of more than {LONGEST_CELL:,} characters was left out.")
            found = [i for i in found if i not in long]
        if not found:
            if not claimed and not long:
                self.problems.append(f"{name}its answer cell is not in the notebook; it counts as not attempted.")
            return Answer(exercise.id, own.id, own.cell_type, None, True)
        written = [i for i in found if not _same(self.cells[i].source, stub, own.cell_type)]
        taken = (written or found)[-1]
        if len(found) > 1:
            which = "the last one that is not the stub" if written else "the last one"
            places = ", ".join(str(i + 1) for i in found)
            self.problems.append(
                f"{name}its answer cell is there {len(found)} times (cells {places}); {which} was taken, {taken + 1}."
            )
        if not written:
            self._say_where_else(exercise, own, taken)
        return Answer(exercise.id, own.id, own.cell_type, self.cells[taken].source, not written)

    def _by_names(self, exercise: Exercise, own: SourceCell) -> list[int]:
        """Cells that nobody knows and that define what this answer is asked for."""
        wanted = set(defined(own.source)) & set(exercise.names)
        return [i for i in self._unknown(own.cell_type) if wanted & _defined(self.cells[i].source)]

    def _by_place(self, own: SourceCell) -> list[int]:
        """Cells that nobody knows, between the released cells around the answer."""
        at, places = self.order.index(own.id), {cell.id: i for i, cell in enumerate(self.cells)}
        before = next((places[id] for id in reversed(self.order[:at]) if id in places), None)
        last = len(self.cells) if at + 1 == len(self.order) else None
        after = next((places[id] for id in self.order[at + 1 :] if id in places), last)
        if before is None or after is None:
            return []
        other = set(exercise_names(self.source)) - set(defined(own.source))
        between = [i for i in self._unknown(own.cell_type) if before < i < after and self.cells[i].source.strip()]
        return [i for i in between if not other & _defined(self.cells[i].source)]

    def _unknown(self, type: str) -> list[int]:
        return [i for i, claim in enumerate(self.claims) if claim is None and self.cells[i].type == type]

    def _say_where_else(self, exercise: Exercise, own: SourceCell, taken: int) -> None:
        """The answer is the stub: does another cell, which is not read, define what is asked for?"""
        wanted = set(defined(own.source)) & set(exercise.names)
        for i in self._unknown("code"):
            if both := wanted & _defined(self.cells[i].source):
                self.problems.append(
                    f"{_title(exercise)}: cell {i + 1} defines {sorted(both)[0]}, but only the answer cell is read, "
                    "and that is still the stub. Move it there."
                )
                return


def _defined(text: str) -> set[str]:
    try:
        return set(defined(text))
    except (RecursionError, MemoryError):
        return set()


def exercise_names(source: Source) -> list[str]:
    """All names that the checks of a notebook ask for."""
    return [name for exercise in source.exercises for name in exercise.names]


def is_free_response(exercise: Exercise) -> bool:
    """Whether a person marks it: there is a rubric, or the answer is text."""
    return bool(exercise.by_role("rubric")) or any(cell.cell_type == "markdown" for cell in exercise.answers)


def _title(exercise: Exercise) -> str:
    return exercise.title or str(label(exercise.cells[0]).get("exercise", exercise.id))


def _same(text: str, stub: str, type: str) -> bool:
    """Whether an answer is the stub: the same code, or the same words; or nothing at all."""
    if not text.strip() or " ".join(text.split()) == " ".join(stub.split()):
        return True
    if type == "code":
        try:
            return ast.dump(ast.parse(text)) in (ast.dump(ast.parse(stub)), ast.dump(ast.parse("")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return False
