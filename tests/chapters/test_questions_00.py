"""The questions of chapter 0: what its answers to wrong numbers say; and what its first panel tells of a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch

from labkit.chapters.c00_start_here import pictures
from labkit.course.chapter_file import load_chapter

CHAPTER = load_chapter("00_start_here")
CHAPTERS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize(
    ("id", "typed", "said"),
    [
        ("bytes-of-one-step", "102", "1024 bytes"),  # 26,122 numbers of 4 bytes, in KiB
        ("linear-parameters", "129", "64 weights"),
        ("linear-parameters", "8193", "a bias of its own"),
    ],
)
def test_a_likely_mistake_is_told_by_its_name(id: str, typed: str, said: str) -> None:
    answer = CHAPTER.question(id, {"world_size": 4, "sum_of_parameters": 26_122}).mark(typed)
    assert not answer.right and said in answer.why


def test_a_loss_of_ln_10_can_be_drawn() -> None:
    sketch = CHAPTER.forecast("loss-curve", {"shown": [0, 5, 29], "batch": 16})
    assert min(abs(level - 2.3) for level in sketch.shown()["y"]) <= 0.05


@pytest.mark.parametrize(("size", "alive"), [(2, "Ranks 0 and 1 are alive"), (3, "Ranks 0 to 2 are alive")])
def test_the_first_panel_says_who_is_alive(size: int, alive: str) -> None:
    run = SimpleNamespace(results=[(torch.full((8,), float(sum(range(size + 1)))), "nobody")] * size)
    assert pictures.sums(run).startswith(alive)


def test_the_first_panel_says_that_nobody_was_killed_where_there_is_no_such_rank() -> None:
    told = pictures.sums(SimpleNamespace(results=[(torch.full((8,), 3.0), 7)] * 2))
    assert told.startswith("There is no rank 7 here, so nobody was killed. Ranks 0 and 1 are alive")


def test_the_timeline_shows_a_step_of_median_duration() -> None:
    took = [90.0, 5.0, 1.0, 2.0, 7.0, 3.0]  # the first is left out
    trace = SimpleNamespace(during_step=lambda step: (10.0, 10.0 + took[step]))
    assert pictures.ordinary_step(trace, len(took)) == 5


@pytest.mark.long
def test_the_script_of_the_summary_runs_under_torchrun(tmp_path: Path) -> None:
    notebook = nbformat.read(CHAPTERS / "00_start_here.ipynb", 4)
    (cell,) = (cell for cell in notebook.cells if cell.id == "summary")
    (tmp_path / "train.py").write_text(cell.source.split("```python\n")[1].split("```")[0])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    norms = re.findall(r"rank \d: loss \S+, norm of the weights (\S+)", run.stdout)
    assert len(norms) == 2 and len(set(norms)) == 1, run.stdout + run.stderr


@pytest.mark.parametrize(("drifts", "said"), [(0.0, "the same weights"), (3.0, "6 away from rank 0, whose weights")])
def test_the_distance_of_the_ranks_is_told_beside_the_size_of_their_weights(drifts: float, said: str) -> None:
    logs = [[(2.0, torch.ones(4)), (1.0, torch.ones(4) + drifts * rank)] for rank in range(2)]
    assert said in pictures.apart(SimpleNamespace(results=[(log, None) for log in logs])).sentence
