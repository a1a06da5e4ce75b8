"""The zoo of an exercise notebook: wrong answers with the sentence that must reject each, and other right answers.

    @mutant("reduce-scatter", "my_reduce_scatter", says="gathering a result that you throw away", at=5)
    def everything_then_slice(x, group): ...

    @variant("reduce-scatter", "my_reduce_scatter")
    def pairwise(x, group): ...

A function of the zoo stands for the student's whole answer, so it uses nothing but what the notebook's first cell has.
"""

from __future__ import annotations

import ast
import inspect
import runpy
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
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

    @property
    def name(self) -> str:
        return f"{self.exercise}: {self.body.__name__}"

    @property
    def right(self) -> bool:
        return not self.says

    @property
    def source(self) -> str:
        """Its lines as a student would hand them in, under the name that the exercise asks for."""
        tree = ast.parse(textwrap.dedent(inspect.getsource(self.body)))
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


def zoo_of(path: str | Path) -> list[Animal]:
    """The animals of a file of `solutions/mutants`, in its order."""
    names = runpy.run_path(str(path))
    return [value.animal for value in names.values() if isinstance(getattr(value, "animal", None), Animal)]
