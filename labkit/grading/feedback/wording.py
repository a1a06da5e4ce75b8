"""States and kinds of evidence in words and signs; nothing is told by colour alone."""

from __future__ import annotations

from labkit.grading.gradebook.rows import MISSING, UNGRADED
from labkit.grading.grader.results import TO_MARK

WORDS = {
    "right": "right",
    "partly": "partly right",
    "wrong": "not right",
    "error": "stopped with an error",
    "unattempted": "not attempted",
    TO_MARK: "to be marked by hand",
    MISSING: "nothing handed in",
    UNGRADED: "could not be graded yet",
}
SIGNS = dict(zip(WORDS, "✓◐✗!○…–?", strict=True))
EVIDENCE = {
    "result": "what your function returned",
    "answer": "your answer, against a computed key",
    "bytes": "bytes that each rank sent, counted at the sockets",
    "messages": "messages that each rank sent, counted at the sockets",
    "rounds": "messages that had to follow one another",
    "memory": "the peak of memory that each rank took",
    "order": "the order in which messages were sent",
    "overlap": "what ran at the same time",
    "work": "how much was computed",
    "failure": "what was left after a rank was lost",
}
