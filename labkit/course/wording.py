"""Text with places in it: "Each of {world_size} ranks holds {format_bytes(nbytes)}."

A place is a Python expression, with a format behind a colon where wanted: `{share:.0%}`. Expressions see
`cost` (labkit.cost), the units (MB, GiB, MS ...), a few functions, and the values that the notebook passes.
`{{` and `}}` are braces. Chapter files come with labkit and are trusted: the short list of names keeps expressions
plain, it is no sandbox.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from labkit import cost
from labkit.cost import units
from labkit.course.errors import CourseError, did_you_mean

_BUILTINS = (
    abs,
    all,
    any,
    bool,
    enumerate,
    float,
    int,
    len,
    list,
    max,
    min,
    range,
    round,
    sorted,
    str,
    sum,
    tuple,
    zip,
)
_MATH = ("ceil", "exp", "floor", "inf", "log", "log2", "log10", "pi", "sqrt")
ALWAYS: dict[str, Any] = {
    "cost": cost,
    "format_bytes": units.format_bytes,
    "format_seconds": units.format_seconds,
    "format_bandwidth": units.format_bandwidth,
    **{name: getattr(math, name) for name in _MATH},
    **{name: value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, (int, float))},
    **{function.__name__: function for function in _BUILTINS},
}
_OPEN, _CLOSE = "([{", ")]}"


class Words:
    """Fills in texts and computes expressions with the values of one chapter.

    values: what the notebook passed, by name. where: how errors name the place, "03_collectives.toml, ring-bytes".
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        taken = sorted(ALWAYS.keys() & values.keys())
        if taken:
            raise CourseError(f"{where}: {taken[0]!r} has a meaning in every text already: pass it by another name")
        self.values, self.where = dict(values), where

    def using(self, extra: Mapping[str, str]) -> Words:
        """These words with more values: an entry's own, each an expression that sees those before it."""
        words = self
        for name, expression in extra.items():
            words = Words({**words.values, name: words.value(expression)}, self.where)
        return words

    def value(self, expression: str) -> Any:
        """What `expression` comes to. Raises CourseError: an unknown name, or an expression that fails."""
        try:
            return eval(expression, {"__builtins__": {}, **ALWAYS, **self.values})  # noqa: S307
        except NameError as error:
            name = error.name or str(error)
            known = sorted(self.values)
            raise CourseError(
                f"{self.where}: {{{expression}}} needs {name!r}, which nobody passed{did_you_mean(name, known)}. "
                f"Passed: {', '.join(known) or 'nothing'}. Run the cells above, or pass {name}=... in this cell"
            ) from None
        except Exception as error:
            raise CourseError(f"{self.where}: {{{expression}}} fails: {type(error).__name__}: {error}") from None

    def fill(self, text: str) -> str:
        """`text` with the value of each expression in its place."""
        return "".join(
            literal if expression is None else self._written(expression, form)
            for literal, expression, form in pieces(text, self.where)
        )

    def _written(self, expression: str, form: str) -> str:
        value = self.value(expression)
        if not form:
            return plain(value)
        try:
            return format(value, form)
        except (TypeError, ValueError) as error:
            raise CourseError(f"{self.where}: {{{expression}:{form}}} fails: {error}") from None


def plain(value: Any) -> str:
    """A value as the book's tables write it: whole numbers with commas, others with four digits, the rest as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def pieces(text: str, where: str) -> Iterator[tuple[str, str | None, str]]:
    """The parts of `text`: (literal, None, "") or ("", expression, format). Raises CourseError at a loose brace."""
    at = 0
    while at < len(text):
        char = text[at]
        if char not in "{}":
            end = next((i for i in range(at, len(text)) if text[i] in "{}"), len(text))
            yield text[at:end], None, ""
            at = end
        elif text[at : at + 2] == char * 2:
            yield char, None, ""
            at += 2
        elif char == "}":
            raise CourseError(f"{where}: a single }} in {text!r}: double the braces that are meant to be seen")
        else:
            expression, form, at = _place(text, at + 1, where)
            yield "", expression, form


def _place(text: str, start: int, where: str) -> tuple[str, str, int]:
    """The place that begins at `start`: expression, format, and where the text goes on."""
    depth, quote, colon = 0, "", -1
    for i in range(start, len(text)):
        char = text[i]
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and colon < 0:
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE and depth:
            depth -= 1
        elif char == ":" and not depth and colon < 0:
            colon = i
        elif char == "}":
            end = colon if colon >= 0 else i
            expression = text[start:end].strip()
            checked(expression, where)
            return expression, text[end + 1 : i] if colon >= 0 else "", i + 1
    raise CourseError(f"{where}: {{{text[start : start + 30]}... is never closed: double the braces meant to be seen")


def checked(expression: str, where: str) -> str:
    """`expression` itself, if Python can read it."""
    try:
        compile(expression, where, "eval")
    except (SyntaxError, ValueError):
        raise CourseError(
            f"{where}: {{{expression}}} is no Python expression (braces of LaTeX must be doubled)"
        ) from None
    return expression
