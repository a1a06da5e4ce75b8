"""The rules for one exercise: that its cells fit together, and that its points add up."""

from __future__ import annotations

import math
from collections.abc import Iterator

from labkit.grading.source.code import defined, runs_last, why_not_python
from labkit.grading.source.exercise import KINDS, ROLES, Cell, Exercise, checks_of, label, role
from labkit.grading.source.stub import stubbed

LINE = 120  # characters: what the linter allows
Fault = tuple[Cell, str]


def exercise_faults(exercise: Exercise) -> Iterator[Fault]:
    """What is wrong between the cells of an exercise, each with the cell to be changed."""
    statements = exercise.by_role("statement")
    first = exercise.cells[0]
    if not statements:
        yield first, "the exercise has no statement"
        return
    if role(first) != "statement":
        yield first, "the statement must be the first cell of its exercise"
    for cell in statements[1:]:
        yield cell, "the exercise has a second statement: is its id used twice?"
    yield from _statement(exercise, statements[0])
    yield from _roles(exercise, statements[0])
    yield from _hints(exercise, statements[0])
    yield from _answers(exercise)
    yield from _checks(exercise)
    yield from _points(exercise, statements[0])


def _statement(exercise: Exercise, cell: Cell) -> Iterator[Fault]:
    told = label(cell)
    if exercise.kind not in KINDS:
        yield cell, f"its kind is {told.get('kind')!r}: choose one of {', '.join(KINDS)}"
    if not exercise.points > 0 or not math.isfinite(exercise.points):
        yield cell, f"its points are {told.get('points')!r}: they must be a number above 0"
    if not isinstance(told.get("core"), bool):
        yield cell, f"core is {told.get('core')!r}: say true or false"
    if isinstance(told.get("level"), bool) or told.get("level") not in (1, 2, 3):
        yield cell, f"its level is {told.get('level')!r}: choose 1 (easy), 2 or 3"
    if not exercise.section:
        yield cell, "it names no section of the chapter"
    if not cell.source.lstrip().startswith("#"):
        yield cell, "the statement must begin with a heading: the title of the exercise"
    for needed in ("you will be checked on", "difficulty"):
        if needed not in cell.source.lower():
            yield cell, f"the statement does not say {needed.capitalize()!r}"


def _roles(exercise: Exercise, statement: Cell) -> Iterator[Fault]:
    order = [ROLES.index(role(cell)) for cell in exercise.cells if role(cell) in ROLES]
    for cell, before, after in zip(exercise.cells[1:], order, order[1:], strict=False):
        if after < before:
            yield (
                cell,
                f"a cell of the role {ROLES[after]} stands behind a {ROLES[before]}: the order is {', '.join(ROLES)}",
            )
    needs = {"explanation": ("answer", "rubric")}.get(exercise.kind, ("answer", "public"))
    for needed in needs:
        if not exercise.by_role(needed):
            yield statement, f"{_a(exercise.kind)} {exercise.kind} needs a cell of the role {needed}"
    for cell in exercise.answers:
        if cell.cell_type != "code" and exercise.kind != "explanation":
            yield cell, f"the answer to {_a(exercise.kind)} {exercise.kind} is a code cell"


def _hints(exercise: Exercise, statement: Cell) -> Iterator[Fault]:
    hints = exercise.by_role("hint")
    if not hints and exercise.kind != "explanation":
        yield statement, "there is no hint: give one cell a step"
    for number, cell in enumerate(hints, 1):
        if label(cell).get("step", number) != number:
            yield cell, f"the hint says it is step {label(cell)['step']!r}, but it is number {number}"
        if "<details" in cell.source:
            yield cell, "the fold around a hint is made by the release: write only its text"


def _answers(exercise: Exercise) -> Iterator[Fault]:
    for cell in exercise.answers:
        released = stubbed(cell, exercise)
        if cell.cell_type == "code" and not why_not_python(cell.source) and (why := why_not_python(released)):
            yield cell, f"with the stub in place of the solution it is no Python: {why}"
        if exercise.kind == "program" and not label(cell).get("stub") and not label(cell).get("stub_code"):
            yield cell, 'the stub must say what to do: "labkit": {..., "stub": "send your part to ..."}'
        for line in released.split("\n"):
            if cell.cell_type == "code" and len(line) > LINE:
                yield cell, f"a line of the stub has {len(line)} characters, {LINE} is the limit: say less"
    codes = [cell for cell in exercise.answers if cell.cell_type == "code" and not why_not_python(cell.source)]
    solved = {name for cell in codes for name in defined(cell.source)}
    given = {name for cell in codes for name in defined(stubbed(cell, exercise))}
    for name in exercise.names:
        if name not in solved:
            yield _asking(exercise, name), f"the check asks for {name!r}, which no answer cell of the exercise defines"
        elif name not in given:
            yield codes[-1], f"the stub does not define {name!r}, which the checks ask for: keep its first line outside"


def _asking(exercise: Exercise, name: str) -> Cell:
    return next(cell for cell in exercise.check_cells if name in cell.source)


def _checks(exercise: Exercise) -> Iterator[Fault]:
    seen: set[str] = set()
    for cell in exercise.check_cells:
        if why_not_python(cell.source):
            continue
        found = checks_of(cell)
        if not found:
            yield cell, "it defines no check: decorate a function with @exercises.check(...)"
        for check in found:
            if check.exercise != exercise.id:
                yield cell, f"the check {check.name} is for {check.exercise!r}: it stands in {exercise.id!r}"
            if check.points is None or check.points < 0:
                yield cell, f"the check {check.name} needs points, as a number: points=2"
            if not check.evidence or check.evidence == "None":
                yield cell, f'the check {check.name} does not say what it looks at: evidence="bytes"'
            if check.name in seen:
                yield cell, f"the exercise has two checks named {check.name}: the second would replace the first"
            seen.add(check.name)
        if runs_last(cell.source) != exercise.id:
            yield cell, f'its last line must be exercises.run("{exercise.id}")'


def _points(exercise: Exercise, statement: Cell) -> Iterator[Fault]:
    total = 0.0
    for cell in exercise.cells:
        given = cell.metadata.get("nbgrader")
        stated = given.get("points") if isinstance(given, dict) else None
        if not isinstance(stated, int | float) or isinstance(stated, bool):
            continue
        if cell in exercise.check_cells:
            own = sum(check.points or 0 for check in checks_of(cell))
            total += own
            if not math.isclose(own, stated):
                yield cell, f"its checks have {own:g} points, and nbgrader's metadata says {stated:g}"
        elif cell in exercise.answers and cell.cell_type == "markdown":
            total += stated
    if not math.isclose(total, exercise.points):
        yield statement, f"it promises {exercise.points:g} points, and its checks add up to {total:g}"


def _a(word: str) -> str:
    return "an" if word[:1] in "aeiou" else "a"
