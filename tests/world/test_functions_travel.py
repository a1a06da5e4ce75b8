"""What can be sent to ranks, and what comes home."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import labkit
from labkit.wire.dtypes import DTYPES

pytestmark = pytest.mark.ranks


def test_results_come_by_rank() -> None:
    run = labkit.launch(lambda group, k: (group.rank * k, group.size), 3, 10)
    assert run.results == [(0, 3), (10, 3), (20, 3)]
    assert run.failures == [] and run.seconds > 0


def test_closures_lambdas_and_nested_functions_travel() -> None:
    table = {"scale": 3}

    def scaled(x: int) -> int:
        return x * table["scale"]

    run = labkit.launch(lambda group: [f(group.rank) for f in (scaled, lambda x: x + table["scale"])], 2)
    assert run.results == [[0, 3], [3, 4]]


def test_tensors_of_every_dtype_come_home_as_they_were() -> None:
    def work(group):
        return [(torch.tensor([[1, 2]]).to(d), torch.zeros(0, 2, dtype=d), torch.ones((), dtype=d)) for d in DTYPES]

    for dtype, (x, empty, scalar) in zip(DTYPES, labkit.launch(work, 1).results[0], strict=True):
        assert x.dtype == empty.dtype == scalar.dtype == dtype
        assert (x.shape, empty.shape, scalar.shape) == ((1, 2), (0, 2), ())
        assert torch.equal(x.view(torch.uint8), torch.tensor([[1, 2]]).to(dtype).view(torch.uint8))


def test_a_slice_brings_only_its_own_elements() -> None:
    run = labkit.launch(
        lambda group: [torch.zeros(1 << 20)[:3], {"deep": torch.ones(1 << 20)[5:6]}], 1, max_result_bytes=1 << 16
    )
    assert run.results[0][0].tolist() == [0, 0, 0] and run.results[0][1]["deep"].tolist() == [1]


def test_a_result_inside_a_graph_comes_home_without_it() -> None:
    got = labkit.launch(lambda group: (torch.ones(2, requires_grad=True) * 3).sum(), 1).results[0]
    assert got == 6 and not got.requires_grad


def test_parameters_stay_parameters() -> None:
    got = labkit.launch(lambda group, m: m, 1, torch.nn.Linear(2, 2)).results[0]
    assert [type(p) for p in got.parameters()] == [torch.nn.Parameter] * 2


NOTEBOOK = """
import pathlib, sys
from dataclasses import dataclass
import labkit

@dataclass
class Pair:
    a: int
    def twice(self): return Pair(2 * self.a)

def work(group, start): return Pair(start.a + group.rank).twice()

run = labkit.launch(work, 2, Pair(5))
print(run.results == [Pair(10), Pair(12)], type(run.results[0]) is Pair)

module = pathlib.Path(sys.argv[1], "edited_module.py")
sys.path.insert(0, sys.argv[1])

def answer(group):
    import edited_module
    return edited_module.answer()

for number in (1, 2, 3):
    module.write_text(f"def answer(): return {number}\\n")
    print(labkit.launch(answer, 1).results)
"""


def test_classes_of_a_notebook_travel_both_ways_and_an_edited_module_is_seen_by_the_next_launch(tmp_path) -> None:
    """Edits of the same length within one second are what Python's own cache of compiled files cannot tell apart."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", NOTEBOOK, str(tmp_path)], capture_output=True, text=True, env=environ)
    assert done.stdout == "True True\n[1]\n[2]\n[3]\n", done.stderr


def test_a_function_of_an_edited_module_is_seen_by_the_next_launch(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "edited_too.py"
    module.write_text("def work(group): return 'old'\n")
    import edited_too

    assert labkit.launch(edited_too.work, 2).results == ["old", "old"]
    module.write_text("def work(group): return 'new'\n")
    later = module.stat().st_mtime + 2  # the notebook's own import left a compiled file with this second on it
    os.utime(module, (later, later))
    assert labkit.launch(edited_too.work, 2).results == ["new", "new"]


def test_the_environment_of_now_is_seen(monkeypatch) -> None:
    labkit.launch(lambda group: None, 1)
    monkeypatch.setenv("LABKIT_TEST_VALUE", "later")
    assert labkit.launch(lambda group: os.environ.get("LABKIT_TEST_VALUE"), 1).results == ["later"]
    monkeypatch.delenv("LABKIT_TEST_VALUE")
    assert labkit.launch(lambda group: os.environ.get("LABKIT_TEST_VALUE"), 1).results == [None]


def test_seeds_are_the_same_on_every_rank_and_every_run() -> None:
    import random

    import numpy as np

    def draw(group):
        return random.random(), float(np.random.rand()), torch.rand(2).tolist()

    first, second, other = (labkit.launch(draw, 2, seed=s).results for s in (7, 7, 8))
    assert first[0] == first[1] and first == second
    assert all(a != b for a, b in zip(first[0], other[0], strict=True))  # random, numpy and torch, each


def test_plain_torch_distributed_works_inside() -> None:
    import torch.distributed as dist

    def work(group):
        x = torch.tensor([group.rank + 1.0])
        dist.all_reduce(x)
        return dist.get_rank(), dist.get_world_size(), x.item()

    assert labkit.launch(work, 3).results == [(r, 3, 6.0) for r in range(3)]


@dataclass
class Config:
    width: int = 3


def test_defaults_and_dataclasses_travel_as_arguments() -> None:
    assert labkit.launch(lambda group, c: c.width + group.rank, 2, Config()).results == [3, 4]
