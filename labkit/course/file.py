"""The course: `course.toml`, and what each chapter says of itself in its room, read and checked.

    load()          the whole course
    load().chapter(3), load().written(), load().core()

What breaks a rule is refused with the chapter, the field and the remedy.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labkit.course.errors import CourseError
from labkit.course.file_rules import check

HERE = Path(__file__).parent
ROOMS = HERE.parent / "chapters"  # cNN_name/chapter.toml


@dataclass(frozen=True)
class Objective:
    """One thing the reader can do after the chapter: `text` ends the sentence "You will be able to"."""

    id: str
    text: str


@dataclass(frozen=True)
class OptionalSection:
    """A section of the notebook that nothing else needs: its number and heading there, and its minutes."""

    number: int
    heading: str
    minutes: int


@dataclass(frozen=True)
class Source:
    """A place in one of the sources: the seed's three digits, and the section in the seed's own numbering."""

    seed: str
    section: str

    def __str__(self) -> str:
        return f"{self.seed} {self.section}"

    @classmethod
    def parse(cls, text: str) -> Source:
        """The source written as "003 1.2.1"."""
        seed, _, section = text.partition(" ")
        return cls(seed, section)


@dataclass(frozen=True)
class Seed:
    """A source of the book: `id` is how it is cited, `sections` are those it may be cited by."""

    id: str
    title: str
    about: str
    sections: tuple[str, ...]


@dataclass(frozen=True)
class Chapter:
    """One chapter as its room describes it. Minutes are whole numbers, weights are percent."""

    number: int
    name: str
    title: str
    state: str
    core: bool
    prerequisites: tuple[int, ...]
    able: str
    builds_on: str
    core_minutes: int
    optional: tuple[OptionalSection, ...]
    objectives: tuple[Objective, ...]
    sources: tuple[Source, ...]
    weight: int
    assistant: int
    opening: str = ""  # what the first screen asks, in Markdown
    sittings: str = ""  # how the minutes are best divided, in a sentence

    @property
    def written(self) -> bool:
        return self.state == "written"

    @property
    def optional_minutes(self) -> int:
        return sum(section.minutes for section in self.optional)

    @property
    def minutes(self) -> int:
        """To read and run everything, the optional sections included."""
        return self.core_minutes + self.optional_minutes

    @property
    def in_a_sentence(self) -> str:
        """The title as it stands in the middle of a sentence: "collectives", but "ZeRO and FSDP"."""
        first, space, rest = self.title.partition(" ")
        ordinary = not any(letter.isupper() for letter in first[1:])
        return (first.lower() if ordinary else first) + space + rest

    def objective(self, id: str) -> Objective:
        """The objective with that id. Raises CourseError, naming those there are."""
        for objective in self.objectives:
            if objective.id == id:
                return objective
        known = ", ".join(objective.id for objective in self.objectives)
        raise CourseError(f"chapter {self.number} has no objective {id!r}: its objectives are {known}")


@dataclass(frozen=True)
class Appendix:
    """A notebook behind the chapters, which nothing builds on: its letter, and one sentence or two on what it holds."""

    letter: str
    name: str
    title: str
    about: str


@dataclass(frozen=True)
class Course:
    """All chapters, in order of number, the sources that they cite, and the appendices."""

    title: str
    chapters: tuple[Chapter, ...]
    seeds: tuple[Seed, ...]
    appendices: tuple[Appendix, ...] = ()

    def chapter(self, which: int | str) -> Chapter:
        """The chapter with that number (3 or "03") or name ("03_collectives"). Raises CourseError if there is none."""
        for chapter in self.chapters:
            if which in (chapter.number, chapter.name) or (str(which).isdecimal() and int(which) == chapter.number):
                return chapter
        raise CourseError(f"there is no chapter {which!r}: the last one is {self.chapters[-1].number}")

    def appendix(self, letter: str) -> Appendix:
        """The appendix of that letter. Raises CourseError if there is none."""
        for appendix in self.appendices:
            if appendix.letter == letter:
                return appendix
        raise CourseError(f"there is no appendix {letter!r}: there is {', '.join(a.letter for a in self.appendices)}")

    def written(self) -> tuple[Chapter, ...]:
        """The chapters whose notebook exists."""
        return tuple(chapter for chapter in self.chapters if chapter.written)

    def core(self) -> tuple[Chapter, ...]:
        """The chapters on every reader's path."""
        return tuple(chapter for chapter in self.chapters if chapter.core)

    def cites(self, source: Source) -> bool:
        """Is there such a section in such a source?"""
        return any(source.seed == seed.id and source.section in seed.sections for seed in self.seeds)

    def needs(self, number: int) -> frozenset[int]:
        """All chapters that come before this one: its prerequisites, theirs, and so on."""
        direct = self.chapter(number).prerequisites
        return frozenset(direct).union(*(self.needs(before) for before in direct))


def from_table(table: dict[str, Any]) -> Course:
    """The course that such a table (`course_table`) describes. Raises CourseError where it breaks a rule."""
    check(table)
    seeds = tuple(Seed(**{**seed, "sections": tuple(seed["sections"])}) for seed in table["seed"])
    appendices = tuple(Appendix(**row) for row in table.get("appendix", []))
    return Course(table["title"], tuple(map(_chapter, table["chapter"])), seeds, appendices)


def _chapter(row: dict[str, Any]) -> Chapter:
    plain = {key: value for key, value in row.items() if key not in ("optional", "objectives", "sources")}
    plain["prerequisites"] = tuple(row["prerequisites"])
    return Chapter(
        **plain,
        optional=tuple(OptionalSection(**section) for section in row["optional"]),
        objectives=tuple(Objective(**objective) for objective in row["objectives"]),
        sources=tuple(map(Source.parse, row["sources"])),
    )


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary. Raises CourseError, with the place, if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CourseError(f"{path.parent.name}/{path.name} is not valid TOML: {error}") from None


def course_table() -> dict[str, Any]:
    """`course.toml`, with lists `chapter`, `term` and `symbol` of what all rooms say."""
    table: dict[str, Any] = read_toml(HERE / "course.toml") | {"chapter": [], "term": [], "symbol": []}
    for path in sorted(ROOMS.glob("c*/chapter.toml")):
        room, name = read_toml(path), path.parent.name.removeprefix("c")
        number = int(name[:2]) if name[:2].isdecimal() else -1
        table["chapter"].append({"number": number, "name": name} | room.get("chapter", {}))
        for kind in ("term", "symbol"):
            table[kind] += [row | {"chapter": number} for row in room.get(kind, [])]
    return table


@cache
def load() -> Course:
    """The course of this installation. Read once; a change of a file needs a new process."""
    return from_table(course_table())
