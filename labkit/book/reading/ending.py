"""The last cell of a chapter: what was done, and what to read next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.book.drawing.marks import Box
from labkit.course.progress import summary


def ending(chapter: str, done: dict[str, Any] | None, predictions: int, questions: int, to_write: int = 0) -> Box:
    """A box at the end of `chapter`. done: its entry in the reader's progress, or None where nobody is there."""
    lines = []
    if done is not None:
        row = summary({chapter: done})[0]
        if predictions:
            lines.append(
                f"Predictions: {row['predicted']} of {predictions} made, {row['skipped']} skipped, in all your runs."
            )
        if to_write:
            lines.append(f"Functions of your own: {row['written']} of {to_write} right.")
        if questions:
            lines.append(f"Questions: {row['right']} of {questions} right, {row['right_at_once']} at the first try.")
    lines.append(what_next(chapter))
    return Box("The end of this chapter", "\n\n".join(line for line in lines if line))


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
    there = any((place / notebook).exists() for place in (Path.cwd(), Path.cwd().parent))
    exercises = f"Its exercises: `{notebook}`.\n\n" if there and here.written else ""
    parts: list[str] = []
    if follows is None:
        parts.append("This is the last chapter.")
    else:
        yet = "" if follows.written else " (not written yet)"
        parts.append(f"Read next: chapter {follows.number}, {follows.title}{yet}.")
    if builds:
        named = ", ".join(f"{c.number} ({c.title})" for c in builds)
        parts.append(f"Also built on this one: {named}.")
    return exercises + " ".join(parts)
