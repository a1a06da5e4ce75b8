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


def unsearched(case: object) -> Said:
    """What to do first where the reader has found no explanation yet, or nothing; the second time they come anyway."""
    if not live() or case is None or getattr(case, "found", True) or getattr(case, "asked", False):
        return Said("")
    case.asked = True  # type: ignore[attr-defined]
    return Said("Find one explanation in the panel first. To see them all the same, run this cell again.")
