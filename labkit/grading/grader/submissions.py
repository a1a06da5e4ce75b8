"""Finds what was handed in: a folder for each student, and in it notebooks by the names of `exercises/`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.grading.grader import reading
from labkit.grading.grader.answers import Answer, take_answers
from labkit.grading.grader.results import Handed
from labkit.grading.source.exercise import Source

DEEPEST = 3  # folders below the student's own in which a notebook is looked for
MOST_FILES = 5_000


@dataclass(frozen=True)
class Submission:
    """The answers that one student handed in for one notebook. cells: None where no notebook could be read."""

    student: str
    notebook: str
    handed: Handed
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    read: bool = False


def students_in(folder: Path) -> list[str]:
    """The students who handed something in: the folders in `folder`, by name; links and hidden folders are none."""
    entries = [e for e in os.scandir(folder) if not e.name.startswith((".", "_")) and e.name != "__MACOSX"]
    return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))


def find_notebook(folder: Path, student: str, name: str, problems: list[str]) -> Path | None:
    """Where a student's notebook is: in the student's folder, or the only such file somewhat below it."""
    home, file = folder / student, f"{name}.ipynb"
    if os.path.lexists(home / file):
        return home / file
    found = sorted((path for path in _files(home) if path.name == file), key=lambda p: (len(p.parts), str(p)))
    if not found:
        others = sorted(p.name for p in _files(home) if p.suffix == ".ipynb" and name[:2] in p.name)
        hint = f" There is {others[0]!r}: is that it? Then rename it." if others else ""
        problems.append(f"No {file} was handed in.{hint}")
        return None
    if len(found) > 1:
        problems.append(f"{file} is there {len(found)} times; {found[0].relative_to(home)} was taken.")
    return found[0]


def _files(home: Path) -> Iterator[Path]:
    count = 0
    for top, folders, names in os.walk(home, followlinks=False):
        if len(Path(top).relative_to(home).parts) >= DEEPEST:
            folders.clear()
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__MACOSX")
        for name in sorted(names):
            count += 1
            if count > MOST_FILES:
                return
            yield Path(top) / name


def read_submission(folder: Path, student: str, source: Source) -> Submission:
    """What `student` handed in for the notebook of `source`. Never raises for anything that a student did."""
    problems: list[str] = []
    path = find_notebook(folder, student, source.name, problems)
    if path is None:
        return Submission(student, source.name, Handed("", problems=tuple(problems)), take_answers(source, [], []))
    file, sha256, received = str(path.relative_to(folder)), "", None
    try:
        taken = reading.take_file(path)
        sha256, received = taken.sha256, taken.received
        cells: Sequence[reading.Cell] = reading.cells_of(taken.raw, problems)
    except reading.Unreadable as error:
        problems.append(str(error))
        return Submission(
            student, source.name, Handed(file, sha256, received, tuple(problems)), take_answers(source, [], [])
        )
    answers = take_answers(source, cells, problems)
    return Submission(student, source.name, Handed(file, sha256, received, tuple(problems)), answers, True)
