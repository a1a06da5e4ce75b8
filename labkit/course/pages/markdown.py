"""Markdown, as the pages need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labkit.course.file import Chapter

NOTE = "<!-- Made by `python -m labkit.course.build` from labkit/course/*.toml: change those, not this page. -->\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()) -> str:
    """A table. Columns named in `numbers` are aligned to the right."""
    right = set(numbers)
    lines = [_line(head), _line(["---:" if name in right else "---" for name in head])]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def link(chapter: Chapter, text: str) -> str:
    """`text`, as a link to the chapter's notebook if that is written."""
    return f"[{text}]({chapter.name}.ipynb)" if chapter.written else text
