"""`labkit html`: the chapters as static pages, which need no network, no script and no Jupyter."""

import re
import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import nbformat

from labkit.book.drawing.page import page
from labkit.commands import UsageError
from labkit.commands.chapters import Chapter, all_chapters, find_chapter, notebooks_dir
from labkit.commands.html.cells import STYLE, cell_html, code_style, ordered_headings
from labkit.commands.html.recorded import STYLE as RECORDED
from labkit.files import write_atomically


class Entry(NamedTuple):
    """A line of the index: what the course file says of a chapter, and whether there is a page."""

    label: str
    stem: str
    title: str
    about: str
    has_page: bool


def html_pages(wanted: Sequence[str] = (), out: Path | None = None, notebooks: Path | None = None) -> int:
    """Write a page for each chapter wanted, all when none is named, and an index, into the folder `out` ("site").

    The pages show the notebooks as they are, with the outputs they were saved with; nothing runs. Returns 0.
    Raises UsageError for an unknown chapter, a notebook that cannot be read, a folder that cannot be written.
    """
    directory = notebooks or notebooks_dir()
    chapters = [find_chapter(directory, name) for name in wanted] or all_chapters(directory)
    folder = (out or Path("site")).resolve()
    if folder.is_relative_to(directory.resolve()):
        raise UsageError(f"--out {folder}: that folder holds the chapters; choose another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = {path.stem for path in folder.glob("*.html")} | {chapter.path.stem for chapter in chapters}
        entries = _entries(all_chapters(directory), present)
        for chapter in chapters:
            write_atomically(folder / f"{chapter.path.stem}.html", chapter_page(chapter, entries, folder))
        write_atomically(folder / "index.html", index_page(entries))
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}; choose a folder that can be written") from error
    print(f"{len(chapters)} {'page' if len(chapters) == 1 else 'pages'} and an index: {folder / 'index.html'}")
    return 0


def chapter_page(chapter: Chapter, entries: list[Entry], folder: Path) -> str:
    """The page of one chapter. Pictures that it shows are copied into `folder`."""
    notebook = _read(chapter)
    linked = {entry.stem for entry in entries if entry.has_page}

    def link(address: str) -> str | None:
        return _address(address, chapter.path.parent, folder, linked)

    body = "\n".join(filter(None, (cell_html(cell, link, n) for n, cell in enumerate(notebook.cells))))
    title = _title(notebook) or chapter.path.stem
    if not re.search(r"<h[1-6]\b", body):
        body = f"<h1>{escape(title)}</h1>\n{body}"
    shown = [entry for entry in entries if entry.has_page]
    place = next((i for i, entry in enumerate(shown) if entry.stem == chapter.path.stem), 0)
    steps = ['<a href="index.html">All chapters</a>']
    if place > 0:
        steps.append(_step("Before", shown[place - 1]))
    if place + 1 < len(shown):
        steps.append(_step("Next", shown[place + 1]))
    return page(title, ordered_headings(body), STYLE + RECORDED + code_style(), navigation=" · ".join(steps))


def _read(chapter: Chapter) -> nbformat.NotebookNode:
    try:
        return nbformat.read(chapter.path, as_version=4)
    except (nbformat.reader.NotJSONError, UnicodeDecodeError, AttributeError, KeyError) as error:
        raise UsageError(f"{chapter.path} is no notebook: restore it") from error


def index_page(entries: list[Entry]) -> str:
    """The list of chapters; those without a page are named without a link."""
    lines = []
    for entry in entries:
        name = escape(f"{entry.label.removeprefix('0')} {entry.title}")
        head = f'<a href="{entry.stem}.html">{name}</a>' if entry.has_page else f"{name} (no page yet)"
        lines.append(f"<li><strong>{head}</strong>" + (f"<br>{escape(entry.about)}" if entry.about else "") + "</li>")
    title = _course_title()
    items = "\n".join(lines)
    return page(title, f'<h1>{escape(title)}</h1>\n<ul class="chapters">\n{items}\n</ul>', STYLE_OF_INDEX)


STYLE_OF_INDEX = ".chapters { list-style: none; padding: 0 } .chapters li { margin: 0 0 1rem }"


def _entries(chapters: list[Chapter], pages: set[str]) -> list[Entry]:
    """The course's chapters in order; notebooks that the course does not know come with their own first heading."""
    from labkit.course import load

    course = {chapter.name: chapter for chapter in load().chapters}
    here = {chapter.path.stem: chapter for chapter in chapters}
    found = []
    if any(stem in course for stem in here):
        for stem, known in course.items():
            kind = "" if known.core else " Optional."
            about = f"You will be able to {known.able} {known.core_minutes} minutes.{kind}"
            found.append(Entry(stem[:2], stem, known.title, about, stem in here and stem in pages))
    for stem, chapter in here.items():
        if stem not in course:
            title = _title(_read(chapter)) or chapter.name
            found.append(Entry(chapter.label, stem, title, "", stem in pages))
    return sorted(found)


def _course_title() -> str:
    from labkit.course import load

    return load().title


def _title(notebook: nbformat.NotebookNode) -> str:
    """The first heading of the notebook as text, "" without one."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (found := re.search(r"^#\s+(.+?)\s*#*$", cell.source, re.MULTILINE)):
            return re.sub(r"[*`$]", "", found[1])
    return ""


def _step(word: str, entry: Entry) -> str:
    return f'{word}: <a href="{entry.stem}.html">{escape(entry.title)}</a>'


def _address(address: str, source: Path, folder: Path, linked: set[str]) -> str | None:
    """Where a link or picture of a notebook in `source` leads from a page in `folder`.

    A chapter leads to its page, if it has one; a file beside the notebook is copied; what lies elsewhere is no link.
    """
    parts = urlsplit(address)
    if parts.scheme in ("http", "https", "mailto", "data") or not parts.path:
        return address
    if parts.scheme or parts.netloc:
        return None
    file = source / unquote(parts.path)
    if file.suffix == ".ipynb":
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return f"{file.stem}.html{fragment}" if file.stem in linked else None
    inside = file.resolve()
    if not inside.is_relative_to(source.resolve()) or not inside.is_file():
        return None
    copied = folder / inside.relative_to(source.resolve())
    copied.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(inside, copied)
    return address
