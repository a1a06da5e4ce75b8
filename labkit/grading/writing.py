"""What a chapter asks its reader to write, judged by evidence from real ranks, as an exercise is.

    @you_write(adds_up)                       # in the room of the chapter, you_write.py
    def total(x, group): ...                  # the book's own version

`adds_up(student)` is a check (`labkit.grading.checks`): it ends quietly, or with a sentence about what was right, or
raises what it has to say. The notebook has the same lines between markers; a test compares the two.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from labkit.book.reading.writing import Task, register
from labkit.grading.checks.judge import Check, judge
from labkit.grading.checks.marks import Mark
from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.student import Student


def you_write(check: Callable[[Student], str | None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of a chapter's room as what a reader is to write, and `check` as what is asked of it."""

    def add(own: Callable[..., Any]) -> Callable[..., Any]:
        name = own.__name__

        def look(names: Mapping[str, Any]) -> Mark:
            student = NotebookStudent(names, secrets.randbelow(2**31), name)
            return judge(name, [Check(name, check.__name__, "result", 1, check)], student).marks[0]

        register(own.__module__.split(".")[-2].removeprefix("c"), Task(own, look))
        return own

    return add
