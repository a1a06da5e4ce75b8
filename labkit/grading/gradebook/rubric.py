"""Free responses on their way to a person and back: rubric.csv.

Whoever marks fills in `points` and `comment`, and leaves the rest. A mark belongs to the words it was given for: when
the response has changed since, it is to be marked again, and the old mark stands in `note`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.grading.gradebook.errors import PolicyError
from labkit.grading.gradebook.names import Names
from labkit.grading.gradebook.sheets import number, read, written
from labkit.grading.gradebook.text import clean, points

COLUMNS = ("student", "notebook", "exercise", "title", "of", "response", "response_id", "points", "comment", "note")
LONGEST = 30_000  # characters of a response in a cell; a spreadsheet takes 32,767

Place = tuple[str, str, str]  # student, as shown; notebook; exercise


@dataclass(frozen=True)
class HandMark:
    """A row that came back. points: None while it waits. response_id: of the words that were marked, "" if unsaid."""

    points: float | None
    comment: str = ""
    response_id: str = ""
    note: str = ""
    where: str = ""


@dataclass(frozen=True)
class Response:
    """A free response. place: with the student's real name."""

    place: Place
    title: str
    of: float
    text: str


def id_of(text: str) -> str:
    """Names the words of a response; it begins with a letter, so that no spreadsheet takes it for a number."""
    return "r" + hashlib.sha256(clean(text).encode()).hexdigest()[:12]


def read_rubric(path: Path) -> dict[Place, HandMark]:
    """The marks of a sheet, by the names it has. Raises PolicyError: a missing column, no number, one place twice."""
    found: dict[Place, HandMark] = {}
    for line, row in read(path, ("student", "exercise", "points"), COLUMNS):
        where = f"{path.name}, line {line}"
        place = (row["student"], row.get("notebook", ""), row["exercise"])
        if place in found:
            raise PolicyError(f"{where}: {row['exercise']} of {row['student']} stands in {found[place].where} already")
        given = number(row["points"], where) if row["points"].strip() else None
        comment = row.get("comment", "").strip()
        found[place] = HandMark(given, comment, row.get("response_id", "").strip(), row.get("note", ""), where)
    return found


def with_real_names(marks: Mapping[Place, HandMark], names: Names) -> dict[Place, HandMark]:
    """The same marks: a sheet may name students or their pseudonyms."""
    return {(names.real(student), notebook, exercise): mark for (student, notebook, exercise), mark in marks.items()}


def preferring(these: Mapping[Place, HandMark], others: Mapping[Place, HandMark]) -> dict[Place, HandMark]:
    """Both, but of a place that is in both the one of `these`, if it has points."""
    marked = {place: mark for place, mark in these.items() if mark.points is not None}
    kept = {place: mark for place, mark in others.items() if (place[0], "", place[2]) not in marked}
    return {**these, **kept, **marked}


def merged(responses: Iterable[Response], marks: Mapping[Place, HandMark]) -> tuple[dict[Place, HandMark], list[str]]:
    """The mark of each response by its place, and what could not be used, in sentences.

    A response without a mark has one with points None. A mark without a notebook fits any.
    """
    found, problems, used = {}, [], set()
    for response in responses:
        student, notebook, exercise = response.place
        place = response.place if response.place in marks else (student, "", exercise)
        mark = marks.get(place, HandMark(None))
        used.add(place)
        if mark.points is not None and mark.points > response.of:
            problems.append(
                f"{mark.where}: {points(mark.points)} points for {exercise}, which has {points(response.of)}"
            )
            mark = HandMark(None, mark.comment, note=mark.note)
        elif mark.response_id not in ("", id_of(response.text)):
            mark = _outdated(mark)
        found[response.place] = mark
    for place, mark in marks.items():
        if place not in used and mark.points is not None:
            problems.append(f"{mark.where}: there is no free response of {place[0]} to {place[2]}")
    return found, problems


def _outdated(mark: HandMark) -> HandMark:
    if mark.points is None:
        return HandMark(None, mark.comment, note=mark.note)
    said = f"The response changed since it was marked: {points(mark.points)} points. {mark.comment}".strip()
    return HandMark(None, note=said)


def sheet(responses: Iterable[Response], marks: Mapping[Place, HandMark], names: Names) -> str:
    """rubric.csv: all free responses under the names that are shown, those that wait first."""
    rows = []
    for response in responses:
        mark = marks[response.place]
        student, notebook, exercise = response.place
        text = clean(response.text)
        cut = f"\n[... {len(text) - LONGEST} more characters in the submission]" if len(text) > LONGEST else ""
        rows.append({
            "student": names.shown(student), "notebook": notebook, "exercise": exercise, "title": response.title,
            "of": response.of, "response": text[:LONGEST] + cut, "response_id": id_of(response.text),
            "points": mark.points, "comment": mark.comment, "note": mark.note,
        })  # fmt: skip
    order = sorted(rows, key=lambda row: (row["points"] is not None, row["notebook"], row["exercise"], row["student"]))
    return written(COLUMNS, order)
