"""The checks of an instructor's notebook, defined but not run: its setup cell and its check cells, without a student.

The cells are the instructor's, so they run right here. What they judge is given later: `Exercises.judge(id, student)`.
"""

from __future__ import annotations

import ast
import linecache
from typing import Any

from labkit.grading.checks.exercises import Exercises, options_from_outside
from labkit.grading.source.code import runs_last
from labkit.grading.source.exercise import Source


def checks_of(source: Source, hidden: bool = True, **options: Any) -> Exercises:
    """The exercises of `source` with their checks, hidden ones unless told otherwise. options: of `Exercises`.

    The names that the cells define are in its `namespace`, where a student's answers may be put too.
    """
    names: dict[str, Any] = options.pop("namespace", {})
    names["__name__"] = source.name
    with options_from_outside(namespace=names, **options):
        _run(source.setup.source, names, f"<{source.name}, setup>")
    exercises = names["exercises"]
    for exercise in source.exercises:
        for cell in exercise.by_role("public", "hidden" if hidden else "public"):
            _run(cell.source, names, f"<{source.name}, {cell.id}>")
    if not isinstance(exercises, Exercises):
        raise TypeError(f"{source.name}: its setup cell must set exercises = open_exercises({source.name!r})")
    return exercises


def preamble(source: Source, exercises: Exercises) -> str:
    """What an answer cell may rely on, as source: the imports of the setup cell, and the student's own numbers.

    For where answers run without the exercises themselves: nothing of the grading is in it.
    """
    lines = [
        ast.unparse(node)
        for node in ast.parse(source.setup.source).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "grading" not in ast.unparse(node)
    ]
    given = exercises.namespace.get("given", {})
    return "\n".join([*lines, f"given = {dict(given)!r}"]) + "\n"


def _run(code: str, names: dict[str, Any], where: str) -> None:
    """Execute a cell, but for a last line that runs checks."""
    tree = ast.parse(code)
    if runs_last(code) is not None:
        tree.body.pop()
    linecache.cache[where] = (len(code), None, code.splitlines(keepends=True), where)  # for tracebacks, and the hash
    exec(compile(tree, where, "exec"), names)
