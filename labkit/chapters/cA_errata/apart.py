"""A line as a question for a pencil: what the source says, what goes in, and then the arithmetic."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.chapters.cA_errata.pictures import found
from labkit.cost import units
from labkit.course.errata import Erratum
from labkit.course.file import read_toml

PENCIL = Path(__file__).with_name("pencil.toml")
MEANS = {"right": "", "then": ", if the sentence were true", "elsewhere": ", by other numbers of the same source"}


@dataclass(frozen=True)
class Pencil:
    """label: what the number is. ask: a question with all that goes in. way: the arithmetic, numbers alone."""

    id: str
    label: str
    ask: str
    way: str

    @property
    def written(self) -> str:
        """The arithmetic as one writes it."""
        return self.way.replace("*", "×").replace("1e9", "1,000,000,000")


@cache
def pencils() -> Mapping[str, Pencil]:
    """The questions by the ids of their lines."""
    return {row["id"]: Pencil(**row) for row in read_toml(PENCIL)["pencil"]}


def asked(entry: Erratum) -> str:
    """What the source says, and a question with all that a reader needs."""
    said = entry.what.partition(". But ")[0]
    stated = f"Its words: {entry.stated}." if entry.quote else f"Its number: {entry.stated}."
    return "\n".join([f"{entry.source}, {entry.place}. {said}. {stated}", pencils()[entry.id].ask])


def worked(entry: Erratum) -> list[str]:
    """The arithmetic with its result, what it means, and why the sentence cannot be."""
    but = "But " + entry.what.partition(". But ")[2]
    return [f"{pencils()[entry.id].written} = {found(entry)}{MEANS[entry.comes]}", but]


def pasted(entry: Erratum) -> str:
    """How a line is computed, as a cell that needs no other."""
    code = "\n".join([*(f"{name} = {value}" for name, value in entry.values.items()), entry.found])
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    of_units, of_math = sorted(names & set(vars(units))), sorted(names & {"log10", "log2", "sqrt", "exp", "ceil"})
    head = [f"from math import {', '.join(of_math)}"] if of_math else []
    head += ["from labkit import cost"] if "cost" in names else []
    head += [f"from labkit.cost.units import {', '.join(of_units)}"] if of_units else []
    return "\n".join([*head, code])


def number(entry: Erratum, typed: str) -> float | None:
    """The number that a reader typed, with the unit or without."""
    try:
        return float(typed.replace(",", "").replace(entry.unit or " ", "").strip())
    except ValueError:
        return None


def judged(entry: Erratum, typed: str) -> str:
    """One sentence about a reader's number."""
    mine, ours = number(entry, typed), entry.claim().found
    if mine is None:
        return f"{typed!r} is no number: type one such as 12.5." if typed.strip() else "You gave no number yet."
    if abs(mine - ours) <= 0.01 * abs(ours):
        return "Your number is ours."
    if mine in [float(end) for end in re.findall(r"\d+(?:\.\d+)?", entry.says)]:
        return f"You have what the source says. We get {found(entry)}."
    return f"You have {mine:g}, and we get {found(entry)}. Compare your arithmetic with ours."
