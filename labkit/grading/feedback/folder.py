"""The folder of feedback: a page a student, the instructor's index, and nothing left of who is no longer shown."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from labkit.files import write_atomically
from labkit.grading.feedback.pages import GENERATOR, index_page, student_page
from labkit.grading.gradebook.options import GradebookOptions
from labkit.grading.gradebook.rows import Book

INDEX = "index.html"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,80}")


def write_feedback(folder: Path, book: Book, options: GradebookOptions) -> list[Path]:
    """Write all pages; remove pages of an earlier run that are not written again. Returns the index, then the pages."""
    pages = file_names(row.name for row in book.rows)
    written = [write_atomically(folder / pages[row.name], student_page(row, options)) for row in book.rows]
    index = write_atomically(folder / INDEX, index_page(book, pages))
    for old in folder.glob("*.html"):
        if old not in {index, *written} and _ours(old):
            old.unlink()
    return [index, *written]


def file_names(names: Iterable[str]) -> dict[str, str]:
    """A file name for each name, which no system confuses with another: ada.html, or a part and a hash of it."""
    found: dict[str, str] = {}
    taken = {INDEX.removesuffix(".html")}
    for name in sorted(names):
        stem = name
        if not _PLAIN.fullmatch(name) or name.casefold() in taken:
            part = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:40].strip("-") or "student"
            stem = f"{part}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"
        taken.add(stem.casefold())
        found[name] = f"{stem}.html"
    return found


def _ours(path: Path) -> bool:
    """Whether this program wrote the page."""
    return f'content="{GENERATOR}"' in path.read_text(encoding="utf-8", errors="replace")[:2000]
