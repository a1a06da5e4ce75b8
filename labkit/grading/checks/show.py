"""Marks for people: words and signs first, a frame second, and nothing told by colour alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from typing import Any

from labkit.grading.checks.marks import MARK, Mark, Outcome

SIGNS = {"right": "✓", "wrong": "✗", "error": "!", "unattempted": "○", "partly": "◐"}
WORDS = {
    "right": "right",
    "wrong": "not right yet",
    "error": "stopped with an error",
    "unattempted": "not attempted yet",
    "partly": "partly right",
}
AFTER_A_FAILURE = "The cell that ran before this one failed. If it was your answer, an older answer is judged here."


def number(points: float) -> str:
    """2 points, 0.5 points: without a trailing zero."""
    return f"{points:g}"


def headline(outcome: Outcome) -> str:
    """`ring-bytes: partly right, 2 of 4 points`."""
    return f"{outcome.exercise}: {WORDS[outcome.state]}, {number(outcome.points)} of {number(outcome.of)} points"


def text(outcome: Outcome, note: str = "") -> str:
    """The marks as plain text: a line a check, what it looked at, and its sentence. note: what is said before them."""
    lines = [f"{SIGNS[outcome.state]} {headline(outcome)}"]
    lines += [f"  {note}"] if note else []
    if outcome.state == "unattempted":
        return "\n".join([*lines, f"  {_sentence_of_stub(outcome)}"])
    for mark, sentence in _told(outcome):
        state = "" if mark.state == "right" else f"{WORDS[mark.state]}. "
        points = f"{mark.kind}, {number(mark.points)} of {number(mark.of)}"
        lines.append(f"  {SIGNS[mark.state]} {_words(mark.name)} ({points}): {state}{sentence}")
        lines += [f"      {line}" for line in mark.detail.splitlines()]
    return "\n".join(lines)


def html(outcome: Outcome, note: str = "") -> str:
    """The same as HTML: a list with an item a check, its sentence at full width, tracebacks to fold away."""
    head = f"<strong>{SIGNS[outcome.state]} {escape(headline(outcome))}</strong>"
    if note:
        head += f"<br><em>{escape(note)}</em>"
    frame = "border:1px solid currentColor;border-left-width:0.4em;padding:0.4em 0.8em;max-width:56em"
    if outcome.state == "unattempted":
        return f'<div style="{frame}" role="status">{head}<br>{escape(_sentence_of_stub(outcome))}</div>'
    items = "".join(_item(mark, sentence) for mark, sentence in _told(outcome))
    checks = f'<ul role="list" style="list-style:none;margin:0.6em 0;padding:0">{items}</ul>'
    return f'<div style="{frame}" role="status">{head}{checks}<small>{_last_words(outcome)}</small></div>'


def _item(mark: Mark, sentence: str) -> str:
    points = f"{WORDS[mark.state]}, {number(mark.points)} of {number(mark.of)} points"
    said = f"{SIGNS[mark.state]} <strong>{escape(_words(mark.name))}</strong> ({escape(mark.kind)}): {points}"
    if mark.state != "right":
        said += f'<div style="margin-left:1.3em">{escape(sentence)}{_details(mark)}</div>'
    return f'<li style="margin:0.4em 0;padding:0">{said}</li>'


def _details(mark: Mark) -> str:
    """A traceback or a diagnosis: in lines as they are, where there is room for them."""
    if not mark.detail:
        return ""
    lines = "margin:0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
    return f'<details open><summary>Details</summary><pre style="{lines}">{escape(mark.detail)}</pre></details>'


def _last_words(outcome: Outcome) -> str:
    inputs = f"Inputs are new in every run; those of this one follow from seed {outcome.seed}. "
    programs = any(mark.kind != "answer" for mark in outcome.marks)
    rest = "If the statement names more points than these checks, the rest is for checks that you do not see."
    return f"{inputs if programs else ''}{rest}"


def _told(outcome: Outcome) -> Iterator[tuple[Mark, str]]:
    """Each mark with its sentence; one that stands above already is not said again."""
    above: set[str] = set()
    for mark in outcome.marks:
        yield mark, "For the same reason." if mark.state == "error" and mark.sentence in above else mark.sentence
        above.add(mark.sentence)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _sentence_of_stub(outcome: Outcome) -> str:
    said = next((mark.sentence for mark in outcome.marks if mark.state == "unattempted"), "")
    return f"{said} Write an answer, run its cell, and then this one." if said else "No check has been run."


def bundle(outcome: Outcome, note: str = "") -> dict[str, Any]:
    """One display: the record, HTML and text."""
    return {MARK: outcome.record(), "text/html": html(outcome, note), "text/plain": text(outcome, note)}


def show(outcome: Outcome) -> None:
    """Display the marks; outside a notebook, print them."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        print(text(outcome))
        return
    from IPython.display import display

    display(bundle(outcome, "" if shell.last_execution_succeeded else AFTER_A_FAILURE), raw=True)
