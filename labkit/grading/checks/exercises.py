"""`open_exercises`: the object on which the cells of an exercise notebook define checks and run them.

    exercises = labkit.grading.open_exercises("03_collectives")
    given = exercises.given(ring_bytes={"N": (6, 24), "MB": (100, 400)})     # numbers of this student

    @exercises.check("reduce-scatter", evidence="bytes", points=2)
    def sends_only_what_it_must(student): ...

    exercises.run("reduce-scatter")

In a notebook `run` shows the marks and keeps quiet otherwise. Under nbval it raises unless everything is right, so that
the cell is red; under nbgrader it gives the points of the checks defined since the last run, as partial credit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from random import Random
from typing import Any

from labkit.book.drawing.tables import Table
from labkit.book.frontend import namespace as notebook_names
from labkit.grading.answers import Key, find_key
from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.judge import Check, judge
from labkit.grading.checks.marks import Outcome
from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.show import headline, show, text
from labkit.grading.checks.student import Student
from labkit.grading.known import seeds

STUDENT, SEED = "LABKIT_STUDENT", "LABKIT_GRADING_SEED"
Body = Callable[[Student], Any]
Given = dict[str, int]


class ChecksFailed(AssertionError):
    """Not everything is right, where a cell must say so by failing; the text has the marks."""


class GivenNumbers(dict[str, Given]):
    """A student's own numbers by exercise: plain dictionaries, shown as a table."""

    def table(self) -> Table:
        rows = [(name, ", ".join(f"{k} = {v:,}" for k, v in numbers.items())) for name, numbers in self.items()]
        return Table([{"exercise": name, "your numbers": text} for name, text in rows])

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()


class Exercises:
    """The exercises of one notebook.

    namespace: where the student's functions and variables are; the caller's own by default. student: who it is, any
    text; it decides the numbers of `given`. seed: of the inputs of all checks, None for a new one in every run.
    worlds: run checks at these world sizes only. strict: raise unless all is right (None: as nbval and nbgrader want).
    """

    def __init__(
        self, name: str, namespace: Mapping[str, Any] | None = None, *, student: str | None = None,
        seed: int | None = None, worlds: Sequence[int] | None = None, strict: bool | None = None,
    ):  # fmt: skip
        self.name, self.worlds, self.strict = name, worlds, strict
        self.namespace = namespace if namespace is not None else notebook_names()
        self.student = os.environ.get(STUDENT, "") if student is None else student
        self._seed = seed if seed is not None else _seed_of_environment()
        self._checks: dict[str, dict[str, Check]] = {}
        self._new: dict[str, list[str]] = {}
        self.outcomes: dict[str, Outcome] = {}

    # -- what cells say ------------------------------------------------------------------------------------------

    def given(self, **ranges: Mapping[str, Any]) -> GivenNumbers:
        """Numbers of this student for each exercise; a name with _ stands for an exercise with -.

        Each range is (least, most), from which a whole number is drawn, or a list to take one of.
        """
        found = GivenNumbers()
        for exercise, names in ranges.items():
            random = Random(number_from("given", self.name, self.student, exercise))
            found[exercise.replace("_", "-")] = {name: _draw(random, choice) for name, choice in names.items()}
        return found

    def key(self, name: str, **numbers: float) -> Key:
        """The key of an answer of this chapter for a student's numbers: see `labkit.grading.answers`."""
        return find_key(self.name, name, **numbers)

    def check(self, exercise: str, *, evidence: str, points: float) -> Callable[[Body], Body]:
        """Define a check of `exercise`: a function of a `Student`. Defining one of the same name replaces it."""

        def define(body: Body) -> Body:
            check = Check(exercise, body.__name__, evidence, points, body)
            self._checks.setdefault(exercise, {})[check.name] = check
            new = self._new.setdefault(exercise, [])
            if check.name not in new:
                new.append(check.name)
            return body

        return define

    def run(self, exercise: str) -> float | None:
        """Run all checks of `exercise` that are defined, show the marks, and keep them in `outcomes`."""
        outcome = self.judge(exercise)
        new = self._new.pop(exercise, [])
        show(outcome)
        nbgrader = "NBGRADER_EXECUTION" in os.environ
        strict = (nbgrader or "PYTEST_CURRENT_TEST" in os.environ) if self.strict is None else self.strict
        earned = sum(mark.points for mark in outcome.marks if mark.name in new)
        if nbgrader and earned > 0:  # a float is partial credit there; an exception is none
            return float(earned)
        if strict and outcome.state != "right":
            raise ChecksFailed(text(outcome) if not nbgrader else headline(outcome))
        return None

    # -- what others ask -----------------------------------------------------------------------------------------

    def judge(self, exercise: str, student: Student | None = None) -> Outcome:
        """The outcome of an exercise for a student behind any door; by default the one of this notebook."""
        checks = self._checks.get(exercise)
        if not checks:
            known = ", ".join(self._checks) or "none yet"
            raise ValueError(f"no check of {exercise!r} is defined here (exercises with checks: {known})")
        if student is None:
            student = NotebookStudent(self.namespace, self.next_seed(exercise), exercise, self.worlds)
        outcome = judge(exercise, checks.values(), student, self.student)
        self.outcomes[exercise] = outcome
        return outcome

    def checks(self, exercise: str | None = None) -> list[Check]:
        """The checks of an exercise, or of all, in the order of their definition."""
        names = self._checks if exercise is None else [exercise]
        return [check for name in names for check in self._checks.get(name, {}).values()]

    def next_seed(self, exercise: str) -> int:
        """The seed of the next run: a new one, unless one was asked for; where answers are recorded, one of theirs."""
        recorded = seeds(self.name, exercise)
        if recorded and self._seed not in recorded:
            return recorded[secrets.randbelow(len(recorded)) if self._seed is None else self._seed % len(recorded)]
        return secrets.randbelow(2**31) if self._seed is None else self._seed


_outside: ContextVar[dict[str, Any] | None] = ContextVar("options from outside", default=None)


def open_exercises(name: str, **options: Any) -> Exercises:
    """The exercises of the notebook `name`; for the options see `Exercises`."""
    return Exercises(name, **(options | (_outside.get() or {})))


@contextlib.contextmanager
def options_from_outside(**options: Any) -> Iterator[None]:
    """Options for what is opened inside: for who runs a notebook's cells with another student, seed or namespace."""
    token = _outside.set(options)
    try:
        yield
    finally:
        _outside.reset(token)


def _draw(random: Random, choice: Any) -> int:
    return random.choice(choice) if isinstance(choice, list) else random.randint(*choice)


def _seed_of_environment() -> int | None:
    text = os.environ.get(SEED, "")
    return int(text) if text.isdecimal() else None
