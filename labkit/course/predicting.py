"""Predictions: what the reader commits to before a run, and how it compares with the run afterwards.

A `Forecast` holds the declared answer; a page shows only its prompt, labels and choices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.course.errors import CourseError
from labkit.course.quantities import NoNumber, read_number
from labkit.course.questions.base import letter, positions
from labkit.course.questions.numeric import Slip, near, number, slips_of
from labkit.course.wording import Words, plain

Row = dict[str, object]


@dataclass(frozen=True)
class Forecast(ABC):
    """One prediction with its numbers filled in. declared: the answer that stands in for an absent reader."""

    id: str
    kind: str
    prompt: str
    declared: tuple[Any, ...]

    @abstractmethod
    def read(self, *values: object) -> tuple[Any, ...]:
        """What the reader answered, checked. Raises ValueError with words for the reader."""

    @abstractmethod
    def shown(self) -> dict[str, Any]:
        """What a form needs beside id, kind and prompt, as plain JSON; without the answer."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What stands below the prompt where there is only text; without the answer."""

    @abstractmethod
    def compare(self, given: Sequence[Any] | None, results: Sequence[Any], run: str) -> list[Row]:
        """Rows of a table: what, you, the run (in the column named `run`), and the difference in words."""

    def told(self, values: Sequence[Any]) -> str:
        """`values` in words."""
        return ", ".join(map(str, values))

    def why(self, given: Sequence[Any] | None, results: Sequence[Any]) -> str:
        """What was overlooked where the run came out otherwise: a known slip, or the way to the answer; or ""."""
        return ""


@dataclass(frozen=True)
class Box:
    """slips: wrong numbers that people arrive at. otherwise: what is said of any other wrong number.

    least, most: what can be answered at all. No count, time or share is negative, so `least` is 0 unless the answer is.
    whole: only whole numbers can be answered.
    """

    label: str
    unit: str
    slips: tuple[Slip, ...] = ()
    otherwise: str = ""
    least: float = -math.inf
    most: float = math.inf
    whole: bool = False

    def read(self, value: object) -> float:
        """Raises NoNumber with words for the reader."""
        number = read_number(value, self.unit)
        if not self.least <= number <= self.most:
            end, limit = ("less", self.least) if number < self.least else ("more", self.most)
            raise NoNumber(f"{plain(number)} is not possible here: it cannot be {end} than {plain(limit)}.")
        if self.whole and number != round(number):
            raise NoNumber(f"{plain(number)} is not possible here: type a whole number.")
        return number

    def why(self, mine: float) -> str:
        return next((slip.why for slip in self.slips if near(mine, slip.value, NEAR)), self.otherwise)


@dataclass(frozen=True)
class Numbers(Forecast):
    """One number a box, each in its unit."""

    boxes: tuple[Box, ...]

    def read(self, *values: object) -> tuple[float, ...]:
        if len(values) == 1 and isinstance(values[0], (list, tuple)):
            values = tuple(values[0])
        if len(values) != len(self.boxes):
            asked = ", ".join(repr(box.label) for box in self.boxes)
            raise ValueError(f"{len(self.boxes)} numbers are asked for ({asked}), {len(values)} were given")
        read = []
        for box, value in zip(self.boxes, values, strict=True):
            try:
                read.append(box.read(value))
            except NoNumber as error:
                raise ValueError(f"{box.label}: {error}" if len(self.boxes) > 1 else str(error)) from None
        return tuple(read)

    def shown(self) -> dict[str, Any]:
        return {"boxes": [{"label": box.label, "unit": box.unit} for box in self.boxes]}

    def lines(self) -> list[str]:
        return [f"- {box.label}: ____{f' ({box.unit})' if box.unit else ''}" for box in self.boxes]

    def compare(self, given: Sequence[Any] | None, results: Sequence[Any], run: str) -> list[Row]:
        if len(results) != len(self.boxes):
            raise ValueError(f"prediction {self.id!r} has {len(self.boxes)} boxes: compare(...) needs as many numbers")
        rows: list[Row] = []
        for i, (box, result) in enumerate(zip(self.boxes, results, strict=True)):
            mine = None if given is None else given[i]
            label = box.label if not box.unit or box.unit in box.label else f"{box.label} ({box.unit})"
            row: Row = {"": label, "you": NOT_PREDICTED if mine is None else mine, run: result}
            rows.append(row if mine is None else row | {"your number is": ratio(mine, float(result), box.unit)})
        return rows

    def told(self, values: Sequence[Any]) -> str:
        return ", ".join(f"{plain(v)} {box.unit}".strip() for v, box in zip(values, self.boxes, strict=True))

    def why(self, given: Sequence[Any] | None, results: Sequence[Any]) -> str:
        if given is None:
            return ""
        each = zip(self.boxes, given, results, self.declared, strict=True)
        said = [box.why(mine) for box, mine, *right in each if not any(near(mine, r, NEAR) for r in right)]
        return " ".join(dict.fromkeys(filter(None, said)))


@dataclass(frozen=True)
class Pick(Forecast):
    """One of the choices; values are positions in the file, from 0."""

    choices: tuple[str, ...]
    otherwise: str = ""

    def read(self, *values: object) -> tuple[int, ...]:
        value = values[0] if len(values) == 1 else values
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and value in self.choices:
            return (self.choices.index(value),)
        found = positions(value, len(self.choices))
        if found is None or len(found) != 1:
            raise ValueError(f"pick one: {letter(0)} to {letter(len(self.choices) - 1)}")
        return (found[0],)

    def shown(self) -> dict[str, Any]:
        return {"choices": list(self.choices)}

    def lines(self) -> list[str]:
        return [f"- {letter(i)}) {choice}" for i, choice in enumerate(self.choices)]

    def compare(self, given: Sequence[Any] | None, results: Sequence[Any], run: str) -> list[Row]:
        right = self.read(*results) if results else self.declared
        if given is None:
            return [{"": "choice", "you": NOT_PREDICTED, run: self.told(right)}]
        if tuple(given) == right:
            return [{"": "choice", "you, and " + run: self.told(right)}]
        return [{"": "choice", "you": self.told(given), run: self.told(right)}]

    def told(self, values: Sequence[Any]) -> str:
        return self.choices[values[0]]

    def why(self, given: Sequence[Any] | None, results: Sequence[Any]) -> str:
        right = self.read(*results) if results else self.declared
        return "" if given is None or tuple(given) == right else self.otherwise


@dataclass(frozen=True)
class Sketch(Forecast):
    """One level a column. x: labels of the columns. y: levels that can be drawn, low to high."""

    x: tuple[str, ...]
    y: tuple[float, ...]
    x_label: str
    y_label: str

    def read(self, *values: object) -> tuple[float, ...]:
        if len(values) == 1 and isinstance(values[0], (list, tuple)):
            values = tuple(values[0])
        if len(values) != len(self.x):
            raise ValueError(f"{len(self.x)} columns are asked for ({', '.join(self.x)}), {len(values)} were given")
        return tuple(read_number(value) for value in values)

    def shown(self) -> dict[str, Any]:
        return {
            "x": list(self.x),
            "y": [int(v) if v == int(v) else v for v in self.y],
            "x_label": self.x_label,
            "y_label": self.y_label,
        }

    def lines(self) -> list[str]:
        levels = ", ".join(plain(level) for level in self.y)
        return [
            f"- one level of {self.y_label or 'y'} ({levels}) for each of {self.x_label or 'x'}: {', '.join(self.x)}"
        ]

    def compare(self, given: Sequence[Any] | None, results: Sequence[Any], run: str) -> list[Row]:
        found = self.read(*results) if results else self.declared
        rows: list[Row] = []
        for i, column in enumerate(self.x):
            row: Row = {self.x_label or "": column, "you": NOT_PREDICTED if given is None else given[i], run: found[i]}
            rows.append(row if given is None else row | {"you minus the run": given[i] - found[i]})
        return rows

    def told(self, values: Sequence[Any]) -> str:
        return ", ".join(f"{column}: {plain(v)}" for column, v in zip(self.x, values, strict=True))


NOT_PREDICTED = "not predicted"
NEAR = 0.02  # of a number: so near to a slip, or to the answer, it is that


def forecast(entry: Mapping[str, Any], words: Words) -> Forecast:
    """The prediction of a `[[prediction]]` entry. Raises CourseError."""
    id, kind, prompt = entry["id"], entry["kind"], words.fill(entry["prompt"]).strip()
    if kind == "number":
        answers = tuple(number(words, box["answer"]) for box in entry["boxes"])
        boxes = tuple(
            Box(
                words.fill(box["label"]),
                box.get("unit", ""),
                slips_of(box, words),
                words.fill(box.get("otherwise", "")),
                0 if answer >= 0 else -math.inf,
                number(words, box["most"]) if "most" in box else math.inf,
                box.get("whole", False),
            )
            for box, answer in zip(entry["boxes"], answers, strict=True)
        )
        return Numbers(id, kind, prompt, answers, boxes)
    if kind == "choice":
        choices, answer = tuple(words.fill(c) for c in entry["choices"]), words.value(entry["answer"].strip())
        if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
            raise CourseError(f"{words.where}: answer {answer!r} is no position among {len(choices)} choices, from 0")
        return Pick(id, kind, prompt, (answer,), choices, words.fill(entry.get("otherwise", "")))
    x, y, answer = (list(words.value(entry[name].strip())) for name in ("x", "y", "answer"))
    if len(answer) != len(x) or len(y) < 2 or sorted(y) != y:
        raise CourseError(f"{words.where}: a sketch has one answer a column, and at least two levels, low to high")
    labels = (words.fill(entry.get(name, "")) for name in ("x_label", "y_label"))
    declared = tuple(float(v) for v in answer)
    return Sketch(id, kind, prompt, declared, tuple(map(plain, x)), tuple(float(v) for v in y), *labels)


def ratio(mine: float, result: float, unit: str = "") -> str:
    """A guess beside the truth in words: "too large by a factor of 3", "12 % too small"; percents in points."""
    if unit == "%" and mine != result:
        off = round(mine - result, 1)
        return f"{plain(abs(off))} points too {'large' if off > 0 else 'small'}" if off else "within 0.1 points"
    if mine == result or (result != 0 and abs(mine / result - 1) <= 0.01):
        return "right" if mine == result else "within 1 %"
    if result <= 0 or mine <= 0:
        off = mine - result
        return f"{plain(abs(off))} too {'large' if off > 0 else 'small'}"
    times = mine / result
    much = "large" if times > 1 else "small"
    if max(times, 1 / times) >= 1.95:  # what is told with two digits is 2
        by = float(f"{max(times, 1 / times):.2g}")
        return f"too {much} by a factor of {by:,.10g}"
    return f"{abs(times - 1):.0%} too {much}".replace("%", " %")
