"""The notation page and the glossary page."""

from __future__ import annotations

from labkit.course.file import Course
from labkit.course.pages.markdown import NOTE, link, table
from labkit.course.words import glossary, notation


def notation_page(course: Course) -> str:
    letters = [
        [f"${symbol.latex}$", symbol.meaning, symbol.unit or "none", _number(course, symbol.chapter)]
        for symbol in sorted(notation().symbols, key=lambda symbol: symbol.chapter)
    ]
    units = [[unit.unit, unit.meaning] for unit in notation().units]
    conflicts = [[c.source, c.symbol, c.there, c.here] for c in notation().conflicts]
    return NOTE + "\n".join(
        [
            "# Notation\n",
            "The same letters in all chapters. A time is in seconds, a size in bytes.\n",
            table(["letter", "meaning", "unit", "chapter"], letters, ["chapter"]),
            "## Units\n",
            table(["unit", "meaning"], units),
            "## Where the sources differ\n",
            "The sources use some letters otherwise, and not all in the same way.\n",
            table(["source", "letter", "there", "here"], conflicts),
        ]
    )


def glossary_page(course: Course) -> str:
    rows = [
        [f"**{term.en}**" + "".join(f", {other}" for other in term.also), term.zh, term.text,
         _number(course, term.chapter)]
        for term in glossary().terms
    ]  # fmt: skip
    return NOTE + "\n".join(
        [
            "# Glossary\n",
            f"{len(rows)} terms, in English and Chinese, with the chapter that introduces them.\n",
            table(["term", "中文", "meaning", "chapter"], rows, ["chapter"]),
        ]
    )


def _number(course: Course, number: int) -> str:
    chapter = course.chapter(number)
    return link(chapter, str(number))
