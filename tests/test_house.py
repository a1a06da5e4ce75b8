"""The house is the one that CONTRIBUTING.md draws: its rooms, from top to bottom, and imports that only go down."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LABKIT = ROOT / "labkit"


def floors() -> list[str]:
    """The rooms of labkit from the top of the page's picture to the bottom."""
    picture = (ROOT / "CONTRIBUTING.md").read_text().partition("## The house")[2].partition("\n### ")[0]
    lines = [line.split("  ")[0] for line in re.findall(r"^    labkit/(.*)$", picture, flags=re.M)]
    return [
        name.strip().removeprefix("labkit/").rstrip("/").removesuffix(".py")
        for line in lines
        for name in line.split(",")
    ]


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from, anywhere in it and for types alone too."""
    package = ("labkit", *path.relative_to(LABKIT).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "labkit" and len(name) > 1}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(LABKIT).parts[0].removesuffix(".py")


def test_the_picture_has_every_room() -> None:
    rooms = {p.stem for p in LABKIT.iterdir() if (p.is_dir() and p.name != "__pycache__") or p.suffix == ".py"}
    assert sorted(floors()) == sorted(rooms - {"__init__"})


def test_imports_go_downwards_only() -> None:
    height = {room: n for n, room in enumerate(reversed(floors()))}
    upwards = [
        f"{path.relative_to(ROOT)} imports {room}"
        for path in LABKIT.rglob("*.py") if path.stem not in ("__init__", "cli") or path.parent != LABKIT
        for room in imports(path) if room in height and height[room] > height[room_of(path)]
    ]  # fmt: skip
    assert upwards == []


@pytest.mark.parametrize("room", ["labkit", "labkit.cost", "labkit.course"])
def test_what_needs_no_pytorch_loads_none(room: str) -> None:
    code = f"import sys, {room}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nothing_that_compiles_grammars_of_web_addresses_is_loaded_with_a_chapter() -> None:
    """More than a second of every kernel: see `labkit/__init__.py`."""
    code = "import sys, labkit.book, nbformat, plotly.graph_objects; print('lark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
