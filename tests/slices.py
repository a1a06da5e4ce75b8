"""Which chapters the dear tests of an ordinary run take: those that changed last, and some others in turn.

The other chapters are in `make browser` and `make mutants`, which take all.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TURNS = 4  # a chapter that did not change comes once in so many commits, on average
READ = ("notebooks/{name}.ipynb", "labkit/course/chapters/{name}.toml")
WORKED = (
    "notebooks/{name}.ipynb",
    "solutions/{name}.ipynb",
    "solutions/mutants/{name}.py",
    "labkit/grading/keys/chapter_{number}.py",
    "labkit/grading/reference/chapter_{number}.py",
)


def sliced(names: Iterable[str], count: int = 2) -> list[Any]:
    """Parameters for a test of each chapter's exercises: those outside of the slice carry the mark `mutants`.

    In the slice are the `count` whose notebook or exercises changed last, and those whose turn it is.
    """
    names = list(names)
    taken = worked_on(names, count)
    return [name if name in taken else pytest.param(name, marks=pytest.mark.mutants) for name in names]


def worked_on(names: Iterable[str], count: int = 2) -> set[str]:
    """The slice of `sliced`."""
    names = list(names)
    return {*changed_last(names, count, WORKED), *(name for name in names if in_turn(name))}


def changed_last(names: Iterable[str], count: int, files: tuple[str, ...] = READ, root: Path = ROOT) -> list[str]:
    """The `count` chapters of which one of `files` changed last, by git. All of them where git does not know, and with
    LABKIT_BROWSER=all."""
    names = list(names)
    if os.environ.get("LABKIT_BROWSER") == "all":
        return names
    when = {name: _changed(name, files, root) for name in names}
    if None in when.values():
        return names
    latest = set(sorted(names, key=lambda name: (when[name], name))[-count:])
    return [name for name in names if name in latest]


def in_turn(name: str, root: Path = ROOT) -> bool:
    """Whether it is this chapter's turn at this commit. The same for all who test the commit; always without git."""
    head = _git(root, "rev-parse", "HEAD")
    return head is None or hashlib.sha256(f"{name} {head}".encode()).digest()[0] % TURNS == 0


@cache
def _changed(name: str, files: tuple[str, ...], root: Path) -> int | None:
    """Seconds of the last commit that touched a chapter; None if there is no such commit, or no git."""
    paths = [file.format(name=name, number=name[:2]) for file in files]
    done = _git(root, "log", "-1", "--format=%ct", "--", *paths)
    return int(done) if done else None


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
