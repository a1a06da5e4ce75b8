"""What chapter 4 says in words that no cell computes: the numbers of its opening, and of ImageNet."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import cost
from labkit.chapters.c04_data_parallelism.machine import BACKWARD, FORWARD
from labkit.models import GPTConfig
from labkit.parallel import Sampler

TEXT = (Path(__file__).parents[2] / "notebooks" / "04_data_parallelism.ipynb").read_text(encoding="utf-8")


def test_the_opening_says_how_long_the_step_is() -> None:
    nbytes = 4 * GPTConfig(layers=4).num_parameters
    average = 1e3 * cost.ring_all_reduce_time(nbytes, 4, 0.2e-3, 1 / 50e6)
    computing = 1e3 * (FORWARD + BACKWARD)
    assert "60 ms" in TEXT and computing == pytest.approx(60)
    assert "a gradient of 0.9 MB" in TEXT and nbytes / 1e6 == pytest.approx(0.9, abs=0.05)
    assert "nearly 28 ms" in TEXT and 27.5 < average < 28
    assert "takes 88 ms" in TEXT and round(computing + average) == 88
    assert "almost a third" in TEXT and 0.3 < average / (computing + average) < 1 / 3


def test_imagenet_does_not_divide_by_32_ranks() -> None:
    count = 1_281_167
    read = sum(sum(map(len, Sampler(count, (rank, 32), batch=256).epoch(0))) for rank in range(32))
    assert f"of the {count:,} training images of ImageNet, 32 ranks read {read - count} twice" in TEXT
