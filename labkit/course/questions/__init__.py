"""The five kinds of question, each with its marking. `ask` makes one from a chapter file's entry and the values.

A question knows its key; `shown()` and `lines()` are all that a page may have of it before the reader asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.course.questions.base import Feedback, Question
from labkit.course.questions.choices import Choices
from labkit.course.questions.numeric import Numeric
from labkit.course.questions.order import Order
from labkit.course.questions.short_text import ShortText
from labkit.course.wording import Words

__all__ = ["KINDS", "Choices", "Feedback", "Numeric", "Order", "Question", "ShortText", "ask"]

KINDS: dict[str, type[Question]] = {
    "choice": Choices, "several": Choices, "numeric": Numeric, "order": Order, "text": ShortText,
}  # fmt: skip


def ask(entry: Mapping[str, Any], words: Words, seed: str) -> Question:
    """The question of a `[[quiz]]` entry with its numbers filled in, shuffled by `seed`. Raises CourseError."""
    return KINDS[entry["kind"]].ask(entry, words, seed)
