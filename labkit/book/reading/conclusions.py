"""Sentences that a chapter makes from its results, kept with the numbers that they rest on.

    book.conclude(
        "Inside a node the sums take {inside:.0%} of the step.",
        {"across > 0.5": "Across nodes they take most of it.", "across <= 0.5": "Across nodes {across:.0%}."},
        inside=0.16, across=0.63)

Typed beside a result, a sentence is true for one machine and one choice of parameters. Here the result chooses it. What
was claimed lies in the notebook with its numbers, and `tests/book/test_parameter_grids.py` looks at it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.book.drawing.listing import Source, source
from labkit.book.reading.records import plain

CONCLUSION = "application/vnd.labkit.conclusion+json"
KNOWN = {"abs": abs, "all": all, "len": len, "max": max, "min": min}  # what a claim may call


@dataclass(frozen=True)
class Conclusion:
    """A paragraph of Markdown, the claims that its sentences were chosen by, and the numbers behind both."""

    text: str
    claims: tuple[str, ...]
    numbers: Mapping[str, Any]

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        kept = {"schema": 1, "claims": list(self.claims), "numbers": dict(self.numbers)}
        return {CONCLUSION: kept, "text/markdown": self.text, "text/plain": self.text}


def whose(function: Callable[..., object]) -> str:
    """ "your", or "the book's" where the book's function stands in, because the reader's is not right."""
    return "the book's" if function.__module__.startswith("labkit.chapters.") else "your"


def around(written: Callable[..., object], code: Any, only: str = "") -> Source | None:
    """The book's code around what the reader has written, once that is right: it would give the answer away before.
    only: the statement of it that begins so."""
    return source(code, only=only) if whose(written) == "your" else None


def conclude(*sentences: str | Mapping[str, str], **numbers: object) -> Conclusion:
    """A paragraph for the reader, to show as the last expression of a cell.

    sentences: text with fields as in `str.format`, such as "{ratio:.1f} times", or {claim: text}, of which the first
    is said whose claim holds. A claim is an expression over `numbers`: numbers, texts, None, lists and dicts,
    kept with six significant digits.
    Raises ValueError if none of several claims holds: the author has not thought of such a result.
    """
    kept = {name: _six(plain(name, value, "conclude")) for name, value in numbers.items()}
    said, claims = [], []
    for sentence in sentences:
        if isinstance(sentence, Mapping):
            claim = next((claim for claim in sentence if holds(claim, kept)), None)
            if claim is None:
                values = ", ".join(f"{name}={value!r}" for name, value in kept.items())
                raise ValueError(f"conclude(): none of {list(sentence)} holds with {values}: add what is true then")
            claims.append(claim)
            sentence = sentence[claim]
        said.append(sentence.format(**kept))
    return Conclusion(" ".join(text for text in said if text), tuple(claims), kept)


def _six(value: Any) -> Any:
    """Floats to six significant digits, so that the last bits of another machine make no other notebook."""
    if isinstance(value, dict):
        return {name: _six(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_six(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def holds(claim: str, numbers: Mapping[str, Any]) -> bool:
    """Is `claim` true of `numbers`? Raises what Python raises for an expression that cannot be computed."""
    return bool(eval(claim, {"__builtins__": KNOWN, **numbers}))
