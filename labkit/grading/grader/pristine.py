"""What submissions are held against: the instructor's notebook, its checks, and an overlay of private ones."""

from __future__ import annotations

import ast
import hashlib
import json
import linecache
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import labkit
from labkit.grading.checks.exercises import Exercises
from labkit.grading.checks.pristine import checks_of
from labkit.grading.source import read_source
from labkit.grading.source.code import runs_last
from labkit.grading.source.exercise import Exercise, Source


class OverlayError(Exception):
    """An overlay cannot be used; the text says which file and why."""


class Pristine:
    """A source notebook, with its overlay if there is one.

    path: solutions/NN_name.ipynb. overlay: a folder that may have NN_name.ipynb, NN_name.py or both. Their code runs
    after the notebook's own checks, with the same names: `@exercises.check("id", ...)` adds a check, or replaces the
    one of the same name. Raises SourceError, OverlayError.
    """

    def __init__(self, path: Path, overlay: Path | None = None):
        self.path, self.source = path, read_source(path)
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self._cells = overlay_cells(overlay, self.source) if overlay is not None else []
        self._public = {e.id: {c.name for c in e.checks if not c.hidden} for e in self.source.exercises}
        self.overlay_sha256 = hash_of_folder(overlay) if overlay is not None else ""

    @property
    def name(self) -> str:
        return self.source.name

    def checks(self, student: str) -> Exercises:
        """All checks for this student, defined and not run. Raises OverlayError."""
        with _nothing_to_warm():
            exercises = checks_of(self.source, student=student, strict=False)
        names: Any = exercises.namespace
        for where, code in self._cells:
            before = {(c.exercise, c.name): c.body for c in exercises.checks()}
            _run(where, code, names)
            for check in exercises.checks():
                if before.get((check.exercise, check.name)) is not check.body:
                    self._private(check.exercise, check.name, where)
        return exercises

    def _private(self, exercise: str, name: str, where: str) -> None:
        if exercise not in self._public:
            raise OverlayError(f"{where}: there is no exercise {exercise!r}; there are {', '.join(self.source.ids)}")
        self._public[exercise].discard(name)

    def hidden(self, exercise: Exercise, check: str) -> bool:
        """Whether a student's notebook does not have this check."""
        return check not in self._public[exercise.id]


def overlay_cells(folder: Path, source: Source) -> list[tuple[str, str]]:
    """The code of an overlay for one notebook: (where it stands, code)."""
    found: list[tuple[str, str]] = []
    notebook, module = folder / f"{source.name}.ipynb", folder / f"{source.name}.py"
    if notebook.exists():
        try:
            cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
            codes = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        except (ValueError, KeyError, TypeError) as error:
            raise OverlayError(f"{notebook} is no notebook: {error}") from None
        found += [(f"<overlay {notebook.name}, cell {i}>", code) for i, code in enumerate(codes, 1)]
    if module.exists():
        found.append((f"<overlay {module.name}>", module.read_text(encoding="utf-8")))
    return found


def _run(where: str, code: str, names: dict[str, Any]) -> None:
    """Run overlay code, but for a last line that runs checks. Raises OverlayError."""
    linecache.cache[where] = (len(code), None, code.splitlines(keepends=True), where)
    try:
        tree = ast.parse(code)
        if runs_last(code) is not None:
            tree.body.pop()
        exec(compile(tree, where, "exec"), names)
    except Exception as error:
        raise OverlayError(f"{where}: {type(error).__name__}: {error}") from None


def hash_of_folder(folder: Path) -> str:
    """Of all its files, by name and content; hidden files and Python's caches are not of it."""
    digest = hashlib.sha256()
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")))
        for name in sorted(n for n in names if not n.startswith(".")):
            path = Path(top) / name
            digest.update(f"{path.relative_to(folder)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@contextmanager
def _nothing_to_warm() -> Iterator[None]:
    """A setup cell begins with `labkit.warm()`, for ranks of its own; a grader has none."""
    warm: Callable[..., Any] = labkit.warm
    labkit.warm = lambda *args, **kwargs: None
    try:
        yield
    finally:
        labkit.warm = warm
