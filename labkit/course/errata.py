"""Where the sources contradict themselves, each line with what follows by computing: appendix A.

errata()                    all lines, by id, in the order of the file
errata()["nvlink-both"].claim()
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Erratum:
    """One line. `says`: the source's number as `Claim` reads it; `quote`: its words, where these say it better.

    found: the expression that gives ours, which sees `values`. see: a chapter's number and a heading there.
    """

    id: str
    kind: str
    source: Source
    place: str
    what: str
    says: str
    found: str
    see: str
    unit: str = ""
    quote: str = ""
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


def erratum(id: str) -> Erratum:
    """The line of that id. Raises CourseError, with one like it, if there is none."""
    if id not in errata():
        raise CourseError(f"there is no line {id!r}{did_you_mean(id, errata())}: ids stand in the first column")
    return errata()[id]


def groups() -> Mapping[str, str]:
    """The kinds of lines, and what each is called."""
    told: dict[str, str] = read_toml(PATH)["group"]
    return told


def _entry(row: dict[str, Any]) -> Erratum:
    where = f"errata: {row.get('id')!r}"
    source = Source.parse(row.get("source", ""))
    if not load().cites(source):
        raise CourseError(f"{where} cites {source}, which is no section of a source")
    if row.get("kind") not in groups():
        raise CourseError(f"{where} is of kind {row.get('kind')!r}: use one of {', '.join(groups())}")
    values = row.pop("with", {})
    try:
        return Erratum(**{**row, "source": source, "values": values})
    except TypeError as error:
        raise CourseError(f"{where}: {error}") from None
