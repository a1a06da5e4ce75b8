"""A word or two. Case, spaces, hyphens and punctuation do not matter."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labkit.course.questions.base import Feedback, Question, common, one_of, refused
from labkit.course.wording import Words

LONGEST = 200  # characters of an answer


@dataclass(frozen=True, repr=False)
class ShortText(Question):
    """accept: patterns of which one must fit the whole answer. slips: (pattern, why), looked for anywhere in it.

    A pattern fits if it fits any of the `forms` of the answer. answer: in words, for a reader who gave up.
    """

    accept: tuple[str, ...]
    slips: tuple[tuple[str, str], ...]
    answer: str
    otherwise: str = ""

    @classmethod
    def ask(cls, entry: Mapping[str, Any], words: Words, seed: str) -> Self:
        slips = tuple((s["match"], words.fill(s["why"])) for s in entry.get("slips", []))
        answer = words.fill(entry["answer"]) if "answer" in entry else ""
        otherwise = words.fill(entry.get("otherwise", ""))
        return cls(
            **common(entry, words), accept=tuple(entry["accept"]), slips=slips, answer=answer, otherwise=otherwise
        )

    def mark(self, value: object) -> Feedback:
        value = one_of(value)
        if not isinstance(value, str) or not normal(value):
            return refused("Type a word or two.")
        if len(value) > LONGEST:
            return refused("That is too long: a word or two are enough.")
        written = forms(value)
        if any(re.fullmatch(pattern, form, re.IGNORECASE) for pattern in self.accept for form in written):
            return self.right()
        slips = (why for pattern, why in self.slips for form in written if re.search(pattern, form, re.IGNORECASE))
        why = next(slips, "")
        return Feedback(False, why or f"“{value}” is not it. {self.otherwise}".strip())

    def shown(self) -> dict[str, Any]:
        return {}

    def lines(self) -> list[str]:
        return ["(a word or two)"]

    def key(self) -> str:
        return self.answer

    def stored(self, value: Any) -> Any:
        return one_of(value)

    def restored(self, stored: Any) -> Any:
        return stored if isinstance(stored, str) else None


def normal(text: str) -> str:
    """One space between words, no punctuation; "_" and "-" are spaces: "All-Reduce!" is "All Reduce"."""
    plain = unicodedata.normalize("NFKC", text)
    return " ".join("".join(c if c.isalnum() or c in "+%/." else " " for c in plain).split()).strip(". ")


def forms(text: str) -> list[str]:
    """The ways to write `text` that make no difference: as typed, and words joined by " ", "", "-" or "_"."""
    words = normal(text).split()
    return [" ".join(text.split()), *(between.join(words) for between in (" ", "", "-", "_"))]
