"""What the expensive tests of `make test` take: the chapter that changed last, a few of many; `make test-all`: all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from labkit.wire.transports import kinds

LONG = "LABKIT_LONG" in os.environ  # `make test-all`
ROOT = Path(__file__).parents[1]
TRANSPORTS = [name for name, kind in kinds().items() if kind.device == "cpu"]  # those that run on every machine
REBUILDABLE = ["local", "gloo"]  # those over which groups can be left and formed anew
STAND_IN = "nccl-stand-in"
WIRES = [*TRANSPORTS, STAND_IN]  # for tests in real time: the messages of the last carry none
SLOW_WIRES = [*TRANSPORTS, pytest.param(STAND_IN, marks=pytest.mark.long)]
FILES = (
    "notebooks/{name}.ipynb",
    "labkit/chapters/c{name}",
    "solutions/{name}.ipynb",
    "solutions/{name}",
)


def changed_last(names: Iterable[str], root: Path = ROOT) -> list[Any]:
    """Parameters of a test of each chapter: all are `long` but the one whose files changed last, by the dates of git's
    commits (the last by name where git does not know)."""
    names = sorted(names)
    latest = max(names, key=lambda name: (_changed(name, root), name), default="")
    return [name if name == latest else pytest.param(name, marks=pytest.mark.long) for name in names]


def few(values: Iterable[Any], keep: int = 1, one: bool = False) -> list[Any]:
    """Parameters of a test that costs much for each: all but the first `keep` are `long`.

    A tuple is one value for each argument, or with `one` a value itself.
    """
    spread = [v if isinstance(v, tuple) and not one else (v,) for v in values]
    return [pytest.param(*v, marks=[pytest.mark.long] if n >= keep else []) for n, v in enumerate(spread)]


def _changed(name: str, root: Path) -> int:
    """Seconds of the last commit that touched a chapter; 0 if there is none, or no git."""
    paths = [file.format(name=name) for file in FILES]
    try:
        done = subprocess.run(
            ["git", "log", "-1", "--format=%ct", "--", *paths], cwd=root, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int(done.stdout.strip() or 0) if done.returncode == 0 else 0
