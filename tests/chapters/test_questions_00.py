"""The questions of chapter 0: what its answers to wrong numbers say; and what its first panel tells of a run."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
from torch.distributed import init_process_group

from labkit import launch
from labkit.book.drawing.style import GREY, RED
from labkit.chapters.c00_start_here import panels, pictures
from labkit.collectives import all_reduce
from labkit.cost import naive_all_reduce_bytes_by_rank, ring_all_reduce_bytes
from labkit.course.chapter_file import load_chapter
from labkit.models import MLP, MLPConfig

CHAPTER = load_chapter("00_start_here")
CHAPTERS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize(
    ("id", "typed", "said"),
    [
        ("bytes-of-one-step", "102", "1024 bytes"),  # 26,122 numbers of 4 bytes, in KiB
        ("bytes-of-one-step", "418", "one gradient is asked for"),  # of 4 ranks
        ("bytes-of-one-step", "836", "bits and bytes"),
        ("linear-parameters", "129", "64 weights"),
        ("linear-parameters", "8193", "a bias of its own"),
        ("linear-parameters", "7", "PyTorch documentation"),
        ("follow-the-arrows", "two", "it waits for rank 3 itself"),
        ("follow-the-arrows", "rank one", "Nobody waits for rank 1"),
        ("follow-the-arrows", "the last", "Type the number of a rank"),
    ],
)
def test_a_likely_mistake_is_told_by_its_name(id: str, typed: str, said: str) -> None:
    answer = CHAPTER.question(id, {"world_size": 4, "sum_of_parameters": 26_122}).mark(typed)
    assert not answer.right and said in answer.why


def test_a_loss_of_ln_10_can_be_drawn() -> None:
    sketch = CHAPTER.forecast("loss-curve", {"shown": [0, 5, 29], "batch": 16})
    assert min(abs(level - 2.3) for level in sketch.shown()["y"]) <= 0.05


def test_one_image_is_not_said_to_be_several() -> None:
    told = [CHAPTER.forecast("loss-curve", {"shown": [0, 29], "batch": batch}).prompt for batch in (1, 2)]
    assert "with 1 image on each rank" in told[0] and "with 2 images on each rank" in told[1]


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
    norms = re.findall(r"rank \d: loss \S+, norm of the weights (\d+\.\d+)", run.stdout)
    assert len(norms) == 2 and len(set(norms)) == 1, run.stdout + run.stderr


def model_of(last_layers: list[torch.Tensor]) -> Any:
    """A model that sees zeros everywhere, with these weights of its last layer in its steps."""
    model: Any = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model.last_layers = last_layers
    return model


def drifting(drifts: float, size: int) -> Any:
    """A run in whose last step the weights of each rank are `drifts` away from those of the rank before."""
    each = [model_of([torch.ones(4), torch.ones(4) + drifts * rank]) for rank in range(size)]
    return SimpleNamespace(results=[([2.0, 1.0], model) for model in each])


def test_the_distance_of_the_ranks_is_told_beside_the_size_of_their_weights() -> None:
    assert "6 away from rank 0, whose weights" in pictures.apart(drifting(3.0, 2)).sentence
    assert pictures.together(drifting(3.0, 2)) == ""


def test_ranks_that_do_not_drift_apart_are_told_with_the_losses_and_not_drawn() -> None:
    assert pictures.apart(drifting(0.0, 2)) == pictures.apart(drifting(0.0, 1)) == ""
    told = pictures.curves(drifting(0.0, 2)).sentence
    assert re.match(r"2 ranks, .+ All ranks have the same weights .+ The loss begins near 2 ", told)
    assert re.match(
        r"1 rank, 1 model: .+ test images right. The loss begins", pictures.curves(drifting(0.0, 1)).sentence
    )


@pytest.mark.ranks
def test_what_is_watched_of_a_training_is_in_the_trace_and_with_the_model() -> None:
    def train(group: Any) -> Any:
        model = MLP(MLPConfig((2, 3, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pictures.watch(group, model, optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return model

    run = launch(train, 2)
    spans = [(span.name, span.step) for span in run.trace.spans() if span.rank == 1]
    assert spans == [("gradient", 0), ("optimizer", 0), ("gradient", 1), ("optimizer", 1)]
    first, last = run.results[1].last_layers
    assert not torch.equal(first, last) and torch.equal(last, run.results[1].layers[-1].weight)


class FakeTrace:
    """One step of two ranks. Rank 0 computes from 1 s to 3 s, and is in a sum from 4 s to 8 s; a message of the sum
    goes on until 9 s. Rank 1 begins at 0 s and ends at 10 s, which is no concern of rank 0."""

    def __init__(self) -> None:
        about = {"step": 5, "attrs": {"kind": "compute"}}
        self._spans = [
            SimpleNamespace(rank=0, name="gradient", start=1.0, end=3.0, **about),
            SimpleNamespace(rank=1, name="gradient", start=0.0, end=4.0, **about),
            SimpleNamespace(rank=1, name="optimizer", start=9.0, end=10.0, **about),
            SimpleNamespace(rank=0, name="gradient", start=20.0, end=30.0, **(about | {"step": 6})),
        ]
        of_sum = {"name": "all_reduce", "algorithm": "ring", "shape": (2,), "step": 5, "nested": False, "native": False}
        self._calls = [SimpleNamespace(rank=0, start=4.0, end=8.0, group=0, seq=0, **of_sum)]
        sent = {"src": 0, "dst": 1, "nbytes": 4000, "collective": 0, "step": 5}
        self.sends = [SimpleNamespace(start=5.0, end=9.0, recv_start=4.0, arrived=9.0, **sent)]

    def spans(self) -> list[Any]:
        return self._spans

    def collectives(self, name: str | None = None) -> list[Any]:
        return self._calls


def test_the_parts_of_the_drawn_step_add_up_to_it() -> None:
    trace: Any = FakeTrace()
    parts = pictures.parts_of_step(trace, 5)
    assert parts["whole"] == 8000  # of rank 0 alone: what is white beside it belongs to other steps
    assert (parts["compute"], parts["sums"], parts["rest"]) == (2000, 5000, 1000)
    assert parts["share"] == [25, 62, 13] and (parts["messages"], parts["kB"]) == (1, 4.0)
    assert (parts["quick"], parts["quickest"], parts["slow"], parts["slowest"]) == (2000, 0, 5000, 1)


def trained(*losses: list[float]) -> Any:
    """A run whose ranks had these losses, one list a rank, and ended with a model that sees zeros everywhere."""
    return SimpleNamespace(results=[(list(log), model_of([torch.ones(4)] * len(log))) for log in losses])


def test_the_losses_are_drawn_with_their_mean_unless_there_is_one_rank() -> None:
    several = pictures.curves(trained([2.0, 1.0], [4.0, 2.0]))
    assert [row["mean of the ranks"] for row in several.rows] == [3.0, 1.5]
    assert "ends at 1 to 2, with a mean of 1.5" in several.sentence
    alone = pictures.curves(trained([2.0, 1.0]))
    assert "mean of the ranks" not in alone.rows[0] and "mean" not in alone.sentence


@pytest.mark.ranks
def test_only_ranks_that_there_are_can_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_up(group: Any, kill: str | int = "nobody") -> Any:
        return all_reduce(torch.full((8,), 1.0 + group.rank), group, algorithm="ring")

    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    with contextlib.closing(panels.adding_up(add_up)) as bench:
        kill, asked = bench.controls["kill"], list[dict[str, Any]]()
        monkeypatch.setattr(bench, "_work", asked.append)
        bench.set(kill=3)
        bench.set(ranks=7)
        assert list(kill.options) == ["nobody", *range(7)] and kill.value == 3
        assert asked == [{"ranks": 4, "kill": 3}, {"ranks": 7, "kill": 3}]  # and no run in between
        bench.set(kill=6)
        bench.set(ranks=2)
        assert list(kill.options) == ["nobody", 0, 1] and kill.value == "nobody"
        assert asked[-1] == {"ranks": 2, "kill": "nobody"}


@pytest.mark.parametrize("size", [8, 9])
def test_many_ranks_and_their_mean_fit_into_one_picture(size: int) -> None:
    run = trained(*([float(rank), 0.0] for rank in range(size)))
    assert pictures.curves(run).rows[0]["mean of the ranks"] == (size - 1) / 2
    assert len(pictures.apart(drifting(1.0, size)).rows) == 2


def test_a_mean_lies_on_top_of_thin_ranks_that_have_no_markers() -> None:
    drawn = pictures.curves(trained([2.0, 1.0], [4.0, 2.0]))
    *ranks, mean = drawn.spec["data"]
    assert [(t["name"], t["showlegend"]) for t in ranks] == [("each rank", True), ("each rank", False)]
    assert {t["line"]["color"] for t in ranks} == {GREY} and mean["line"]["color"] == RED
    assert all(t["line"]["width"] < mean["line"]["width"] for t in ranks)
    assert all("marker" not in t and t["mode"] == "lines" for t in drawn.spec["data"])
    assert 'stroke="#111"' not in drawn.svg  # nor has the picture of a page without scripts
    strokes = re.findall(r'<path [^>]*fill="none" stroke="([^"]+)"', drawn.svg)
    assert strokes == [GREY, GREY, RED] and drawn.svg.count('stroke-width="1.3"') == 4  # two lines, and the legend


def test_one_rank_is_a_band_behind_the_mean_of_many() -> None:
    drawn = pictures.one_and_many(trained([3.0, 2.0]), trained([2.0, 1.0], [4.0, 2.0]))
    first, *_, last = drawn.spec["data"]
    assert (first["name"], last["name"]) == ("1 rank, all images", "mean of the 2 ranks")
    assert first["line"]["width"] > 3 * last["line"]["width"]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_what_each_way_sends_is_predicted_as_it_is_computed(size: int) -> None:
    sends = CHAPTER.forecast("who-sends", {"world_size": size})
    star, ring = naive_all_reduce_bytes_by_rank(1000, 4, size), ring_all_reduce_bytes(4000, size)
    assert sends.declared == pytest.approx((star[0] / 1000, ring / 1000, size * ring / 1000))
    assert sends.why(sends.declared, sends.declared) == ""
    half = (sends.declared[0], sends.declared[1] / 2, sends.declared[2])
    assert "once more" in sends.why(half, sends.declared)


def test_the_time_limits_that_the_chapter_quotes_are_those_of_pytorch() -> None:
    assert "10 minutes for NCCL and 30 minutes for other backends" in (init_process_group.__doc__ or "")
    page = (CHAPTERS / "00_start_here.ipynb").read_text()
    assert "10 minutes with NCCL and to 30 minutes with other backends" in page


def test_the_picture_of_one_rank_and_many_says_how_far_they_are_apart() -> None:
    many = trained([2.0, 1.0], [4.0, 2.0])
    assert "never more than 0.5 away" in pictures.one_and_many(trained([3.0, 2.0]), many).sentence
    assert "to the last bit" in pictures.one_and_many(trained([3.0, 1.5]), many).sentence
