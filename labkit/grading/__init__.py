"""Exercises and marks by evidence: from an instructor's notebook to a student's, and from a submission to a mark.

    open_exercises(name)    the first line of an exercise notebook: checks are defined on what it returns
    checks/                 what a check is, and the door to a student's work in a notebook
    answers                 keys of derivations: numbers with units, formulas, choices, lists
    source/                 one notebook of the instructor, and what a student receives of it
    sandbox/, grader/       a student's code behind walls; a folder of submissions to results
    gradebook/, feedback/   results to tables, sheets to mark by hand, and pages

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"Exercises": "checks.exercises", "open_exercises": "checks.exercises"}
__all__ = ["Exercises", "open_exercises"]  # noqa: F822  (loaded on first use)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"labkit.grading.{_HOME[name]}"), name)
    raise AttributeError(f"module 'labkit.grading' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
