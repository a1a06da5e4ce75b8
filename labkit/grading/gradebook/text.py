"""What students wrote, made fit for a file: nothing in it acts on a terminal, a spreadsheet or a parser of XML."""

from __future__ import annotations

import re

# Control characters but tab and line feed, halves of surrogate pairs, non-characters, and marks that turn the direction
# of text around: a name could look like another with them.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def clean(text: str) -> str:
    """The text without colour codes, line ends as \\n, and a � for every character that is fit for no file."""
    return _UNFIT.sub("\ufffd", _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))


def points(value: float) -> str:
    """2, 0.5, 3.67: at most two decimals, no trailing zero."""
    return f"{round(value, 2):g}" if abs(value) < 1e5 else f"{value:.2f}"


def counted(count: int, noun: str) -> str:
    """1 student, 2 students."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: list[str], most: int = 8) -> str:
    """a, b and 3 more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
