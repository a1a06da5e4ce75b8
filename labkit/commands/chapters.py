"""Find the chapters: notebooks named NN_name.ipynb, and after them the appendices, A_name.ipynb."""

import re
from pathlib import Path
from typing import NamedTuple

from labkit.commands import UsageError

NAME = re.compile(r"(?P<label>\d\d|[A-Z])_(?P<name>\w+)\.ipynb")


class Chapter(NamedTuple):
    """One chapter's notebook. `label`: "03" or, for an appendix, "A". Chapters come before appendices."""

    label: str
    name: str
    path: Path

    @property
    def number(self) -> str:
        """As people write it: "3" or "A"."""
        return self.label.removeprefix("0")


def notebooks_dir() -> Path:
    """The repository's notebooks, or those of the current directory for an installed labkit."""
    beside_the_package = Path(__file__).resolve().parents[2] / "notebooks"
    here = Path.cwd() / "notebooks"
    for candidate in (beside_the_package, here):
        if candidate.is_dir():
            return candidate
    raise UsageError(f"no notebooks in {beside_the_package} nor in {here}: run this in a clone of the repository")


def all_chapters(directory: Path) -> list[Chapter]:
    """The chapters in `directory`, by number. Raises UsageError when there is none."""
    matches = ((NAME.fullmatch(path.name), path) for path in directory.glob("*.ipynb"))
    chapters = sorted(Chapter(m["label"], m["name"], path) for m, path in matches if m)
    if not chapters:
        raise UsageError(f"no chapter in {directory}: chapters are named like 03_collectives.ipynb")
    return chapters


def find_chapter(directory: Path, wanted: str) -> Chapter:
    """The chapter with that number ("3", "03"), letter ("A") or name ("collectives", "03_collectives").

    Raises UsageError, listing the chapters that exist, when there is no such chapter.
    """
    chapters = all_chapters(directory)
    for chapter in chapters:
        names = {chapter.name, chapter.path.stem, chapter.path.name}
        if wanted in names or chapter.label in (wanted.upper(), wanted.isdecimal() and f"{int(wanted):02}"):
            return chapter
    known = "\n".join(f"    {c.number:>2}  {c.name}" for c in chapters)
    raise UsageError(f"there is no chapter {wanted!r}. These exist:\n{known}")
