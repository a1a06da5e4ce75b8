"""What chapter 1 shows of real ranks: a device that runs out of memory, and three runs that are ill."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import labkit
from labkit.chapters.c01_why_distribute import jobs, loops, memory, pictures, tables
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import DataParallel

pytestmark = pytest.mark.ranks
SMALL = GPTConfig(width=96, layers=2)


def step_by_step(group: Any, batch: int, checkpointed: bool, room: float) -> Any:
    """As in the chapter, with a smaller model."""
    model = GPT(SMALL, 0)
    adam = torch.optim.Adam(model.parameters())
    memory.first_step(model, adam)
    inputs, targets = next(batches(text().train, batch, SMALL.context, 0))
    return memory.watched_step(model, adam, inputs, targets, checkpointed, room)


def test_a_step_ends_where_the_device_is_full_and_says_so() -> None:
    with labkit.world(1) as world:
        whole = world.run(lambda group: step_by_step(group, 4, False, float("inf"))).results[0]
        room = memory.total(next(m for m in whole if m["at"] == "layer 2 forward")) - 1
        run = world.run(lambda group: step_by_step(group, 4, False, room))
        before = world.run(lambda group: step_by_step(group, 4, False, memory.total(whole[0]) - 1))
        saved = world.run(lambda group: step_by_step(group, 4, True, room))
    (moments,) = run.results
    assert [m["at"] for m in moments] == ["before the step", "layer 1 forward", "layer 2 forward"]
    assert "Out of memory at “layer 2 forward”" in pictures.filling(run, room).still.sentence
    assert "Out of memory before the step" in pictures.filling(before, memory.total(whole[0]) - 1).still.sentence
    assert saved.results[0][-1]["at"] == "gradients deleted"
    assert "is large enough" in pictures.filling(saved, room).still.sentence


def training(group: Any) -> None:
    model = jobs.on_a_small_gpu(GPT(SMALL, 0), group)
    parallel = DataParallel(model, group, bucket_bytes=10**9, first_bucket_bytes=10**9, algorithm="ring")
    inputs, targets = next(batches(text().train, 4, SMALL.context, 0, group.rank, group.size))
    group.barrier()
    group.step(pictures.STEP)
    next_token_loss(parallel(inputs), targets).backward()


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_three_patients_are_what_the_question_says(ranks: int) -> None:
    """A transfers longest, and waits for a slow rank, too; B waits for a slow rank; C transfers most of the time."""
    found = {
        patient: labkit.launch(training, ranks, transport="local", **jobs.illness(patient, ranks)).trace
        for patient in jobs.PATIENTS
    }
    a, b, c = (found[patient].step_breakdown(pictures.STEP) for patient in "ABC")
    for ill in (a, b):
        least = min(range(ranks), key=lambda rank: ill[rank]["waiting"])
        assert ill[least]["compute"] == max(row["compute"] for row in ill) > 2.9 * min(row["compute"] for row in ill)
        assert all(row["waiting"] > 0.9 * row["compute"] for rank, row in enumerate(ill) if rank != least)
    assert all(row["waiting"] > row["compute"] + row["transfer"] for row in b[:-1])
    assert all(row["transfer"] > 0.4 * row["total"] for row in a)
    assert all(row["transfer"] > row["compute"] + row["waiting"] for row in c)


def by_layers(group: Any, cut: str, pieces: int) -> tuple[str, None]:
    """Kernels alone: as many for each piece as the rank has layers."""
    for _ in range(pieces * len(torch.arange(loops.DEPTH).tensor_split(group.size)[group.rank])):
        loops.kernel(group, 1 / pieces)
    return cut, None


def test_a_box_has_the_number_of_its_piece_or_of_its_layer() -> None:
    run = labkit.launch(by_layers, 3, "layers", 2, clock="virtual")  # 3, 3 and 2 layers
    assert loops.numbers(run) == ("piece of the batch", [[1, 1, 1, 2, 2, 2], [1, 1, 1, 2, 2, 2], [1, 1, 2, 2]])
    run = labkit.launch(by_layers, 2, "columns", 1, clock="virtual")
    assert loops.numbers(run) == ("layer", [[1, 2, 3, 4], [1, 2, 3, 4]])


def test_a_job_is_told_its_signals_in_plain_words() -> None:
    assert tables.signals(1, 1, 0.5)[0].startswith("No signal: one GPU will do")
    assert tables.signals(13, 1, 0.5)[0] == "Yes: it does not fit."
    assert tables.signals(80, 1000, 80)[0] == "Yes: it does not fit, takes too long and has too much data."
