"""The reader's own copies of the notebooks: where they lie, and how they are made.

    FOLDER/notebooks/03_collectives.ipynb    the reader's, without the answers: outputs cleared
    FOLDER/exercises/...                     where the edition has exercises
    FOLDER/.labkit/base/...                  the edition each copy was made from, for `labkit sync`
    FOLDER/.labkit/backups/DATE-TIME/...     what `labkit sync` replaced

The folders keep their names, so that links from chapter to chapter and to pictures hold.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import nbformat

from labkit.commands import UsageError
from labkit.commands.chapters import Chapter
from labkit.commands.merge import Notebook, cleared
from labkit.files import write_atomically
from labkit.grading.source.markers import SOLUTION, replaced

HIDDEN = ".labkit"
WINDOW = ("execution", "papermill", "trusted", "collapsed", "scrolled")  # metadata of a run or a window, not of a text


class File(NamedTuple):
    """One file of the edition. `name`: its path in the reader's folder, such as "notebooks/03_collectives.ipynb"."""

    name: str
    source: Path

    @property
    def is_notebook(self) -> bool:
        return self.source.suffix == ".ipynb"

    def of(self, chapter: Chapter) -> bool:
        """Whether it belongs to that chapter: its notebook or its exercises."""
        return self.is_notebook and self.source.stem.split("_")[0] == chapter.label


class Copies(NamedTuple):
    """A reader's folder. Paths of files in it, by their names."""

    folder: Path

    def copy(self, file: File) -> Path:
        return self.folder / file.name

    def base(self, file: File) -> Path:
        return self.folder / HIDDEN / "base" / file.name


def work_folder(given: Path | None, environment: Mapping[str, str], notebooks: Path) -> Copies:
    """The folder named on the command line, else $LABKIT_WORK, else ~/labkit. Makes nothing.

    Raises UsageError for the folders of the repository itself, and for a path that is a file.
    """
    told = given or (Path(environment["LABKIT_WORK"]) if environment.get("LABKIT_WORK") else None)
    folder = (told or Path.home() / "labkit").expanduser().resolve()
    root = notebooks.resolve().parent
    ours = [notebooks.resolve(), *(root / name for name in ("exercises", "solutions", "labkit", "tests"))]
    if folder == root or any(folder.is_relative_to(place) for place in ours):
        raise UsageError(f"{folder} belongs to the repository: choose another folder for your own copies")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: choose a folder for your own copies")
    return Copies(folder)


def edition_files(notebooks: Path) -> list[File]:
    """All files of the edition's notebooks and exercises, hidden ones apart, sorted by name."""
    found = []
    for name, directory in (("notebooks", notebooks), ("exercises", notebooks.parent / "exercises")):
        for path in directory.rglob("*"):
            inside = path.relative_to(directory)
            if path.is_file() and not any(part.startswith((".", "__")) for part in inside.parts):
                found.append(File(f"{name}/{inside.as_posix()}", path))
    return sorted(found)


def pristine(path: Path) -> Notebook:
    """The edition's notebook as a reader first sees it: never run, with stubs for what the reader is to write.

    Raises UsageError for one that cannot be read.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, UnicodeDecodeError) as error:
        raise UsageError(f"the book's own {path} is no notebook: restore it, or move it away") from error
    notebook.cells = [nbformat.from_dict(cleared(cell)) for cell in notebook.cells]
    for cell in notebook.cells:
        for key in WINDOW:
            cell.metadata.pop(key, None)
        told = cell.metadata.get("labkit", {}).get("stub", "write this function")
        cell.source = replaced(cell.source, SOLUTION, [f"raise NotImplementedError({json.dumps(told)})"])
    notebook.metadata.pop("widgets", None)
    return notebook


def make_copies(copies: Copies, files: list[File]) -> list[File]:
    """Make the copies that do not exist yet, and return them. A file that is there is never touched.

    Raises UsageError for a folder that cannot be written.
    """
    made = []
    try:
        for file in files:
            if not copies.copy(file).exists():
                make_copy(copies, file)
                made.append(file)
    except OSError as error:
        raise UsageError(f"{copies.folder}: {error.strerror}; choose a folder that can be written") from error
    return made


def make_copy(copies: Copies, file: File) -> None:
    """One copy. Its base is written first: a copy without a base would turn every later change into a conflict."""
    for path in (copies.base(file), copies.copy(file)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.is_notebook:
            notebook = pristine(file.source)
            write_atomically(path, written(notebook))
        else:
            shutil.copyfile(file.source, path)
    if file.is_notebook:
        trust(notebook)


def is_newer(copies: Copies, file: File) -> bool:
    """Whether the edition has changed since the copy was made or last synced."""
    base = copies.base(file)
    if not base.exists():
        return True
    if not file.is_notebook:
        return base.read_bytes() != file.source.read_bytes()
    return base.read_text(encoding="utf-8") != written(pristine(file.source))


def written(notebook: Notebook) -> str:
    """A notebook as its file's text."""
    return nbformat.writes(nbformat.from_dict(notebook)) + "\n"


def trust(notebook: Notebook) -> None:
    """Tell Jupyter that this notebook may show widgets and HTML. Where it cannot be told, it asks the reader."""
    from nbformat.sign import NotebookNotary

    try:
        NotebookNotary().sign(nbformat.from_dict(notebook))
    except OSError:
        pass


def is_trusted(notebook: Notebook) -> bool:
    from nbformat.sign import NotebookNotary

    try:
        return bool(NotebookNotary().check_signature(nbformat.from_dict(notebook)))
    except OSError:
        return False
