"""The zoo of an exercise notebook: wrong answers with the sentence that must reject each, and other right answers.

    @mutant("reduce-scatter", "my_reduce_scatter", says="gathering a result that you throw away", at=5)
    def everything_then_slice(x, group): ...

    @variant("reduce-scatter", "my_reduce_scatter")
    def pairwise(x, group): ...

    a_slice_too_much = slip("reduce-scatter", "my_reduce_scatter", says="gathering", at=5, change='''
    -    return mine
    +    return everything[group.rank]
    ''')

A function of the zoo stands for the student's whole answer, so it uses nothing but what the notebook's first cell has.
A slip is the solution with a few other lines: the form for a mutant, unless little of the solution is left in it.
"""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import runpy
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Answer = Callable[..., Any]


@dataclass(frozen=True)
class Animal:
    """One answer. says: a part of the sentence that rejects it, "" for a right one. at: a world size that shows it."""

    exercise: str
    entry: str
    says: str
    at: int
    body: Answer
    text: str = ""  # its lines, where they are not those of `body` in a file

    @property
    def name(self) -> str:
        return f"{self.exercise}: {self.body.__name__}"

    @property
    def right(self) -> bool:
        return not self.says

    @property
    def source(self) -> str:
        """Its lines as a student would hand them in, under the name that the exercise asks for."""
        tree = ast.parse(self.text or textwrap.dedent(inspect.getsource(self.body)))
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.decorator_list, function.name = [], self.entry
        return ast.unparse(tree) + "\n"


def mutant(exercise: str, entry: str, *, says: str, at: int = 3) -> Callable[[Answer], Answer]:
    """A wrong answer. Its marks must have a sentence with `says` in it, already at world size `at`."""
    if not says:
        raise ValueError("a mutant needs a part of the sentence that rejects it")
    return _mark(exercise, entry, says, at)


def variant(exercise: str, entry: str, *, at: int = 3) -> Callable[[Answer], Answer]:
    """A right answer that differs from the solution."""
    return _mark(exercise, entry, "", at)


def _mark(exercise: str, entry: str, says: str, at: int) -> Callable[[Answer], Answer]:
    def mark(body: Answer) -> Answer:
        body.animal = Animal(exercise, entry, says, at, body)  # type: ignore[attr-defined]
        return body

    return mark


@dataclass(frozen=True)
class Slip:
    """A wrong answer that differs from the solution in a few lines. `zoo_of` makes an animal of it."""

    exercise: str
    entry: str
    says: str
    at: int
    change: str


def slip(exercise: str, entry: str, *, says: str, at: int = 3, change: str) -> Slip:
    """A wrong answer, as a change of the solution; else as `mutant`.

    change: lines as in a patch, of the function `entry` as it stands in the answer cell: "-" before those that go, "+"
    before those that come, a blank before those that stay and only say where. Blank lines part one place from the
    next. Each place must be in the solution exactly once.
    """
    if not says:
        raise ValueError("a slip needs a part of the sentence that rejects it")
    return Slip(exercise, entry, says, at, change)


def changed(text: str, change: str) -> str:
    """`text` with the changes of a slip. Raises ValueError, with the lines, for those that are not there once."""
    lines, edits = text.split("\n"), []
    for place in textwrap.dedent(change).strip("\n").split("\n\n"):
        told = place.split("\n")
        if strange := [line for line in told if line[:1] not in ("-", "+", " ")]:
            raise ValueError(f"{strange[0]!r} begins with none of '-', '+' and a blank")
        old = [line[1:] for line in told if line[0] != "+"]
        found = [i for i in range(len(lines) - len(old) + 1) if lines[i : i + len(old)] == old]
        if len(found) != 1 or not old:
            raise ValueError(f"{len(found)} places, not one, of the solution have these lines:\n" + "\n".join(old))
        edits.append((found[0], found[0] + len(old), [line[1:] for line in told if line[0] != "-"]))
    edits.sort(reverse=True)
    if any(first < end for (first, _, _), (_, end, _) in zip(edits, edits[1:], strict=False)):
        raise ValueError("two places lie over each other: make one of them")
    for first, end, new in edits:
        lines[first:end] = new
    return "\n".join(lines)


def zoo_of(path: str | Path) -> list[Animal]:
    """The animals of `solutions/NN_name/mutants.py`, in its order; the solutions are beside that folder."""
    path = Path(path)
    names = runpy.run_path(str(path))
    found = []
    for name, value in names.items():
        if isinstance(value, Slip):
            found.append(_slipped(name, value, path, names))
        elif isinstance(getattr(value, "animal", None), Animal):
            found.append(value.animal)
    return found


def _slipped(name: str, one: Slip, path: Path, names: dict[str, Any]) -> Animal:
    chapter = path.parent.name
    try:
        text = changed(solution(path.parents[1] / f"{chapter}.ipynb", one.exercise, one.entry), one.change)
    except ValueError as problem:
        raise ValueError(f"{chapter}/{path.name}, {name}: {problem}") from None
    file = f"<{chapter}: {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {key: value for key, value in names.items() if not isinstance(value, Slip)}
    exec(compile(text, file, "exec"), space)
    body = space[one.entry]
    body.__name__ = name
    return Animal(one.exercise, one.entry, one.says, one.at, body, text)


@cache
def solution(notebook: Path, exercise: str, entry: str) -> str:
    """The lines of the function `entry` in an answer cell of the exercise, without markers."""
    for cell in json.loads(notebook.read_text())["cells"]:
        told = cell["metadata"].get("labkit", {})
        if (told.get("exercise"), told.get("role"), cell["cell_type"]) != (exercise, "answer", "code"):
            continue
        text = "".join(cell["source"])
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == entry:
                lines = text.split("\n")[node.lineno - 1 : node.end_lineno]
                return "\n".join(line for line in lines if not line.strip().startswith("### "))
    raise ValueError(f"{notebook.name} has no answer {entry} in an exercise {exercise}")
