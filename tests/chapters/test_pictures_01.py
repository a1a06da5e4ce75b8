"""What chapter 1 shows of real ranks: a device that runs out of memory, and three runs of which two are ill."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import labkit
from labkit.chapters.c01_why_distribute import jobs, memory, pictures
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
    """A has a slow rank, whom the others wait for; B transfers most of the time; C computes."""
    found = {
        patient: labkit.launch(training, ranks, transport="local", **jobs.illness(patient, ranks)).trace
        for patient in jobs.PATIENTS
    }
    a, b, c = (found[patient].step_breakdown(pictures.STEP) for patient in "ABC")
    least = min(range(ranks), key=lambda rank: a[rank]["waiting"])
    assert a[least]["compute"] == max(row["compute"] for row in a) > 2.9 * min(row["compute"] for row in a)
    assert all(row["waiting"] > row["compute"] + row["transfer"] for rank, row in enumerate(a) if rank != least)
    assert all(row["transfer"] > row["compute"] + row["waiting"] for row in b)
    assert all(row["compute"] > 0.9 * row["total"] for row in c)
