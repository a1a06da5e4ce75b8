"""The workbenches of chapter 1: which controls each of them has, and which pictures it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from labkit import book
from labkit.book.explorers import Explorer
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.c01_why_distribute import jobs, loops, memory, pictures, tables

Run = Callable[..., Any]


def will_it_train(run: Run) -> Workbench:
    """Which model is trained, in which precision, on how many ranks, and what is cut among them."""
    controls = {
        "model": list(memory.MODELS),
        "ranks": [1, 2, 4, 8],
        "cut": list(memory.STAGES),
        "precision": ["float32", "mixed"],
        "full_size": False,
    }
    views: list[Any] = [pictures.fits, pictures.also_alive]
    return book.workbench(run, controls, views, title="One training step of a large model", ranks=1, memory="resident")


def filling(run: Run) -> Workbench:
    """How much a small device has to hold in a step, and whether it checkpoints."""
    controls = {"batch": (1, 8), "layers": (1, 8), "checkpointed": False}
    return book.workbench(run, controls, [pictures.filling], title="A step on a device of 64 MB", ranks=1)


def shared_step(run: Run) -> Workbench:
    """How many ranks share a step, how long its kernel is, how large its gradient, and how fast the links."""
    controls = {
        "ranks": [1, 2, 3, 4, 6, 8, 16],
        "compute_ms": (20, 400, 20),
        "megabytes": [0.1, 1.0, 10.0],
        "link": list(jobs.LINKS),
    }
    views: list[Any] = [pictures.took, pictures.speed_up, pictures.timeline]
    return book.workbench(run, controls, views, title="A step, shared by more and more ranks", ranks=4)


def where(run: Run, world_size: int) -> Workbench:
    """Whether messages leave early, how fast the links are, and which rank computes slowly."""
    controls = {"hide": False, "link": list(jobs.SPEEDS), "slow_rank": ["nobody", 0, 1]}
    views: list[Any] = [pictures.diagnosis, pictures.breakdown, pictures.step_timeline]
    return book.workbench(run, controls, views, title="Where does the time go?", ranks=world_size)


def patients(run: Run, world_size: int) -> Workbench:
    """Three runs: one has slow links, one a slow rank, and one has both; the reader tells which."""
    controls = {"patient": list(jobs.PATIENTS)}
    return book.workbench(run, controls, [pictures.breakdown], title="Who is ill, and of what?", ranks=world_size)


def three_cuts(run: Run, whole: Tensor, world_size: int) -> Workbench:
    """Which loop of a forward pass is cut, among how many ranks, over which links, and in how many pieces."""
    controls = {
        "ranks": (1, 8),
        "cut": list(loops.CUTS),
        "pieces": [1, 2, 4, 8, 16, 64],
        "link": ["10 MB/s", "1 GB/s"],
    }
    views: list[Any] = [loops.same(whole), loops.holes]
    return book.workbench(run, controls, views, title="One forward pass, cut in three ways", ranks=world_size)


def your_job() -> Explorer:
    """A job of the reader's own: how large the model is, and how much it reads."""
    sliders = {
        "billions": book.Slider("parameters", 0.5, 80, 3, 0.5, "billion"),
        "billion_tokens": book.Slider("tokens", 1, 1000, 300, 1, "billion"),
        "terabytes": book.Slider("data", 0.5, 80, 1, 0.5, "TB"),
    }
    return book.explorer("Does this job need more than one GPU?", sliders, tables.signals)
