"""Regions of a cell between a BEGIN and an END line, as nbgrader marks them.

nbgrader takes any line that contains the words for a marker. Here a marker stands alone on its line, so that the two
never disagree; in Markdown it may stand in a comment, where a reader of the source does not see it as a heading.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Markers(NamedTuple):
    """The words of a pair of markers: "SOLUTION" for `### BEGIN SOLUTION` and `### END SOLUTION`."""

    words: str

    def is_line(self, line: str, end: str) -> bool:
        """Whether `line` is the marker; end: "BEGIN" or "END"."""
        return bool(re.fullmatch(rf"\s*(<!--\s*)?### {end} {self.words}(\s*-->)?\s*", line))

    def mentioned(self, line: str) -> bool:
        """Whether nbgrader would take `line` for a marker."""
        return f"BEGIN {self.words}" in line or f"END {self.words}" in line


SOLUTION = Markers("SOLUTION")
HIDDEN_TESTS = Markers("HIDDEN TESTS")


def faults(source: str, markers: Markers) -> list[str]:
    """What is wrong with the markers of a cell, in words; empty when every BEGIN has its END."""
    found = []
    opened = 0
    for number, line in enumerate(source.split("\n"), 1):
        if markers.is_line(line, "BEGIN"):
            if opened:
                found.append(f"line {number} begins a region inside the one of line {opened}: end that one first")
            opened = number
        elif markers.is_line(line, "END"):
            if not opened:
                found.append(f"line {number} ends a region that never began: add ### BEGIN {markers.words}")
            opened = 0
        elif markers.mentioned(line):
            end = "BEGIN" if "BEGIN" in line else "END"
            found.append(f"line {number} is no marker, but nbgrader takes it for one: write ### {end} {markers.words}")
    if opened:
        found.append(f"the region of line {opened} never ends: add ### END {markers.words}")
    return found


def count(source: str, markers: Markers) -> int:
    """How many regions begin in the cell."""
    return sum(markers.is_line(line, "BEGIN") for line in source.split("\n"))


def inside(source: str, markers: Markers) -> list[str]:
    """The lines between the markers, of all regions, without the markers."""
    kept: list[str] = []
    _walk(source, markers, kept.append, lambda indent: [])
    return kept


def replaced(source: str, markers: Markers, by: list[str]) -> str:
    """The cell with each region replaced by the lines `by`, as far to the right as its BEGIN."""

    def lines(indent: str) -> list[str]:
        return [indent + line if line else line for line in by]

    return "\n".join(_walk(source, markers, lambda line: None, lines))


def without(source: str, markers: Markers) -> str:
    """The cell without its regions, and without the gaps they leave: at most two empty lines, none at the end."""
    left = replaced(source, markers, [])
    return left if left == source else re.sub(r"\n{4,}", "\n\n\n", left).strip("\n")


def _walk(source: str, markers: Markers, keep: Callable[[str], None], instead: Callable[[str], list[str]]) -> list[str]:
    """The lines outside the regions, with `instead(indent)` at each BEGIN; `keep` gets the lines inside."""
    outside: list[str] = []
    open_region = False
    for line in source.split("\n"):
        if markers.is_line(line, "BEGIN"):
            open_region = True
            outside += instead(line[: len(line) - len(line.lstrip())])
        elif markers.is_line(line, "END"):
            open_region = False
        elif open_region:
            keep(line)
        else:
            outside.append(line)
    return outside
