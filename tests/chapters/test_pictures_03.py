"""What chapter 3 says of its runs: where a slip is shown, and which sentences a crossover may not get."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from labkit.chapters.c03_collectives import crossover, pictures
from tests.book import fake_trace as fake

LINE = SimpleNamespace(alpha=1e-4, beta=1e-9)


@pytest.mark.parametrize(("skip", "step"), [((0, 1), 1), ((2, 3), 3)])
def test_the_circle_opens_at_the_slip(skip: tuple[int, int], step: int) -> None:
    assert pictures.slipped(SimpleNamespace(trace=fake.ring(4, 1000, skip=skip))).step == step
    assert pictures.slipped(SimpleNamespace(trace=fake.ring(4, 1000))).step == 1


def points(**last: float) -> crossover.Points:
    """Recursive doubling is ahead at 1 kB, and each algorithm takes so many seconds at 16 MB."""
    return {name: {1000: [1e-3 if name == "ring" else 5e-4], 16_000_000: [t]} for name, t in last.items()}


def test_two_ranks_are_told_neither_of_earlier_than_never_nor_of_a_tie_that_is_none() -> None:
    said = crossover.where_they_cross(points(ring=0.010, recursive_doubling=0.011, tree=0.0102), 2, LINE).text
    assert "never ahead, because with two ranks" in said and "about as fast" in said
    assert "earlier" not in said and "takes 1.0 times" not in said


def test_a_slower_tree_is_told_with_the_bytes_that_go_one_after_the_other() -> None:
    said = crossover.where_they_cross(points(ring=0.010, recursive_doubling=0.011, tree=0.030), 8, LINE).text
    assert "takes 3.0 times as long" in said and "3.4 times as many of its bytes go one after the other" in said
