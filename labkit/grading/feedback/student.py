"""The page of one student: each exercise, each check with its sentence, and what to do now."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePosixPath

from labkit.grading.feedback.html import Html, el, join, printed, table
from labkit.grading.feedback.style import feedback_page
from labkit.grading.feedback.wording import EVIDENCE, SIGNS, WORDS, state
from labkit.grading.gradebook.options import GradebookOptions
from labkit.grading.gradebook.rows import MISSING, Entry, Handed, Row, in_words, lost
from labkit.grading.gradebook.text import points
from labkit.grading.grader.results import Given

LONGEST = 6000  # characters of a text that a student wrote; of printed text the last ones


def student_page(row: Row, options: GradebookOptions) -> str:
    """A whole page for one student, under the name that is shown."""
    body = [el("h1", f"Feedback for {row.name}"), _sum(row)]
    if row.entries:
        body.append(_overview(row))
    for handed in row.handed:
        body += [el("h2", handed.notebook, id=handed.notebook), _facts(row, handed, options)]
        body += [_exercise(entry) for entry in handed.entries if _is_shown(entry, handed)]
    body.append(_what_now(row, options))
    return feedback_page(f"Feedback for {row.name}", join(body))


def anchor(entry: Entry) -> str:
    return f"{entry.column.notebook}-{entry.column.exercise}"


def _is_shown(entry: Entry, handed: Handed) -> bool:
    """Whether there is anything to say of an exercise beyond its line in the table."""
    absent = handed.result is None or handed.absent
    return not absent or entry.state != MISSING or entry.override is not None


def _sum(row: Row) -> Html:
    waits = f" {points(row.to_mark)} more points wait to be marked." if row.to_mark else ""
    costs = f" {points(row.penalty)} points were taken for lateness." if row.penalty else ""
    first = el("p", el("strong", points(row.score)), f" of {points(row.max_score)} points", class_="sum")
    absent = "Nothing was handed in." if row.absent else ""
    return join([first, el("p", f"{absent}{waits}{costs}".strip())] if absent or waits or costs else [first])


def _overview(row: Row) -> Html:
    missing = {anchor(e): h.notebook for h in row.handed for e in h.entries if not _is_shown(e, h)}
    rows = (
        [
            el("a", entry.column.title or entry.column.exercise, href=f"#{missing.get(anchor(entry), anchor(entry))}"),
            state(entry.state), _points(entry), entry.column.kind,
        ]
        for entry in row.entries
    )  # fmt: skip
    return table("All exercises", ["Exercise", "State", "Points", "Kind"], rows)


def _points(entry: Entry) -> str:
    return f"– of {points(entry.of)}" if entry.waits else f"{points(entry.points)} of {points(entry.of)}"


def _facts(row: Row, handed: Handed, options: GradebookOptions) -> Html:
    """What was judged, and by what. A path could name the student: of a file only its name is shown."""
    due = options.due(row.student, handed.notebook)
    facts = [("Due", _moment(due))] if due is not None else []
    if handed.result is None or handed.absent:
        problems = handed.result.submission.problems if handed.result is not None else ()
        said = " ".join(["This notebook was not handed in: its exercises count 0 points.", *problems])
        return join([_list(facts) if facts else "", el("p", said)])
    submission, grader = handed.result.submission, handed.result.grader
    if submission.file:
        facts.insert(0, ("File", PurePosixPath(submission.file).name))
    if submission.received:
        late = f" ({in_words(handed.late)} late{lost(handed)})" if handed.late is not None else ""
        facts.insert(1, ("Received", _moment(datetime.fromisoformat(submission.received)) + late))
    facts += [
        ("Submission", f"SHA-256 {submission.sha256[:16] or 'none'}"),
        ("Graded by", f"labkit {grader.labkit}, sandbox tier “{grader.tier or 'none'}”"),
        ("Inputs from", f"seed {grader.seed_id or 'unknown'} (its name, not its value)"),
    ]
    if grader.slow_factor != 1:
        facts.append(("Time limits", f"multiplied by {points(grader.slow_factor)}"))
    items = [el("li", problem) for problem in submission.problems]
    about = el("div", el("p", "About the file:"), el("ul", *items), class_="note") if items else Html("")
    return join([_list(facts), about])


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} {moment:%Z}".strip()


def _list(facts: list[tuple[str, str]]) -> Html:
    return el("dl", *(join([el("dt", name), el("dd", value)]) for name, value in facts), class_="facts")


def _exercise(entry: Entry) -> Html:
    column, graded = entry.column, entry.graded
    parts = [
        el("h3", column.title or column.exercise, id=anchor(entry)),
        el("p", state(entry.state), f", {_points(entry)} points ", el("span", f"({column.exercise})", class_="id")),
    ]
    if entry.override is not None:
        why = f"Your instructor set {points(entry.override.points)} points: {entry.override.reason}"
        parts.append(el("p", why, class_="note"))
    if entry.hand is not None:
        said = entry.hand.comment or "No comment was given."
        parts.append(el("div", el("p", "Marked by hand: ", points(entry.hand.points or 0), " points."),
                        printed(said, "Comment of the marker"), class_="note"))  # fmt: skip
    if entry.state == MISSING:
        parts.append(el("p", "There is no record of this exercise. That is 0 points."))
    if graded is not None:
        if graded.marks:
            parts.append(_checks(graded.marks, graded.title or column.exercise))
            parts += [_detail(mark) for mark in graded.marks if mark.detail]
        if graded.free_response:
            response = printed(_start(graded.free_response), "Your response")
            parts.append(_unfold(f"Your response to {column.exercise}", response))
        if graded.output.strip():
            output = printed(_end(graded.output), "Output of your code")
            parts.append(_unfold(f"What your code printed in {column.exercise}", output))
    return el("div", *parts, class_="exercise")


def _checks(marks: tuple[Given, ...], title: str) -> Html:
    if all(mark.state == "unattempted" for mark in marks):
        return el("p", next((mark.sentence for mark in marks if mark.sentence), "The stub is still there."))
    rows = (
        [
            mark.name.replace("_", " "), state(mark.state), f"{points(mark.points)} of {points(mark.of)}",
            el("span", _start(mark.sentence, 2000), class_="why"),
            join([EVIDENCE.get(mark.kind, mark.kind), " (not in your notebook)" if mark.hidden else ""]),
        ]
        for mark in marks
    )  # fmt: skip
    return table(f"Checks of “{title}”", ["Check", "Mark", "Points", "Why", "What was looked at"], rows)


def _detail(mark: Given) -> Html:
    return _unfold(f"Details of {mark.name.replace('_', ' ')}", printed(_end(mark.detail), "Traceback or diagnosis"))


def _unfold(title: str, content: Html) -> Html:
    return el("details", el("summary", title), content)


def _start(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[... {len(text) - most} more characters]"


def _end(text: str) -> str:
    return text if len(text) <= LONGEST else f"[{len(text) - LONGEST} characters before ...]\n{text[-LONGEST:]}"


def _what_now(row: Row, options: GradebookOptions) -> Html:
    hashes = ", ".join(
        f"{handed.notebook}: {handed.result.submission.sha256[:16] or 'no file'}, seed {handed.result.grader.seed_id}"
        for handed in row.handed
        if handed.result is not None and not handed.absent
    )
    signs = ", ".join(f"{SIGNS[name]} {WORDS[name]}" for name in WORDS)
    again = (
        "Open the notebook that you handed in, restart its kernel and run all cells. Each exercise ends with "
        "exercises.run(\"...\"), which runs the same public checks with new inputs every time. A mistake that depends "
        "on the number of ranks or on sizes shows after a few runs. To repeat one run, give the seed that it prints: "
        "open_exercises(..., seed=N). Checks that are “not in your notebook” ask the same of other inputs; their "
        "sentence says what they found. Here your code ran in a sandbox: without network, and with limits of time and "
        "memory."
    )  # fmt: skip
    regrade = (
        f"Write to {options.contact}. Name the exercise and the check, say why you think that the mark is wrong, and "
        f"copy this line: {row.name}; {hashes or 'nothing handed in'}. Then the same file can be graded again with the "
        "same inputs."
    )
    return join([
        el("h2", "What to do now"), el("h3", "See it yourself"), el("p", again), el("h3", "Ask for a regrade"),
        el("p", regrade), el("h3", "Signs on this page"), el("p", signs + "."),
    ])  # fmt: skip
