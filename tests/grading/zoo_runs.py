"""Runs answers of the zoo, stubs and solutions against the checks of a source notebook."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from labkit.grading.checks.exercises import Exercises
from labkit.grading.checks.marks import Outcome
from labkit.grading.checks.pristine import checks_of
from labkit.grading.checks.zoo import Animal, zoo_of
from labkit.grading.source.exercise import Source
from labkit.grading.source.read import read_source
from labkit.grading.source.stub import stubbed

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted(path.stem for path in (ROOT / "solutions").glob("[0-9]*.ipynb"))


@cache
def source(chapter: str) -> Source:
    written = ROOT / "notebooks" / f"{chapter}.ipynb"
    return read_source(ROOT / "solutions" / f"{chapter}.ipynb", written if written.exists() else None)


@cache
def animals(chapter: str) -> list[Animal]:
    path = ROOT / "solutions" / chapter / "mutants.py"
    return zoo_of(path) if path.exists() else []


@cache
def exercises(chapter: str) -> Exercises:
    """All checks of a chapter; its answers are put into the namespace."""
    return checks_of(source(chapter), strict=False, seed=20_26)


def judged(chapter: str, exercise: str, answers: dict[str, Any], worlds: Sequence[int] | None = None) -> Outcome:
    """The outcome of an exercise for these answers."""
    opened = exercises(chapter)
    opened.namespace.update(answers)
    opened.worlds = worlds
    return opened.judge(exercise)


def answers_of(chapter: str, exercise: str, stub: bool = False) -> dict[str, Any]:
    """What the answer cells of an exercise define: the solution, or the stub that a student starts from."""
    one = source(chapter).exercise(exercise)
    names = dict(exercises(chapter).namespace)
    for cell in one.answers:
        exec(stubbed(cell, one) if stub else cell.source, names)
    return {name: names.get(name) for name in one.names}


def sentences(outcome: Outcome) -> str:
    return "\n".join(f"{mark.name}: {mark.sentence} {mark.detail}" for mark in outcome.marks)
