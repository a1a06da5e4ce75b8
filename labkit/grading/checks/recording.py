"""Records the answers that the public checks of a chapter ask for, so that they run where the answers are not."""

from __future__ import annotations

from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.pristine import checks_of
from labkit.grading.known import SEEDS, digest_of, record_of, recorded
from labkit.grading.source.exercise import Source


class NotRecorded(Exception):
    """A solution does not pass its own public checks; the message says which."""


def digest(source: Source) -> str:
    """Of what the record of a chapter is made from: its answers, its checks, and the code of its public cells."""
    cells = [cell for one in source.exercises for cell in (*one.answers, *one.by_role("public"))]
    return digest_of(source.name, "\n".join(cell.source for cell in (source.setup, *cells)))


def record(source: Source) -> bytes:
    """The record of a chapter: its solutions, run by the public checks with each of `SEEDS`. Raises NotRecorded."""
    opened = checks_of(source, hidden=False, strict=False)
    names = dict(opened.namespace)
    found: dict[str, bytes] = {}
    exercises = []
    for one in (one for one in source.exercises if one.kind == "program"):
        for cell in one.answers:
            exec(cell.source, names)
        for seed in SEEDS:
            with recorded() as results:
                outcome = opened.judge(one.id, NotebookStudent(names, seed, one.id))
            if outcome.state != "right":
                said = "; ".join(mark.sentence for mark in outcome.marks if mark.state != "right")
                raise NotRecorded(f"the solution of {one.id} does not pass its public checks with seed {seed}: {said}")
            if not results:
                break  # it compares with nothing that is secret
            found |= results
            exercises.append(one.id)
    return record_of(sorted(set(exercises)), dict(sorted(found.items())), digest(source))
