"""What a course file must keep to. `check` raises CourseError for the first rule that is broken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from labkit.course.errors import CourseError, did_you_mean

CORE_LIMIT = 90  # minutes of reading and running that a chapter may ask of everyone

_FIELDS: dict[str, type] = {
    "number": int, "name": str, "title": str, "state": str, "core": bool, "prerequisites": list, "able": str,
    "builds_on": str, "core_minutes": int, "optional": list, "objectives": list, "sources": list, "weight": int,
    "assistant": int,
}  # fmt: skip


def check(table: dict[str, Any]) -> None:
    """Raise CourseError unless `table`, a parsed course.toml, keeps all rules."""
    rows = table.get("chapter", [])
    known = {f"{seed['id']} {section}" for seed in table.get("seed", []) for section in seed["sections"]}
    for place, row in enumerate(rows):
        _check_fields(place, row)
        _check_chapter(place, row, known)
    _check_prerequisites(rows)
    for row in table.get("appendix", []):
        if row.keys() != {"letter", "name", "title", "about"} or not row["name"].startswith(f"{row['letter']}_"):
            raise CourseError(f"an appendix has letter, name ('A_some_words'), title and about, and no more: {row}")
    total = sum(row["weight"] for row in rows)
    if total != 100:
        raise CourseError(f"the weights of the chapters add up to {total}: they are percent, make them 100")


def _check_fields(place: int, row: dict[str, Any]) -> None:
    where = f"chapter {row.get('number', f'in place {place}')}"
    for name, kind in _FIELDS.items():
        if name not in row:
            raise CourseError(f"{where} has no {name!r}: every chapter states it")
        if not isinstance(row[name], kind):
            raise CourseError(f"{where}: {name!r} is {row[name]!r}; it must be a {kind.__name__}")
    for name in row.keys() - _FIELDS.keys() - {"opening", "sittings"}:
        raise CourseError(f"{where} has {name!r}, which is no field{did_you_mean(name, _FIELDS)}")


def _check_chapter(place: int, row: dict[str, Any], known: set[str]) -> None:
    where = f"chapter {row['number']}"
    if row["number"] != place:
        raise CourseError(f"{where} stands in place {place}: chapters are numbered 0, 1, 2, ... in order")
    if not re.fullmatch(rf"{place:02d}_[a-z0-9_]+", row["name"]):
        raise CourseError(f"{where} is named {row['name']!r}: its notebook's name is like {place:02d}_some_words")
    if row["state"] not in ("written", "planned"):
        raise CourseError(f"{where} is in state {row['state']!r}: a chapter is written or planned")
    if not 0 < row["core_minutes"] <= CORE_LIMIT:
        raise CourseError(f"{where} takes {row['core_minutes']} minutes: a core of more than {CORE_LIMIT} must be cut")
    if row["weight"] < 0 or row["assistant"] < 0:
        raise CourseError(f"{where}: weight and assistant minutes cannot be negative")
    for name in ("able", "builds_on"):
        if not row[name].endswith("."):
            raise CourseError(f"{where}: {name!r} ends a sentence, so it ends with a full stop")
    if not row["objectives"]:
        raise CourseError(f"{where} has no objectives: a question must name one")
    _once(where, "objective", (objective["id"] for objective in row["objectives"]))
    _once(where, "optional section", (section["number"] for section in row["optional"]))
    _once(where, "source", row["sources"])
    for source in row["sources"]:
        if source not in known:
            raise CourseError(f"{where}: {source!r} is no section of a source{did_you_mean(source, known)}")


def _once(where: str, what: str, ids: Iterable[Any]) -> None:
    seen = set()
    for id in ids:
        if id in seen:
            raise CourseError(f"{where} has {what} {id!r} twice")
        seen.add(id)


def _check_prerequisites(rows: list[dict[str, Any]]) -> None:
    """Earlier chapters only (so there is no circle), none that another one brings along, and core on core."""
    needs: list[set[int]] = []
    for row in rows:
        direct = row["prerequisites"]
        for before in direct:
            if not 0 <= before < row["number"]:
                raise CourseError(f"chapter {row['number']} builds on {before}: it can only build on earlier chapters")
            if row["core"] and not rows[before]["core"]:
                raise CourseError(f"core chapter {row['number']} builds on chapter {before}, which is optional")
            others = set().union(*(needs[other] for other in direct if other != before))
            if before in others:
                raise CourseError(f"chapter {row['number']} names {before}, which its other prerequisites bring along")
        if not direct and row["number"] > 0:
            raise CourseError(f"chapter {row['number']} builds on no chapter: only chapter 0 does that")
        needs.append(set(direct).union(*(needs[before] for before in direct)))
