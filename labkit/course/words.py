"""The book's words and letters, from `course.toml` and the rooms of the chapters, read and checked.

glossary()      Terms, in alphabetical order; glossary().find("ring") is the term of that name or spelling
notation()      symbols and units of the formulas, and where a source uses a letter otherwise
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from labkit.course.errors import CourseError
from labkit.course.file import Source, course_table, load

LONGEST_SENTENCE = 25  # words
NO_TERM_BEGINS = frozenset("a an the each every no not never look follow compare predict".split())


@dataclass(frozen=True)
class Term:
    """A word of the book: English, Chinese, its meaning in one or two sentences, and the chapter that introduces it."""

    en: str
    zh: str
    chapter: int
    text: str
    also: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.en, *self.also)


@dataclass(frozen=True)
class Glossary:
    """All terms. `emphasis` lists bold phrases of the chapters that are no terms."""

    terms: tuple[Term, ...]
    emphasis: tuple[str, ...]

    def find(self, word: str) -> Term | None:
        """The term that is written so, in any case of its letters, or None."""
        for term in self.terms:
            if word.casefold() in {spelling.casefold() for spelling in term.spellings}:
                return term
        return None


@dataclass(frozen=True)
class Symbol:
    """A letter of the formulas: as typed, as LaTeX, its unit ("" for a plain number), its meaning, its chapter."""

    symbol: str
    latex: str
    unit: str
    meaning: str
    chapter: int


@dataclass(frozen=True)
class UnitName:
    unit: str
    meaning: str


@dataclass(frozen=True)
class Conflict:
    """A source writes `symbol` for `there`; this book writes `here` for it."""

    source: str
    symbol: str
    there: str
    here: str


@dataclass(frozen=True)
class Notation:
    symbols: tuple[Symbol, ...]
    units: tuple[UnitName, ...]
    conflicts: tuple[Conflict, ...]


@cache
def glossary() -> Glossary:
    """The glossary of this installation. Raises CourseError where its file breaks a rule."""
    table = course_table()
    terms = [Term(**{**row, "also": tuple(row.get("also", ()))}) for row in table["term"]]
    for term in terms:
        check_sentences(f"glossary: {term.en}", term.text, most=2)
    _each_once("glossary", (spelling.casefold() for term in terms for spelling in term.spellings))
    return Glossary(tuple(sorted(terms, key=lambda term: term.en.casefold())), tuple(table["emphasis"]))


@cache
def notation() -> Notation:
    """The notation of this installation. Raises CourseError where its file breaks a rule."""
    table = course_table()
    symbols = tuple(Symbol(**row) for row in table["symbol"])
    conflicts = tuple(Conflict(**row) for row in table["conflict"])
    _each_once("notation", (symbol.symbol for symbol in symbols))
    for conflict in conflicts:
        if not load().cites(Source.parse(conflict.source)):
            raise CourseError(f"notation: a conflict cites {conflict.source!r}, which is no section of a source")
    return Notation(symbols, tuple(UnitName(**row) for row in table["unit"]), conflicts)


def check_sentences(where: str, text: str, most: int) -> None:
    """Raise CourseError unless `text` is at most `most` sentences, each short and with a full stop."""
    if not text.endswith("."):
        raise CourseError(f"{where}: end the text with a full stop: {text!r}")
    sentences = re.split(r"(?<=\.) ", text)
    if len(sentences) > most:
        raise CourseError(f"{where}: {len(sentences)} sentences; {most} are enough: {text!r}")
    for sentence in sentences:
        if len(sentence.split()) > LONGEST_SENTENCE:
            raise CourseError(f"{where}: a sentence of more than {LONGEST_SENTENCE} words: {sentence!r}")


def bold_terms(markdown: str) -> list[str]:
    """The bold phrases of `markdown` that look like terms.

    Those have up to three words and no digit, do not end in punctuation, and do not begin like an instruction
    or with an article.
    """
    phrases = re.findall(r"(?<!\*)\*\*(\S|\S[^*]*?\S)\*\*(?!\*)", markdown)
    return [
        phrase
        for phrase in phrases
        if len(phrase.split()) <= 3
        and re.fullmatch(r"[^\d$`]*[^\W\d]", phrase)
        and phrase.split()[0].casefold() not in NO_TERM_BEGINS
    ]


def _each_once(where: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CourseError(f"{where}: {name!r} stands there twice")
        seen.add(name)
