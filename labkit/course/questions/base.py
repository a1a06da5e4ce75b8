"""What all questions share, and what the reader is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Self, TypeVar

from labkit.course.wording import Words

T = TypeVar("T")
RIGHT = "Right."


@dataclass(frozen=True)
class Feedback:
    """What an answer is told. why: Markdown, what is wrong with it. explanation: only with a right answer.

    counted: False where what was typed is no answer at all (empty, no number); such a try is not counted.
    """

    right: bool
    why: str
    explanation: str = ""
    counted: bool = True

    def __str__(self) -> str:
        return " ".join(part for part in (self.why, self.explanation) if part)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return "\n\n".join(part for part in (f"**{self.why}**" if self.right else self.why, self.explanation) if part)


def refused(why: str) -> Feedback:
    """What was typed is no answer: say what to type."""
    return Feedback(False, why, counted=False)


@dataclass(frozen=True, repr=False)
class Question(ABC):
    """One question of a quiz, with its numbers filled in. Texts are Markdown."""

    id: str
    kind: str
    objective: str
    source: str
    prompt: str
    explanation: str

    @classmethod
    @abstractmethod
    def ask(cls, entry: Mapping[str, Any], words: Words, seed: str) -> Self:
        """The question of a `[[quiz]]` entry."""

    @abstractmethod
    def mark(self, value: object) -> Feedback:
        """Right or wrong, and why. Any value at all gets a Feedback."""

    @abstractmethod
    def shown(self) -> dict[str, Any]:
        """What a form needs beside id, kind and prompt, as plain JSON; without the key."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What stands below the prompt where there is only text; without the key."""

    @abstractmethod
    def key(self) -> str:
        """The right answer in words: for a reader who gave up."""

    @abstractmethod
    def stored(self, value: Any) -> Any:
        """An answer as plain JSON that outlives another shuffle."""

    @abstractmethod
    def restored(self, stored: Any) -> Any:
        """The form's value for what `stored` made; None if the question has changed since."""

    def right(self) -> Feedback:
        return Feedback(True, RIGHT, self.explanation)

    def __repr__(self) -> str:
        return "\n".join([self.prompt, *self.lines()])


def common(entry: Mapping[str, Any], words: Words) -> dict[str, str]:
    """The fields of every kind."""
    filled = {name: words.fill(entry[name]).strip() for name in ("prompt", "explanation")}
    return {name: entry[name] for name in ("id", "kind", "objective", "source")} | filled


def shuffled(items: list[T], seed: str) -> list[T]:
    """The same order for the same seed, on every machine and in every process."""
    items = list(items)
    Random(seed).shuffle(items)
    return items


def one_of(value: object) -> object:
    """The only box of a form, which sends a list."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def letter(index: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[index]


def positions(value: object, count: int) -> list[int] | None:
    """What was picked, as positions among the `count` that are shown; None if it cannot be read.

    "b", "a c", "ac", "c, a, b", 1, [0, 2], ["a", "c"]: letters as shown, or positions from 0 as a form sends them.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        value = [value]
    if isinstance(value, str):
        value = [c for c in value.lower() if not (c.isspace() or c in ",;.()>")]
    if not isinstance(value, (list, tuple)):
        return None
    found = []
    for one in value:
        if isinstance(one, str) and len(one) == 1 and one.isascii():
            at = int(one) if one.isdigit() else ord(one.lower()) - ord("a")
        elif isinstance(one, int) and not isinstance(one, bool):
            at = one
        else:
            return None
        if not 0 <= at < count:
            return None
        found.append(at)
    return found
