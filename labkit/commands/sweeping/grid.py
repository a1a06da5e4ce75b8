"""The values of a sweep: `-p world_size=2,4,8 -p transport=local,gloo` is six runs."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from labkit.commands import UsageError
from labkit.commands.parameters import parse_parameters

Values = dict[str, object]


def grid(given: Sequence[str], notebook: Path) -> list[Values]:
    """All combinations of the values given, each checked against the chapter's parameters; the last varies fastest.

    Raises UsageError as for one run, and for no parameter at all, a list with a gap, or a value given twice.
    """
    if not given:
        raise UsageError("a sweep needs values to go through: for example -p world_size=2,4,8")
    parse_parameters([_first(item) for item in given], notebook)  # names, and a name given twice
    axes: list[list[Values]] = []
    for item in given:
        name, _, text = item.partition("=")
        axis: list[Values] = []
        for value in split_values(text):
            if not value:
                raise UsageError(f"-p {item}: there is no value {_place(text)}; write values as in {name}=2,4,8")
            one = parse_parameters([f"{name}={value}"], notebook)
            if one in axis:
                raise UsageError(f"-p {item}: {value} is there twice; keep one")
            axis.append(one)
        axes.append(axis)
    return [dict(pair for one in chosen for pair in one.items()) for chosen in itertools.product(*axes)]


def split_values(text: str) -> list[str]:
    """Split at commas that stand in no bracket and no quotes: "[1,2],[3]" is two values.

    A text with a comma goes in quotes. Unclosed brackets or quotes hold all that follows together; the value is then
    refused by its type, or is meant so.
    """
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and not values[-1].strip():
            quote = letter
        elif letter in "[({":
            depth += 1
        elif letter in "])}":
            depth = max(0, depth - 1)
        elif letter == "," and depth == 0:
            values.append("")
            continue
        values[-1] += letter
    return [value.strip() for value in values]


def _first(item: str) -> str:
    """The item with its first value only; one without a value as it is, for the message about that."""
    name, equals, text = item.partition("=")
    value = next((value for value in split_values(text) if value), "")
    if equals and name.strip() and not value:
        raise UsageError(f"-p {item}: there is no value after the =; write values as in {name}=2,4,8")
    return f"{name}{equals}{value}"


def _place(text: str) -> str:
    values = split_values(text)
    gap = values.index("")
    return "before the first comma" if gap == 0 else f"after {values[gap - 1]},"
