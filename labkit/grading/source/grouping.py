"""The cells of a notebook, put together by exercise."""

from __future__ import annotations

import re
from typing import Any

from labkit.grading.source.exercise import SETUP, Cell, Exercise, Notebook, label, role


def exercises_in(notebook: Notebook) -> list[Exercise]:
    """The exercises of a notebook, in order. What a broken statement does not say is filled in with nothing."""
    runs: dict[str, list[Cell]] = {}
    for cell in notebook.cells:
        if role(cell) and role(cell) != SETUP:
            runs.setdefault(str(label(cell).get("exercise", "")), []).append(cell)
    return [_exercise(id, cells) for id, cells in runs.items()]


def _exercise(id: str, cells: list[Cell]) -> Exercise:
    statement = next((cell for cell in cells if role(cell) == "statement"), None)
    told: dict[str, Any] = label(statement) if statement is not None else {}
    heading = statement.source.lstrip().split("\n")[0] if statement is not None else ""
    return Exercise(
        id=id,
        title=re.sub(r"\\([\\$*_`#])", r"\1", heading.lstrip("#").strip()),  # "\$" is how Markdown writes "$"
        kind=_text(told, "kind"),
        points=_number(told, "points"),
        core=told.get("core") is True,
        objective=_text(told, "objective"),
        section=_text(told, "section"),
        level=int(_number(told, "level")),
        cells=tuple(cells),
    )


def _text(told: dict[str, Any], key: str) -> str:
    value = told.get(key)
    return value if isinstance(value, str) else ""


def _number(told: dict[str, Any], key: str) -> float:
    value = told.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
