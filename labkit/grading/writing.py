"""What a chapter asks its reader to write, judged by evidence from real ranks, as an exercise is.

    @you_write(adds_up)                       # in the room of the chapter, you_write.py
    def total(x, group): ...                  # the book's own version

`adds_up(student)` is a check (`labkit.grading.checks`): it ends quietly, or with a sentence about what was right, or
raises what it has to say. The notebook has the same lines between markers; a test compares the two.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from labkit.book.reading.writing import Task, register
from labkit.grading.checks.judge import Check, judge
from labkit.grading.checks.marks import Mark
from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.student import Evidence, Student
from labkit.wire import Group

Body = Callable[[Student], Any]


class Reader(NotebookStudent):
    """A reader's functions, as a check sees them. A laptop may be busy, and nobody waits in line."""

    patience = 2.5

    def through(
        self, name: str, world_size: int, inputs: Sequence[Any], call: Callable[[Callable[..., Any], Any, Group], Any]
    ) -> Evidence:
        """As `run`, for a function that does not take its rank's input as it is: `call(fn, input, group)` calls it.

        Results are what `call` returns. One `call` for a name: the same inputs are not run a second time.
        """
        names, fn = self._names, self._names.get(name)

        def called(x: Any, group: Group) -> Any:
            return call(fn, x, group)  # type: ignore[arg-type]

        self._names = {**names, name: called} if callable(fn) else names  # else `run` says what it is
        try:
            return self.run(name, world_size, inputs)
        finally:
            self._names = names

    def uses(self, name: str, word: str) -> bool:
        """Whether the reader's function `name` has this name in its code."""
        return word in getattr(getattr(self._names.get(name), "__code__", None), "co_names", ())

    def in_place(self, name: str, world_size: int, inputs: Sequence[Any]) -> Evidence:
        """As `run`, for a function that changes what it gets: results are the inputs as it has left them."""

        def changed(fn: Callable[..., Any], x: Any, group: Group) -> Any:
            fn(x, group)
            return x

        return self.through(name, world_size, inputs, changed)


def you_write(check: Callable[[Reader], str | None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of a chapter's room as what a reader is to write, and `check` as what is asked of it."""

    def add(own: Callable[..., Any]) -> Callable[..., Any]:
        name = own.__name__

        def look(names: Mapping[str, Any]) -> Mark:
            student = Reader(names, secrets.randbelow(2**31), name)
            return judge(name, [Check(name, check.__name__, "result", 1, cast(Body, check))], student).marks[0]

        register(own.__module__.split(".")[-2].removeprefix("c"), Task(own, look))
        return own

    return add
