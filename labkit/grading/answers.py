"""Keys of derivations: what an answer is compared with, and what is said about a wrong one.

    Number(35.0, "MB", slips=[(40.0, "why")])      a number in any unit of its kind, or arithmetic of numbers
    Symbolic("2*(N-1)/N*M", slips=[("2*M", ...)])  any formula that is equal to it
    Choice("b", {"a": "why not", "c": "why not"})  one of several; Several("ac", {...}) all that hold
    Listing([key, key])                            a list of answers, each with its own key

`key.mark(value)` gives a Feedback (labkit.course.questions) for any value at all; a key never raises.
`find_key` finds the key of an answer in the room of its chapter. Keys lie there and not in the notebooks, so that
nobody reads an answer in the check below the question. They are no secret: whoever opens the file finds them, as with
the quizzes. An instructor who wants secrets writes hidden checks.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from labkit.course.quantities import NoNumber, read_number
from labkit.course.questions.base import RIGHT, Feedback, refused
from labkit.course.questions.numeric import Numeric, Slip, near
from labkit.course.wording import plain
from labkit.grading.formulas import Formula, NoFormula, equal, read_formula

TOLERANCE = 0.01  # of the answer
Slips = Sequence[tuple[float, str]]  # (wrong number, why), in the unit of the answer


class Key(ABC):
    """What the right answer is, and what the known wrong ones come from."""

    @abstractmethod
    def mark(self, value: object) -> Feedback:
        """Right or wrong, and why; any value gets a Feedback."""


@dataclass(frozen=True)
class Number(Key):
    """answer: in `unit`. tolerance: as a part of the answer. slips: (wrong number, why), in the same unit.

    A number without a unit counts as one in `unit`. A lost factor of 1000, and bits for bytes, are recognized.
    """

    answer: float
    unit: str = ""
    tolerance: float = TOLERANCE
    slips: Slips = ()

    @classmethod
    def of(cls, answer: float, unit: str, slips: Slips, tolerance: float = TOLERANCE) -> Number:
        """A number without the slips that are near it: with some numbers a wrong way leads to the right one."""
        return cls(answer, unit, tolerance, [s for s in slips if abs(s[0] - answer) > 2 * tolerance * abs(answer)])

    @classmethod
    def count(cls, answer: int, slips: Slips) -> Number:
        """A whole number, to be met exactly."""
        return cls(answer, "", 1e-9, [slip for slip in slips if slip[0] != answer])

    def mark(self, value: object) -> Feedback:
        if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
            value = value.item()
        try:
            given = read_number(value, self.unit)
        except NoNumber as error:
            return refused(str(error))
        if near(given, self.answer, self.tolerance):
            return Feedback(True, RIGHT)
        for wrong, why in sorted(self.slips, key=lambda slip: abs(slip[0] - given)):
            if near(given, wrong, min(self.tolerance, TOLERANCE)):
                return Feedback(False, f"{self._said(given)}: {why}")
        mixed = self._numeric()._mixed_up(given)
        return Feedback(False, f"{self._said(given)} is not it. {mixed}".strip())

    def _said(self, given: float) -> str:
        return f"{plain(given)} {self.unit}".strip()

    def _numeric(self) -> Numeric:
        """The same question as a quiz has it: it knows how mixed-up units look."""
        slips = tuple(Slip(value, why) for value, why in self.slips)
        return Numeric("", "numeric", "", "", "", "", self.answer, self.unit, self.tolerance, slips)


@dataclass(frozen=True)
class Symbolic(Key):
    """answer: a formula. symbols: the names an answer may use; those of `answer` if empty. slips: (formula, why)."""

    answer: str
    symbols: str = ""
    slips: Sequence[tuple[str, str]] = ()
    _key: Formula = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", read_formula(self.answer, self.symbols.split() or None))

    def mark(self, value: object) -> Feedback:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = repr(value)
        names = self.symbols.split() or sorted(self._key.names)
        try:
            given = read_formula(value, names)
        except NoFormula as error:
            return refused(str(error))
        if equal(given, self._key):
            return Feedback(True, RIGHT)
        for wrong, why in self.slips:
            if equal(given, read_formula(wrong, names)):
                return Feedback(False, why)
        missing = sorted(self._key.names - given.names)
        hint = f" It should depend on {' and '.join(missing)}." if missing else ""
        return Feedback(False, f"{given.text} is not equal to the answer.{hint} Try it with small numbers.")


@dataclass(frozen=True)
class Choice(Key):
    """right: the letter of the right choice. why: for each other letter, why not."""

    right: str
    why: Mapping[str, str]

    def mark(self, value: object) -> Feedback:
        letters = _letters(value)
        if letters is None or len(letters) != 1 or not letters <= {self.right, *self.why}:
            return refused(f"Answer with one letter of {', '.join(sorted({self.right, *self.why}))}, as text.")
        (letter,) = letters
        return Feedback(True, RIGHT) if letter == self.right else Feedback(False, f"({letter}) {self.why[letter]}")


@dataclass(frozen=True)
class Several(Key):
    """right: the letters of all that hold, as in "ac". why: for every letter, what to think about if it is wrong."""

    right: str
    why: Mapping[str, str]

    def mark(self, value: object) -> Feedback:
        letters = _letters(value)
        if letters is None or not letters <= {*self.right, *self.why}:
            known = ", ".join(sorted({*self.right, *self.why}))
            return refused(f"Answer with the letters of all that hold, of {known}, as in 'ab'.")
        off = sorted(letters ^ set(self.right))
        if not off:
            return Feedback(True, RIGHT)
        first = off[0]
        return Feedback(False, f"{len(off)} to change; begin with ({first}): {self.why.get(first, 'look again.')}")


@dataclass(frozen=True)
class Listing(Key):
    """A list with a key for each of its answers, in order."""

    keys: Sequence[Key]

    def mark(self, value: object) -> Feedback:
        if not isinstance(value, (list, tuple)) or len(value) != len(self.keys):
            got = f"{len(value)} of them" if isinstance(value, (list, tuple)) else "no list"
            return refused(f"Answer with a list of {len(self.keys)}; this is {got}.")
        for i, (key, item) in enumerate(zip(self.keys, value, strict=True)):
            feedback = key.mark(item)
            if not feedback.right:
                return Feedback(False, f"Answer {i + 1} of {len(self.keys)}: {feedback.why}", counted=feedback.counted)
        return Feedback(True, RIGHT)


def find_key(chapter: str, name: str, **numbers: float) -> Key:
    """The key of the answer `name` ("ring_megabytes") of a chapter ("03_collectives"), for these numbers."""
    where = f"labkit.chapters.c{chapter}.keys"
    try:
        make = getattr(import_module(where), name)
    except (ImportError, AttributeError):
        raise ValueError(f"{where} has no key {name!r}") from None
    key = make(**numbers)
    assert isinstance(key, Key)
    return key


def _letters(value: object) -> set[str] | None:
    """ "b", "(b)", "a, c", ["a", "c"] as a set of lower-case letters; None for anything else."""
    if isinstance(value, (list, tuple)):
        value = " ".join(item for item in value if isinstance(item, str))
    if not isinstance(value, str) or len(value) > 100:
        return None
    found = re.sub(r"\band\b|[\s(),.;]", "", value.lower())
    return set(found) if found.isalpha() and found.isascii() else None
