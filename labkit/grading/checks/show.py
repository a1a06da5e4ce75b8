"""Marks for people: words and signs first, a frame second, and nothing told by colour alone."""

from __future__ import annotations

import sys
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


def number(points: float) -> str:
    """2 points, 0.5 points: without a trailing zero."""
    return f"{points:g}"


def headline(outcome: Outcome) -> str:
    """`ring-bytes: partly right, 2 of 4 points`."""
    return f"{outcome.exercise}: {WORDS[outcome.state]}, {number(outcome.points)} of {number(outcome.of)} points"


def text(outcome: Outcome) -> str:
    """The marks as plain text: a line a check, what it looked at, and its sentence."""
    lines = [f"{SIGNS[outcome.state]} {headline(outcome)}"]
    if outcome.state == "unattempted":
        return f"{lines[0]}\n  {_sentence_of_stub(outcome)}"
    for mark in outcome.marks:
        lines.append(f"  {SIGNS[mark.state]} {_title(mark)}: {_said(mark)}")
        lines += [f"      {line}" for line in mark.detail.splitlines()]
    return "\n".join(lines)


def html(outcome: Outcome) -> str:
    """The same as HTML: a heading, a table with a row a check, tracebacks to open."""
    head = f"<strong>{SIGNS[outcome.state]} {escape(headline(outcome))}</strong>"
    frame = "border:1px solid currentColor;border-left-width:0.4em;padding:0.4em 0.8em;max-width:56em"
    if outcome.state == "unattempted":
        return f'<div style="{frame}" role="status">{head}<br>{escape(_sentence_of_stub(outcome))}</div>'
    rows = "".join(_row(mark) for mark in outcome.marks)
    names = "".join(f'<th scope="col" style="text-align:left">{n}</th>' for n in ("Check", "Mark", "Points", "Why"))
    table = f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"
    seed = f"<small>Inputs are new in every run; those of this one follow from seed {outcome.seed}.</small>"
    return f'<div style="{frame}" role="status">{head}{table}{seed}</div>'


def _row(mark: Mark) -> str:
    left = ' style="text-align:left"'
    why = escape(mark.sentence)
    if mark.detail:
        why += f"<details open><summary>Details</summary><pre>{escape(mark.detail)}</pre></details>"
    cells = [
        f"<td{left}>{escape(_words(mark.name))} <small>({escape(mark.kind)})</small></td>",
        f"<td{left}>{SIGNS[mark.state]} {WORDS[mark.state]}</td>",
        f"<td{left}>{number(mark.points)} of {number(mark.of)}</td>",
        f"<td{left}>{why}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _title(mark: Mark) -> str:
    return f"{_words(mark.name)} ({mark.kind}, {number(mark.points)} of {number(mark.of)})"


def _said(mark: Mark) -> str:
    return mark.sentence if mark.state == "right" else f"{WORDS[mark.state]}. {mark.sentence}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _sentence_of_stub(outcome: Outcome) -> str:
    said = next((mark.sentence for mark in outcome.marks if mark.state == "unattempted"), "")
    return said or "No check has been run."


def bundle(outcome: Outcome) -> dict[str, Any]:
    """One display: the record, HTML and text."""
    return {MARK: outcome.record(), "text/html": html(outcome), "text/plain": text(outcome)}


def show(outcome: Outcome) -> None:
    """Display the marks; outside a notebook, print them."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        print(text(outcome))
        return
    from IPython.display import display

    display(bundle(outcome), raw=True)
