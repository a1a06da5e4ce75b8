"""Writes everything that comes out of grading into one folder, and says what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from labkit.files import write_atomically
from labkit.grading.feedback.folder import write_feedback
from labkit.grading.feedback.statistics import percents
from labkit.grading.gradebook.book import make_book
from labkit.grading.gradebook.changes import Change, changes_csv, changes_txt, differences
from labkit.grading.gradebook.junit import junit_xml
from labkit.grading.gradebook.kept import with_kept
from labkit.grading.gradebook.names import KEY, names_for
from labkit.grading.gradebook.options import GradebookOptions
from labkit.grading.gradebook.report import grades_json
from labkit.grading.gradebook.rows import UNGRADED, Book
from labkit.grading.gradebook.rubric import preferring, read_rubric, sheet, with_real_names
from labkit.grading.gradebook.sheets import text_of
from labkit.grading.gradebook.tables import grades_csv
from labkit.grading.gradebook.text import clean, counted, points
from labkit.grading.grader.results import TO_MARK, Result


@dataclass(frozen=True)
class Written:
    """files: in the order of their making. summary: to print. problems: what could not be used, in sentences."""

    files: tuple[Path, ...]
    summary: str
    problems: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


def write(out: Path, results: Sequence[Result], options: GradebookOptions | None = None) -> Written:
    """Write grades.csv, grades.json, junit.xml, rubric.csv, changes.* and feedback/ into `out`.

    Results of other notebooks that an earlier run left in `out` are in the gradebook too. Marks of free responses come
    from `options.rubric`, and from the rubric.csv that is in `out` already: nothing filled in there is lost. Raises
    OSError, and PolicyError where names or that sheet cannot be read; then nothing has been written.
    """
    options = options or GradebookOptions()
    out.mkdir(parents=True, exist_ok=True)
    results, notes = with_kept(out, results)
    students = {*(result.student for result in results), *options.roster}
    names = names_for(students, out, options.anonymous)
    sheet_there = out / "rubric.csv"
    filled = with_real_names(read_rubric(sheet_there), names) if sheet_there.exists() else {}
    options = replace(options, rubric=preferring(with_real_names(options.rubric, names), filled))
    book = make_book(results, options, names)
    report = grades_json(book)
    changes, problems = _changes(out / "grades.json", report)
    files = [
        write_atomically(out / "grades.csv", grades_csv(book)),
        write_atomically(out / "junit.xml", junit_xml(book)),
    ]
    if any(mark.points is not None and place not in book.marks for place, mark in filled.items()):
        files.append(write_atomically(out / "rubric.before.csv", text_of(sheet_there)))  # marks of what is not here now
    if book.responses or sheet_there.exists():
        files.append(write_atomically(sheet_there, sheet(book.responses, book.marks, names)))
    if changes is not None:
        files.append(write_atomically(out / "changes.csv", changes_csv(changes)))
        files.append(write_atomically(out / "changes.txt", clean(changes_txt(changes))))
    files += write_feedback(out / "feedback", book, options)
    files.append(
        write_atomically(out / "grades.json", report)
    )  # last: until then the next run compares with the one before
    if names.anonymous:
        files.append(out / KEY)
    problems = (*notes, *book.problems, *problems)
    return Written(tuple(files), _summary(out, book, changes, problems), problems, tuple(changes or ()))


def _changes(path: Path, report: str) -> tuple[list[Change] | None, tuple[str, ...]]:
    """What differs from the report that is there; None where there is none, or none that can be read."""
    if not path.exists():
        return None, ()
    try:
        return differences(path.read_text(encoding="utf-8"), report), ()
    except (OSError, ValueError) as error:
        return None, (f"{path.name} of the run before cannot be compared with: {error}",)


def _summary(out: Path, book: Book, changes: list[Change] | None, problems: Sequence[str]) -> str:
    """What there is now, in lines."""
    lines = [f"{counted(len(book.rows), 'student')}, {counted(len(book.columns), 'exercise')}: {out / 'grades.csv'}"]
    if shares := percents(book.rows):
        lines.append(f"  the median is {points(round(median(shares), 1))} percent of what is marked")
    absent = sum(row.absent for row in book.rows)
    late = sum(any(handed.late is not None for handed in row.handed) for row in book.rows)
    if absent:
        lines.append(f"  no submission: {absent}")
    if late:
        lines.append(f"  late: {late}")
    states = [entry.state for row in book.rows for entry in row.entries]
    waiting = states.count(TO_MARK)
    if waiting:
        lines.append(f"  to mark by hand: {counted(waiting, 'response')}: fill in points and comment in "
                     f"{out / 'rubric.csv'}, and give the command again")  # fmt: skip
    if UNGRADED in states:
        lines.append(f"  could not be graded: {counted(states.count(UNGRADED), 'answer')}: give the command again, or "
                     "set their points by an override")  # fmt: skip
    if changes is not None:
        lines.append("  " + changes_txt(changes).splitlines()[0] + (f" See {out / 'changes.txt'}" if changes else ""))
    lines.append(f"Feedback: {out / 'feedback' / 'index.html'} for you, and a page for each student")
    lines += [f"Not used: {problem}" for problem in problems]
    return clean("\n".join(lines))
