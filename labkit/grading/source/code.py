"""What can be read from the code of a check or answer cell without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

ASKS = ("run", "value", "expect_answer")  # student.run("name", ...), student.value("name")


@dataclass(frozen=True)
class Check:
    """One check as its decorator declares it: `@exercises.check("id", evidence="bytes", points=2)`.

    points: None where the decorator gives none that can be read.
    """

    name: str
    exercise: str
    evidence: str
    points: float | None
    hidden: bool = False

    def but_hidden(self) -> Check:
        return replace(self, hidden=True)


def parse(source: str) -> ast.Module | None:
    """The syntax tree of a cell, None where it is not plain Python: a mistake, or a line for IPython only."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def why_not_python(source: str) -> str:
    """Python's complaint about a cell, "" for a cell that parses."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except ValueError as error:
        return str(error)
    return ""


def checks_in(source: str) -> list[Check]:
    """The checks that a cell defines, in order. A cell that does not parse has none."""
    tree = parse(source)
    if tree is None:
        return []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [
        _check(function.name, call)
        for function in functions
        for call in function.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "check"
    ]


def _check(name: str, call: ast.Call) -> Check:
    given = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
    first = _literal(call.args[0]) if call.args else given.get("exercise", "")
    points = given.get("points")
    number = isinstance(points, int | float) and not isinstance(points, bool)
    return Check(name, str(first), str(given.get("evidence", "")), points if number else None)  # type: ignore[arg-type]


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def runs_last(source: str) -> str | None:
    """The exercise that the last line of a cell runs the checks of: `exercises.run("id")`. None where it does not."""
    tree = parse(source)
    last = tree.body[-1] if tree is not None and tree.body else None
    call = last.value if isinstance(last, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "run" and call.args:
        value = _literal(call.args[0])
        return value if isinstance(value, str) else None
    return None


def names_asked(source: str) -> list[str]:
    """The names that checks ask the student's work for, in order, each once."""
    tree = parse(source)
    if tree is None:
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    asked = (
        _literal(call.args[0])
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ASKS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "student"
    )
    return list(dict.fromkeys(name for name in asked if isinstance(name, str)))


def defined(source: str) -> list[str]:
    """The names that a cell binds at its top level: functions, classes, and targets of assignments, in order."""
    tree = parse(source)
    return [] if tree is None else list(dict.fromkeys(name for node in tree.body for name in _bound(node)))


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def is_nothing(lines: list[str]) -> bool:
    """Whether there is no code in these lines: only blank ones and comments."""
    return all(not line.strip() or line.strip().startswith("#") for line in lines)
