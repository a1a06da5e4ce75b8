"""Where the sources contradict themselves, each line with what follows by computing: appendix A.

errata()                    all lines, by id, in the order of the file
errata()["nvlink-both"].claim()
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from labkit.cost import Claim
from labkit.course.errors import CourseError, did_you_mean
from labkit.course.file import ROOMS, Source, load, read_toml
from labkit.course.wording import Words

PATH = ROOMS / "cA_errata" / "errata.toml"
COMES = ("right", "then", "elsewhere")


@dataclass(frozen=True)
class Erratum:
    """One line. `says`: the source's number as `Claim` reads it; `quote`: its words, where these say it better.

    what: what it says, and why that cannot be. found: the expression that gives ours, which sees `values`. comes: what
    ours is, one of COMES: the value that follows from the inputs that the line names; what would follow if it were so;
    what other numbers of the source give, which may be wrong themselves.
    noun: what ours is, said after it. caught: ids of the questions that find the line, the one to ask first in front.
    see: a chapter's number and a heading there.
    """

    id: str
    kind: str
    source: Source
    place: str
    what: str
    says: str
    comes: str
    found: str
    see: str
    unit: str = ""
    quote: str = ""
    noun: str = ""
    caught: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def claim(self) -> Claim:
        """What it says beside what we find. Computes. Raises CourseError for an expression that fails."""
        found = Words({}, f"errata, {self.id}").using(self.values).value(self.found)
        return Claim(str(self.source), self.what, self.says, float(found), self.unit)

    @property
    def stated(self) -> str:
        """What the source says, as it is shown: its words in quotation marks, or its number with the unit."""
        bound, _, digits = self.says.rpartition(" ")
        number = f"{int(digits):,}" if digits.isdigit() else digits
        return f'"{self.quote}"' if self.quote else " ".join(part for part in (bound, number, self.unit) if part)

    @property
    def factor(self) -> float | None:
        """How many times ours is the number it says, or the end of its range that is nearer. None beside a 0."""
        found = self.claim().found
        ends = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", self.says)]
        return found / min(ends, key=lambda end: abs(found - end)) if found > 0 and all(ends) else None

    @property
    def chapter(self) -> int:
        """The number of the chapter where it matters."""
        return int(self.see[:2])

    @property
    def heading(self) -> str:
        """The heading there; the title of the chapter where none is named."""
        return self.see[3:] or load().chapter(self.chapter).title


@cache
def errata() -> Mapping[str, Erratum]:
    """All lines by id. Raises CourseError where the file breaks a rule."""
    found: dict[str, Erratum] = {}
    for row in read_toml(PATH)["erratum"]:
        entry = _entry(dict(row))
        if entry.id in found:
            raise CourseError(f"errata: {entry.id!r} stands in the file twice")
        found[entry.id] = entry
    return MappingProxyType(found)


def erratum(id: object) -> Erratum:
    """The line of that id, in small letters or not. Raises CourseError, with one like it, if there is none."""
    name = str(id).strip().lower()
    if name not in errata():
        raise CourseError(
            f"There is no finding {id!r}{did_you_mean(name, errata())}. "
            "The ids stand in the first column of the folded tables, in section 12."
        )
    return errata()[name]


def groups() -> Mapping[str, str]:
    """The kinds of lines, and what each is called."""
    told: dict[str, str] = read_toml(PATH)["group"]
    return told


def questions() -> Mapping[str, str]:
    """The questions that find most lines, and how they are asked."""
    told: dict[str, str] = read_toml(PATH)["question"]
    return told


def _entry(row: dict[str, Any]) -> Erratum:
    where = f"errata: {row.get('id')!r}"
    source = Source.parse(row.get("source", ""))
    if not load().cites(source):
        raise CourseError(f"{where} cites {source}, which is no section of a source")
    if row.get("kind") not in groups():
        raise CourseError(f"{where} is of kind {row.get('kind')!r}: use one of {', '.join(groups())}")
    if row.get("comes") not in COMES:
        raise CourseError(f"{where}: what we find is {row.get('comes')!r}: use one of {', '.join(COMES)}")
    caught = tuple(row.get("caught", ()))
    if unknown := set(caught) - set(questions()):
        raise CourseError(f"{where} is caught by {', '.join(sorted(unknown))}: use {', '.join(questions())}")
    values = row.pop("with", {})
    try:
        return Erratum(**{**row, "source": source, "values": values, "caught": caught})
    except TypeError as error:
        raise CourseError(f"{where}: {error}") from None
