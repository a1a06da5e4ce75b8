"""Killed and stopped from outside at a moment that nobody chose, several at once, in the middle of large messages."""

from __future__ import annotations

import random
import time

import pytest
import torch
from leftovers import NEVER, alive, eventually
from slices import SLOW_WIRES, few

import labkit
from labkit import RankFailed, collectives

pytestmark = pytest.mark.ranks


def large(group):
    while True:
        collectives.all_reduce(torch.ones(1 << 20), group, algorithm="ring")
        collectives.all_reduce(torch.ones(1 << 18), group, algorithm="native")


@pytest.mark.parametrize("transport", SLOW_WIRES)
@pytest.mark.parametrize("seed", few(range(4)))
def test_any_moment(seed, transport) -> None:
    dice = random.Random(seed)
    job = labkit.start(large, 4, transport=transport, timeout=NEVER)
    time.sleep(dice.random() * 0.6)
    victim = dice.randrange(4)
    job.kill(victim)
    with pytest.raises(RankFailed) as caught:
        job.wait()
    assert (caught.value.rank, caught.value.failure.kind) == (victim, "died")
    assert eventually(lambda: not any(alive(p) for p in job.pids))


def test_two_at_once_name_one_of_the_two() -> None:
    job = labkit.start(large, 4, transport="local")
    time.sleep(0.4)
    job.kill(1)
    job.kill(3)
    with pytest.raises(RankFailed) as caught:
        job.wait()
    assert caught.value.rank in (1, 3) and {f.rank for f in caught.value.run.failures if f.kind == "died"} <= {1, 3}


def test_all_at_once() -> None:
    job = labkit.start(large, 3, transport="gloo")
    time.sleep(0.3)
    for rank in range(3):
        job.kill(rank)
    with pytest.raises(RankFailed) as caught:
        job.wait()
    assert caught.value.failure.kind == "died"


def test_stopping_a_job_in_the_middle_of_everything() -> None:
    for transport in ("local", "gloo"):
        job = labkit.start(large, 4, transport=transport)
        time.sleep(0.4)
        job.stop()
        assert job.over and not any(alive(p) for p in job.pids)
