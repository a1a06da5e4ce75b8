"""Every chapter over a grid of its parameters, in the long lane: nothing raises, and what is concluded holds.

Three things are conclusions. A sentence of `book.conclude` keeps its claim and its numbers, and the claim is evaluated
again. A line "...: True", and a table's "yes", hold with other parameters too if they hold in the committed outputs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.book.reading.conclusions import CONCLUSION, holds
from labkit.commands.run import execute

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
GLOO = {"world_size": 3, "transport": "gloo"}
GRIDS: dict[str, list[dict[str, Any]]] = {  # both ends of what the cell `parameters` allows, odd worlds, other wires
    "00": [{"world_size": 2, "steps": 7}, GLOO, {"world_size": 7, "seed": 3, "batch": 64}],
    "01": [{"world_size": 2, "width": 64, "batch": 1}, GLOO, {"world_size": 7, "width": 384, "seed": 1}],
    "02": [{"world_size": 2, "megabytes": 0.1}, GLOO, {"world_size": 7, "megabytes": 64.0, "seed": 1}],
    "03": [{"world_size": 2, "megabytes": 1.0}, GLOO, {"world_size": 7, "width": 32, "seed": 1}],
    "04": [{"world_size": 2, "steps": 4, "batch": 2}, GLOO, {"world_size": 7, "width": 16, "seed": 1}],
    "05": [{"world_size": 2, "steps": 1}, GLOO, {"world_size": 7, "width": 32, "batch": 1}, {"width": 192}],
    "06": [{"world_size": 2, "seed": 1}, GLOO, {"world_size": 7, "seed": 2}, {"rows": 1, "width": 256, "seed": 3}],
    "07": [{"world_size": 2, "steps": 2, "seed": 0}, GLOO | {"per_rank": 1, "seed": 23}, {"world_size": 7, "seed": 7}],
    "08": [{"world_size": 2, "steps": 36}, GLOO | {"steps": 40}, {"world_size": 7, "seed": 1}, {"seed": 2}],
    "09": [{"world_size": 2, "steps": 1, "batch": 1}, GLOO, {"world_size": 7, "head_width": 4, "seed": 1}],
    "10": [{"world_size": 2}, GLOO | {"seed": 3}, {"world_size": 7, "steps": 1}, {"width": 8, "per_rank": 3}],
    "11": [{"world_size": 2, "per_rank": 8}, GLOO, {"world_size": 7, "seed": 1}, {"world_size": 4, "steps": 3}],
    "12": [{"world_size": 2, "steps": 10}, GLOO | {"per_rank": 3}, {"world_size": 7, "seed": 1}, {"world_size": 8}],
    "13": [{"world_size": 2, "batch": 64}, GLOO | {"rows": 4000}, {"world_size": 7, "seed": 1}, {"batch": 2048}],
    "14": [{"world_size": 2, "steps": 20, "seed": 1}, GLOO | {"steps": 20}, {"world_size": 7, "steps": 20, "seed": 3}],
    "15": [{"world_size": 2, "tokens": 1e9}, GLOO, {"world_size": 7, "seed": 1}, {"world_size": 6}],
    "16": [{"world_size": 4, "seed": 1}, {"world_size": 4, "transport": "gloo"}, {"seed": 2}],
    "17": [{"world_size": 4, "steps": 4, "slow_factor": 1.5}, {"world_size": 8, "seed": 1}],
    "18": [{"world_size": 2, "steps": 6, "megabytes": 8}, {"world_size": 8, "seed": 1}],
    "19": [{"replicas": 2, "ranks": 1}, {"replicas": 6, "seed": 1}],
    "20": [{"lost": 0, "steps": 14, "batch": 7}, {"lost": 7, "seed": 1}],
    "21": [{"samples": 50, "run_seconds": 4.0}, {"seed": 1}],
}
CASES = [(path, values) for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")) for values in GRIDS.get(path.name[:2], [{}])]
WORD = re.compile(r": (True|False)\b|^(True|False)$|  (yes|no)(?=  |$)", re.MULTILINE)


def test_every_chapter_has_a_grid() -> None:
    assert {path.name[:2] for path in NOTEBOOKS.glob("[0-9]*.ipynb")} == set(GRIDS)


@pytest.mark.parametrize(
    ("chapter", "values"), CASES, ids=[f"{path.name[:2]} {values}".replace("'", "") for path, values in CASES]
)
def test_what_a_chapter_says_holds_with_other_parameters(chapter: Path, values: dict[str, Any], tmp_path: Path) -> None:
    problem, code = execute(chapter, tmp_path / chapter.name, values, timeout=600)
    assert code == 0, problem
    assert wrong(nbformat.read(chapter, 4), nbformat.read(tmp_path / chapter.name, 4)) == []


ANSWERED = """
from labkit.book.reading.predicting import Prediction

def answered(self):
    declared = self._forecast.declared
    if self._forecast.kind == "choice":
        return ((declared[0] + {other}) % len(self._forecast.choices),)
    if self._forecast.kind == "sketch":
        return declared[::-1] if {other} else declared
    return tuple(x * (1 + {other}) for x in declared)

Prediction._earlier = answered
"""


@pytest.mark.parametrize("other", [0, 1], ids=["as declared", "otherwise"])
@pytest.mark.parametrize("chapter", sorted({path for path, _ in CASES}), ids=lambda path: path.name[:2])
def test_a_chapter_goes_on_whatever_was_predicted(chapter: Path, other: int, tmp_path: Path) -> None:
    book = nbformat.read(chapter, 4)
    book.cells.insert(0, nbformat.v4.new_code_cell(ANSWERED.format(other=other)))
    nbformat.write(book, tmp_path / chapter.name)
    problem, code = execute(tmp_path / chapter.name, tmp_path / "run.ipynb", {}, timeout=600)
    assert code == 0, problem


def wrong(committed: Any, run: Any) -> list[str]:
    """What the cells of `run` say that is not so."""
    before = {cell.id: said(cell) for cell in committed.cells if cell.cell_type == "code"}
    found = []
    for cell in run.cells:
        for output in cell.get("outputs", []):
            kept = output.get("data", {}).get(CONCLUSION)
            found += [f"{cell.id}: {c}" for c in (kept or {}).get("claims", []) if not holds(c, kept["numbers"])]
        if cell.cell_type == "code" and cell.id in before:
            found += [f"{cell.id}: it said {w}" for w in broken(before[cell.id], said(cell))]
    return found


def said(cell: Any) -> list[bool]:
    """Each True and False, yes and no, of a cell's outputs."""
    texts = [o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.get("outputs", [])]
    return [next(filter(None, match.groups())) in ("True", "yes") for text in texts for match in WORD.finditer(text)]


def broken(before: list[bool], now: list[bool]) -> list[str]:
    """What held before and does not now: anything, if all held; else what is in the same place of as many."""
    if all(before):
        return ["False"] * now.count(False) if before else []
    same = zip(before, now, strict=True) if len(before) == len(now) else ()
    return [f"False in place {k}" for k, (a, b) in enumerate(same) if a and not b]
