"""Reads an instructor's notebook into exercises, and refuses one that is not in order."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import nbformat

from labkit.grading.source.chapter import anchors, objectives
from labkit.grading.source.exercise import SETUP, Notebook, Source, role
from labkit.grading.source.grouping import exercises_in
from labkit.grading.source.problems import Problem, SourceError
from labkit.grading.source.rules import problems_of


def read_source(path: Path, chapter: Path | None = None) -> Source:
    """The exercises in the source notebook at `path`, such as solutions/03_collectives.ipynb.

    chapter: the chapter's own notebook, whose headings the exercises name as their sections; not looked at when None.
    Raises SourceError with everything that is wrong; also for a file that is no notebook.
    """
    try:
        # Not nbformat.read: it gives copied cells new ids without a word, and other ones every time.
        notebook = nbformat.v4.reads(path.read_text(encoding="utf-8"))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise SourceError(path.name, [Problem("", "", 0, f"it is no notebook: {error}"[:300])]) from None
    sections = anchors(nbformat.read(chapter, as_version=4)) if chapter is not None else None
    return read_notebook(notebook, path.stem, sections)


def read_notebook(notebook: Notebook, name: str, sections: Collection[str] | None = None) -> Source:
    """The exercises in a source notebook. name: the chapter, as in "03_collectives". sections: anchors of its headings.

    Raises SourceError with everything that is wrong.
    """
    found = problems_of(notebook, objectives(name), sections)
    if found:
        raise SourceError(name, found)
    setup = next(cell for cell in notebook.cells if role(cell) == SETUP)
    return Source(name, notebook, setup, tuple(exercises_in(notebook)))
