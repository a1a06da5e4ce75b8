"""What a cell says in place of its panel, until something above it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.book.frontend import live
from labkit.book.reading.writing import checked


class Said(str):
    """A sentence, shown as one."""

    def __repr__(self) -> str:
        return str(self)


def unchecked(function: Callable[..., Any]) -> Said:
    """What to do first with a reader's function that no check has found right, or nothing."""
    name = getattr(function, "__name__", "the function")
    return Said("" if checked(function) else f"Run the check below your function {name} first.")


def unsearched(case: object, what: str) -> Said:
    """What to do first where the reader has found no explanation yet, or nothing; `what` comes anyway the second time.

    case: the panel, with the reader's `found`, and `asked`: what has been refused once. None: nothing is waited for.
    """
    asked: set[str] = getattr(case, "asked", set())
    if not live() or getattr(case, "found", True) or what in asked:
        return Said("")
    asked.add(what)
    return Said("Find one explanation in the panel first. To see the answer anyway, run this cell again.")
