"""The last cell of a chapter: what was done, and what to read next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.book.drawing.marks import Box
from labkit.book.drawing.units import listing
from labkit.course.chapter_file import ChapterFile
from labkit.course.progress import State, summary

NAMED = 4  # at most so many of what is open are named
BEGINNING = 9  # words of a question


def ending(file: ChapterFile, done: dict[str, Any] | None, prompts: Mapping[str, str]) -> Box:
    """A box at the end of a chapter.

    done: its entry in the reader's progress, or None where nobody is there. prompts: of the questions that were shown,
    by id, with their numbers filled in.
    """
    lines = []
    if done is not None:
        row = summary({file.name: done})[0]
        if file.predictions:
            only = f", {row['skipped']} only skipped" if row["skipped"] else ""
            lines.append(f"Predictions: {row['predicted']} of {len(file.predictions)} made at least once{only}.")
        if file.to_write:
            lines.append(f"Functions of your own: {row['written']} of {file.to_write} were right at least once.")
        if file.questions:
            lines.append(
                f"Questions: {row['right']} of {len(file.questions)} right, {row['right_at_once']} at the first try."
                + _open(
                    {id: prompts.get(id, q["prompt"]) for id, q in file.questions.items()}, done.get("questions", {})
                )
            )
    lines.append(what_next(file.name))
    return Box("The end of this chapter", "\n\n".join(line for line in lines if line))


def _open(prompts: Mapping[str, str], done: State) -> str:
    """Which questions are not right yet, by how they begin."""
    left = [_beginning(prompt) for id, prompt in prompts.items() if not done.get(id, {}).get("right")]
    if not left or len(left) == len(prompts):
        return ""
    more = [f"{len(left) - NAMED} more"] * (len(left) > NAMED)
    return f" Still open: {listing([*left[:NAMED], *more])}."


def _beginning(prompt: str) -> str:
    words = re.sub(r"[*`]|\b_|_\b", "", re.sub(r"\{[^}]*\}|\$[^$]*\$", "…", prompt)).split()
    more = " ..." * (len(words) > BEGINNING)
    return f"“{' '.join(words[:BEGINNING]).rstrip('.,:;')}{more}”"


def what_next(chapter: str) -> str:
    """Its exercises, if they lie beside it; the chapter that follows, and the written ones that build on this one."""
    from labkit import course

    chapters = sorted(course.load().chapters, key=lambda c: c.number)
    here = next((c for c in chapters if c.name == chapter), None)
    if here is None:
        return ""
    follows = next((c for c in chapters if c.number == here.number + 1), None)
    builds = [c for c in chapters if here.number in c.prerequisites and c.written and c is not follows]
    notebook = Path("exercises") / f"{chapter}.ipynb"
    place = next((place for place in (Path(), Path("..")) if (place / notebook).exists()), None)
    exercises = f"[Its exercises]({(place / notebook).as_posix()})\n\n" if place is not None and here.written else ""
    parts: list[str] = []
    if follows is None:
        parts.append("This is the last chapter.")
    else:
        named = f"chapter {follows.number}, {follows.title}"
        file = Path(f"{follows.name}.ipynb")
        parts.append(f"Read next: [{named}]({file})." if file.exists() else
                     f"Read next: {named}{'' if follows.written else ' (not written yet)'}.")  # fmt: skip
    if builds:
        named = ", ".join(f"{c.number} ({c.title})" for c in builds)
        parts.append(f"Also built on this one: {named}.")
    return exercises + " ".join(parts)
