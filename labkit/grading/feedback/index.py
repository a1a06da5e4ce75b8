"""The instructor's page: students by exercises, what the class found hard, what counts how much, what graded."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from urllib.parse import quote

from labkit.grading.feedback.html import Html, el, join, table
from labkit.grading.feedback.statistics import checks, exercises, percents
from labkit.grading.feedback.style import feedback_page
from labkit.grading.feedback.wording import EVIDENCE, SIGNS, WORDS
from labkit.grading.gradebook.report import graders
from labkit.grading.gradebook.rows import MISSING, UNGRADED, Book, Entry, Row
from labkit.grading.gradebook.text import counted, points
from labkit.grading.grader.results import TO_MARK
from labkit.grading.sandbox.tiers import TIERS, words

MOST_CHECKS = 15


def index_page(book: Book, pages: Mapping[str, str]) -> str:
    """pages: the file of each student's page, by the name that is shown."""
    body = [
        el("h1", "Grades"), el("p", _overall(book)), _problems(book),
        el("h2", "Students"), _students(book, pages), el("p", _legend(), class_="id"),
        el("h2", "Checks that fail most"), _checks(book),
        el("h2", "Exercises"), _exercises(book),
        el("h2", "Weights"), _weights(book),
        el("h2", "What graded"), _graders(book),
    ]  # fmt: skip
    return feedback_page("Grades", join(body), wide=True)


def _overall(book: Book) -> str:
    shares = percents(book.rows)
    middle = f" The median is {points(round(median(shares), 1))} percent of what is marked." if shares else ""
    waiting = sum(entry.state == TO_MARK for row in book.rows for entry in row.entries)
    hand = f" {counted(waiting, 'response')} to mark by hand, in rubric.csv." if waiting else ""
    return f"{counted(len(book.rows), 'student')}, {counted(len(book.columns), 'exercise')}.{middle}{hand}"


def _problems(book: Book) -> Html:
    if not book.problems:
        return Html("")
    items = (el("li", problem) for problem in book.problems)
    return el("div", el("p", "Not used:"), el("ul", *items), class_="note")


def _students(book: Book, pages: Mapping[str, str]) -> Html:
    head = ["Student", "Points", "To mark", "Course", *(column.label for column in book.columns), "Notes"]
    rows = (
        [
            el("a", row.name, href=quote(pages[row.name])), f"{points(row.score)} of {points(row.max_score)}",
            points(row.to_mark) if row.to_mark else "", "" if row.grade is None else f"{points(round(row.grade, 1))} %",
            *(_cell(entry) for entry in row.entries), _notes(row),
        ]
        for row in book.rows
    )  # fmt: skip
    return el("div", table("Points by student and exercise", head, rows), class_="grid")


def _cell(entry: Entry) -> Html:
    """A sign and points; the word for who hears the page."""
    sign = el("span", SIGNS[entry.state], class_=f"state {entry.state.replace(' ', '-')}", aria_hidden="true")
    word = el("span", f" {WORDS[entry.state]}", class_="heard")
    set_by = " (set)" if entry.override is not None else ""
    return join([sign, word, " ", "" if entry.waits else points(entry.points) + set_by])


def _notes(row: Row) -> Html:
    if not row.notes:
        return Html("")
    if len(row.notes) == 1 and len(row.notes[0]) < 40:
        return join(row.notes)
    said = el("ul", *(el("li", note) for note in row.notes))
    return el("details", el("summary", counted(len(row.notes), "note")), said)


def _legend() -> str:
    return "Signs: " + ", ".join(f"{SIGNS[name]} {word}" for name, word in WORDS.items()) + "."


def _checks(book: Book) -> Html:
    found = checks(book)
    if not found:
        return el("p", "No check failed.")
    rows = (
        [
            f"{one.column.label}: {one.name.replace('_', ' ')}", f"{one.failed} of {one.attempted}",
            EVIDENCE.get(one.kind, one.kind), one.sentence[:300],
        ]
        for one in found[:MOST_CHECKS]
    )  # fmt: skip
    head = ["Check", "Failed, of those who attempted", "What was looked at", "Its most frequent sentence"]
    return table(f"The {min(len(found), MOST_CHECKS)} checks that fail most, of {len(found)} that fail", head, rows)


def _exercises(book: Book) -> Html:
    names = ("right", "partly", "wrong", "error", "unattempted", TO_MARK, MISSING, UNGRADED)
    rows = (
        [
            one.column.label, one.column.kind, points(one.column.of), *(str(one.states[name]) for name in names),
            "" if one.mean is None else f"{round(100 * one.mean)} %",
        ]
        for one in exercises(book)
    )  # fmt: skip
    head = ["Exercise", "Kind", "Points", *(WORDS[name].capitalize() for name in names), "Mean"]
    return table("How many students are in each state", head, rows)


def _weights(book: Book) -> Html:
    if not book.weights:
        return el("p", "None of these notebooks is a chapter of the course file: there is no course grade.")
    rows = (
        [f"{one.notebook}: {one.title}", f"{one.course} %", f"{one.share} %", str(one.assistant)]
        for one in book.weights
    )
    head = ["Chapter", "Of the course", "Of what is graded here", "Assistant, minutes for a group of thirty"]
    return table("From the course file", head, rows)


def _graders(book: Book) -> Html:
    found = graders(book)
    rows = ([f"labkit {g['labkit']}", g["tier"], g["seed_id"], g["overlay_sha256"][:16] or "none"] for g in found)
    tiers = sorted({grader["tier"] for grader in found} & {*TIERS})
    said = join(el("p", line) for tier in tiers for line in words(tier).splitlines())
    facts = table("Versions, sandbox tiers and seeds in these marks", ["Grader", "Tier", "Seed", "Overlay"], rows)
    return join([facts, el("details", el("summary", "What the sandbox keeps out, and what stays possible"), said)])
