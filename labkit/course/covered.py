"""What the sources ask, warn of and name, and where the book answers: `coverage.toml`, read and checked.

coverage()                              all rows
problems(course, coverage(), notebooks) what does not hold of them, each in a sentence
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.course.errata import errata
from labkit.course.errors import CourseError
from labkit.course.file import HERE, ROOMS, Chapter, Course, Source, load, read_toml
from labkit.course.started import evidence

KINDS = {  # kind of row, and what its rows are
    "goal": "Goals",
    "objective": "Objectives of self-check questions",
    "fallacy": "Fallacies",
    "pitfall": "Pitfalls",
    "misconception": "Misconceptions",
    "checkpoint": "Checkpoints",
    "challenge": "Challenges",
    "system": "Named systems",
    "formula": "Formulas",
    "table": "Tables",
    "figure": "Figures",
    "scenario": "Failure scenarios",
}
WAYS = ("real", "simulated", "explained", "mentioned")  # how a written chapter answers, the strongest first
REFERENCE = re.compile(
    r"(?:(?P<kind>chapter|quiz|exercise|planned):(?P<number>\d\d)|appendix:(?P<letter>[A-Z]))"
    r"(?:[#/](?P<target>[a-z0-9][a-z0-9_-]*))?"
)


@dataclass(frozen=True)
class Reference:
    """A place in the book. `target`: a heading or cell, a question, an exercise, or an objective that is planned.

    In an appendix, whose `number` is its letter, a heading, a cell, or a line of its tables.
    """

    kind: str
    number: int | str
    target: str | None

    def __str__(self) -> str:
        mark = "#" if self.kind in ("chapter", "appendix") else "/"
        number = self.number if isinstance(self.number, str) else f"{self.number:02d}"
        return f"{self.kind}:{number}" + (f"{mark}{self.target}" if self.target else "")


@dataclass(frozen=True)
class Row:
    """One thing of one source, in our words, and the places that answer it. how: one of WAYS, or "" while planned."""

    kind: str
    source: Source
    what: str
    covered_by: tuple[Reference, ...]
    how: str = ""


def parse_reference(text: str) -> Reference:
    """The reference written as `text`. Raises CourseError for anything else."""
    match = REFERENCE.fullmatch(text)
    if match is not None:
        number = match["letter"] or int(match["number"])
        reference = Reference(match["kind"] or "appendix", number, match["target"])
        if str(reference) == text:
            return reference
    raise CourseError(
        f"coverage: {text!r} is no reference: write chapter:03#a-heading, quiz:03/an-id, exercise:03/an-id, "
        "appendix:A#a-line or planned:04/an-objective"
    )


@cache
def coverage() -> tuple[Row, ...]:
    """All rows, by kind, in the order of the file. Raises CourseError where the file breaks a rule."""
    table = read_toml(HERE / "coverage.toml")
    rows = []
    for kind, entries in table.items():
        if kind not in KINDS:
            raise CourseError(f"coverage: {kind!r} is no kind of row: use one of {', '.join(KINDS)}")
        for entry in entries:
            source = Source.parse(entry["source"])
            if not load().cites(source):
                raise CourseError(f"coverage: {entry['what']!r} cites {source}, which is no section of a source")
            if not entry["covered_by"]:
                raise CourseError(f"coverage: nothing covers {entry['what']!r} ({source}): plan an answer")
            references = tuple(map(parse_reference, entry["covered_by"]))
            rows.append(Row(kind, source, entry["what"], references, entry.get("how", "")))
            _check_how(rows[-1])
    return tuple(rows)


def _check_how(row: Row) -> None:
    """Raise CourseError unless a row says how it is answered exactly where it is."""
    if all(reference.kind == "planned" for reference in row.covered_by):
        if row.how:
            raise CourseError(f"coverage: {row.what!r} ({row.source}) is only planned, so it cannot be {row.how!r} yet")
    elif row.how not in WAYS:
        raise CourseError(f"coverage: how is {row.what!r} ({row.source}) answered? {row.how!r} is none of {WAYS}")


def problems(course: Course, rows: tuple[Row, ...], notebooks: Path) -> list[str]:
    """A sentence for each reference that leads nowhere, and for each row that is called real without a cell that is.

    notebooks: the folder of the chapters.
    """
    found = []
    for row in rows:
        wrong = [_wrong(course, reference, notebooks) for reference in row.covered_by]
        if row.how == "real" and not any(_on_ranks(course, x, notebooks) for x in row.covered_by):
            wrong.append("it is called real, but none of its places is a cell that starts ranks or shows what they did")
        found += [f"{row.kind} of {row.source}, {row.what!r}: {one}" for one in wrong if one]
    return found


def _on_ranks(course: Course, reference: Reference, notebooks: Path) -> bool:
    if reference.kind not in ("chapter", "exercise") or int(reference.number) >= len(course.chapters):
        return False
    path = _notebook(course.chapter(reference.number), reference, notebooks)
    return path.exists() and reference.target in evidence(path)


def _notebook(chapter: Chapter, reference: Reference, notebooks: Path) -> Path:
    folder = notebooks if reference.kind == "chapter" else notebooks.parent / "exercises"
    return folder / f"{chapter.name}.ipynb"


def _wrong(course: Course, reference: Reference, notebooks: Path) -> str:
    """What is wrong with a reference, or ""."""
    if reference.kind == "appendix":
        known = set(places(notebooks / f"{course.appendix(str(reference.number)).name}.ipynb")) | set(errata())
        return "" if reference.target in known else f"{reference} leads nowhere: it has {', '.join(sorted(known))}"
    if int(reference.number) >= len(course.chapters):
        return f"{reference} names a chapter that does not exist"
    chapter = course.chapter(reference.number)
    if reference.kind == "planned":
        if chapter.written:
            return f"{reference} is still planned, but chapter {chapter.number} is written: say where the answer stands"
        known = {objective.id for objective in chapter.objectives}
    elif not chapter.written:
        return f"{reference} names a chapter that is not written: use planned:{chapter.number:02d}/an-objective"
    elif reference.kind == "quiz":
        known = quiz_ids(chapter)
    else:
        known = set(places(_notebook(chapter, reference, notebooks)))
    if reference.target is None or reference.target not in known:
        return f"{reference} leads nowhere: chapter {chapter.number} has {', '.join(sorted(known)) or 'nothing there'}"
    return ""


def quiz_ids(chapter: Chapter) -> set[str]:
    """The ids of the questions in the chapter's room."""
    return {question["id"] for question in questions(chapter)}


def questions(chapter: Chapter) -> list[dict[str, str]]:
    """The quiz items of a chapter as its room has them."""
    path = ROOMS / f"c{chapter.name}" / "questions.toml"
    return list(read_toml(path).get("quiz", [])) if path.exists() else []


def places(notebook: Path) -> Iterator[str]:
    """What a reference may name in a notebook: its cells by id, its headings as in a link, without their numbers."""
    if not notebook.exists():
        return
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        yield cell["id"]
        if cell["cell_type"] == "markdown":
            for heading in re.findall(r"^#+ +(.+)$", "".join(cell["source"]), flags=re.MULTILINE):
                yield slug(heading)


def slug(heading: str) -> str:
    """ "9 Case file: 100 milliseconds" as "case-file-100-milliseconds"."""
    without_number = re.sub(r"^[\d.]+ +", "", heading)
    return re.sub(r"[^a-z0-9]+", "-", without_number.lower()).strip("-")
