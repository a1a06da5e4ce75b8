"""Keys of derivations, with all numbers that a student may get, and of questions that are answered by letters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


def every_draw(**ranges: list[Any]) -> list[dict[str, Any]]:
    """All combinations of the numbers that `Exercises.given` draws from."""
    return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]


def tell_apart(keys: Iterable[Any]) -> None:
    """Assert that no slip is right, and that each is told apart by some numbers. keys: of one answer, many draws.

    Two slips may meet in the numbers of one student; then the reason is that of one of them.
    """
    told: set[str] = set()
    known: set[str] = set()
    for key in keys:
        assert key.mark(key.answer).right
        known |= {why for _, why in key.slips}
        for wrong, why in key.slips:
            feedback = key.mark(wrong)
            assert not feedback.right and any(text in feedback.why for _, text in key.slips), (wrong, feedback.why)
            told |= {why} if why in feedback.why else set()
    assert told == known


def letters_have_reasons(key: Any, right: str, letters: str) -> None:
    """Assert that of `letters` only `right` is right, and that each wrong choice, or one letter too few or too many, is
    told why."""
    assert key.mark(right).right
    for letter in letters:
        wrong = letter if len(right) == 1 else "".join(sorted(set(right) ^ {letter}))
        feedback = key.mark(wrong)
        assert feedback.right == (wrong == right) and feedback.why, wrong
        assert feedback.right or len(feedback.why) > 20, wrong
