"""`labkit progress`: what the reader has read, predicted and answered, and what to do next."""

import json
import sys
from pathlib import Path
from typing import Any

from labkit.book.drawing.tables import Table
from labkit.commands import UsageError
from labkit.commands.chapters import all_chapters, notebooks_dir
from labkit.course import CourseError, load
from labkit.course.chapter_file import load_chapter
from labkit.course.progress import Progress, summary

Row = dict[str, Any]
NOTHING = summary({"": {}})[0]


def show_progress(as_json: bool = False, notebooks: Path | None = None) -> int:
    """Print the reader's progress, as a table or as JSON. Returns 0. A file that cannot be read is said so."""
    progress = Progress.of_reader(say=lambda text: print(text, file=sys.stderr))
    done = summary(progress.chapters())
    rows = progress_rows(done, _present(notebooks))
    advice = what_next(rows)
    if as_json:
        told = {"schema": 1, "file": str(progress.path), "chapters": rows, "next": advice}
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return 0
    print(Table(_shown(row) for row in rows))
    print(f"\nNext: {advice}")
    return 0


def progress_rows(done: list[Row], present: set[str]) -> list[Row]:
    """A row for each chapter that has a notebook or was begun, in order: what was done, of how many.

    done: as `summary` gives it. present: names of the notebooks, such as "03_collectives". In a row, `predictions`,
    `questions` and `to_write` are how many the chapter has, None where that is not known; the rest is as in `summary`.
    """
    by_name = {row["chapter"]: row for row in done}
    known = {chapter.name: chapter for chapter in load().chapters}
    appendices = {appendix.name: appendix.title for appendix in load().appendices}
    rows = []
    for name in sorted(present | set(by_name)):
        chapter = known.get(name)
        predictions, questions, to_write = _asked(name)
        rows.append(
            {
                **NOTHING, **by_name.get(name, {}), "chapter": name,
                "title": chapter.title if chapter else appendices.get(name, name),
                "core": chapter.core if chapter else False,
                "here": name in present, "predictions": predictions, "questions": questions,
                "to_write": to_write,
            }
        )  # fmt: skip
    return rows


def what_next(rows: list[Row]) -> str:
    """The one thing to do next: go on, answer, begin, or rest."""
    begun = [row for row in rows if row["here"] and row["opened"] and not row["read"]]
    if begun:
        return f"go on with {_called(begun[-1])}"
    for row in rows:
        open_questions = (row["questions"] or 0) - row["right"]
        if row["here"] and row["read"] and open_questions > 0:
            some = "a question is" if open_questions == 1 else f"{open_questions} questions are"
            return f"{some} not answered right yet in {_called(row)}"
    new = [row for row in rows if row["here"] and not row["opened"] and not row["read"]]
    if new:
        return f"begin {_called(next((row for row in new if row['core']), new[0]))}"
    return "you have read every chapter that there is, and answered every question"


def _called(row: Row) -> str:
    """A chapter as a reader would name it, and the command that opens it."""
    label, _, _ = row["chapter"].partition("_")
    number = label.removeprefix("0") if label.isdecimal() or len(label) == 1 else row["chapter"]
    kind = "appendix" if number.isalpha() and len(number) == 1 else "chapter"
    return f"{kind} {number}, {row['title']}: labkit lab {number}"


def _shown(row: Row) -> Row:
    """One line of the printed table."""

    def of(count: int, all_: int | None) -> str:
        return f"{count}" if all_ is None else f"{count} of {all_}"

    return {
        "chapter": row["chapter"], "begun": row["opened"], "read": row["read"],
        "predicted": of(row["predicted"], row["predictions"]), "written": of(row["written"], row["to_write"]),
        "right": of(row["right"], row["questions"]),
        "at once": row["right_at_once"], "shown": row["revealed"],
    }  # fmt: skip


def _asked(name: str) -> tuple[int | None, int | None, int | None]:
    """How many predictions, questions and functions to write the chapter has; None where its file is missing."""
    try:
        asked = load_chapter(name)
    except CourseError:
        return None, None, None
    return len(asked.predictions), len(asked.questions), asked.to_write


def _present(notebooks: Path | None) -> set[str]:
    """The names of the chapters that can be opened; those the course calls written where no notebooks are found."""
    try:
        return {chapter.path.stem for chapter in all_chapters(notebooks or notebooks_dir())}
    except UsageError:
        return {chapter.name for chapter in load().written()}
