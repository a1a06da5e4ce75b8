"""A number with a unit. Known wrong numbers are explained; so are a lost factor of 1000 and bits for bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labkit.course.errors import CourseError
from labkit.course.quantities import NoNumber, kind_of, read_number
from labkit.course.questions.base import Feedback, Question, common, one_of, refused
from labkit.course.wording import Words, plain

TOLERANCE = 0.02  # of the answer, where the file says nothing else
CLOSE = 0.005  # a mix-up of units is recognised by its exact factor
_MIXED = (
    (1000.0, "{times} too {much}: count the zeros once more, and look at the unit asked for, {unit}."),
    (1e6, "{times} too {much}: count the zeros once more, and look at the unit asked for, {unit}."),
    (1e9, "{times} too {much}: count the zeros once more, and look at the unit asked for, {unit}."),
)
_OF_DATA = (
    (8.0, "Off by a factor of 8: bits and bytes. The answer is asked for in {unit}."),
    (
        2**20 / 1e6,
        "This is how a mix-up of MB (10^6 bytes) and MiB (2^20 bytes) looks. The answer is asked for in {unit}.",
    ),
    (
        2**30 / 1e9,
        "This is how a mix-up of GB (10^9 bytes) and GiB (2^30 bytes) looks. The answer is asked for in {unit}.",
    ),
)


@dataclass(frozen=True)
class Slip:
    """A wrong number that people arrive at, and what they did."""

    value: float
    why: str


@dataclass(frozen=True, repr=False)
class Numeric(Question):
    """answer: in `unit`. tolerance: as a part of the answer; with an answer of 0, of 1 unit.

    otherwise: what is said of a number that is nobody's known slip: the way to the right one.
    """

    answer: float
    unit: str
    tolerance: float
    slips: tuple[Slip, ...]
    otherwise: str = ""

    @classmethod
    def ask(cls, entry: Mapping[str, Any], words: Words, seed: str) -> Self:
        answer, tolerance = number(words, entry["answer"]), float(entry.get("tolerance", TOLERANCE))
        otherwise = words.fill(entry.get("otherwise", ""))
        return cls(
            **common(entry, words), answer=answer, unit=entry.get("unit", ""), tolerance=tolerance,
            slips=slips_of(entry, words), otherwise=otherwise,
        )  # fmt: skip

    def mark(self, value: object) -> Feedback:
        try:
            given = read_number(one_of(value), self.unit)
        except NoNumber as error:
            return refused(str(error))
        if near(given, self.answer, self.tolerance):
            return self.right()
        for slip in sorted(self.slips, key=lambda s: abs(s.value - given)):
            if near(given, slip.value, min(self.tolerance, 0.02)):
                return Feedback(False, slip.why)
        unit = re.sub(r"^(\w{3,})s$", r"\1", self.unit) if given == 1 else self.unit  # 1 GPU, and 1 ms
        said = f"{plain(given)}{' ' * bool(unit)}{unit} is not it. {self.otherwise}".strip()
        return Feedback(False, self._mixed_up(given) or said)

    def _mixed_up(self, given: float) -> str:
        kind = kind_of(self.unit)
        data = kind is not None and kind[0].startswith("data")
        if given == 0 or self.answer == 0 or given * self.answer < 0:
            return "The sign is wrong." if given == -self.answer != 0 else ""
        if self.unit == "%" and near(given * 100, self.answer, CLOSE):
            return "This is the share as a fraction of 1. The answer is asked for in %: or type the % sign yourself."
        for factor, text in _MIXED + (_OF_DATA if data else ()):
            for much, ratio in (("large", factor), ("small", 1 / factor)):
                if near(given, self.answer * ratio, CLOSE):
                    return text.format(times=f"{factor:,.0f} times", much=much, unit=self.unit or "a plain number")
        return ""

    def shown(self) -> dict[str, Any]:
        return {"boxes": [{"label": "Your answer", "unit": self.unit}]}

    def lines(self) -> list[str]:
        return [f"(a number{f' in {self.unit}' if self.unit else ''})"]

    def key(self) -> str:
        return f"{plain(self.answer)} {self.unit}".strip()

    def stored(self, value: Any) -> Any:
        return one_of(value)

    def restored(self, stored: Any) -> Any:
        return [str(stored)] if isinstance(stored, (str, int, float)) else None


def slips_of(entry: Mapping[str, Any], words: Words) -> tuple[Slip, ...]:
    """The known wrong numbers of an entry, filled in."""
    return tuple(Slip(number(words, s["value"]), words.fill(s["why"])) for s in entry.get("slips", []))


def number(words: Words, expression: str) -> float:
    """The finite number that `expression` comes to. Raises CourseError."""
    value = words.value(expression)
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise CourseError(f"{words.where}: {{{expression}}} is {value!r}, which is no number") from None
    if not math.isfinite(found):
        raise CourseError(f"{words.where}: {{{expression}}} is {found}: an answer is a finite number")
    return found


def near(value: float, answer: float, tolerance: float) -> bool:
    """Within `tolerance` of the answer, as a part of it; of an answer of 0, within `tolerance` of 1."""
    return math.isclose(value, answer, rel_tol=1e-9) or abs(value - answer) <= tolerance * (abs(answer) or 1.0)
