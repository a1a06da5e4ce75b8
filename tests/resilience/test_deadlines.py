"""Deadlines cannot contradict each other, and an inner one ends no later than the one around it."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, strategies as st

from labkit.resilience.deadlines import FACTORS, Deadlines, Limit
from labkit.wire.errors import RefusedError, WaitTimeout

GOOD = {"message": 1.0, "exchange": 2.0, "vote": 3.0, "step": 6.0, "join": 7.0, "hang": 8.0}


def test_a_set_in_order_is_taken() -> None:
    assert Deadlines(**GOOD).exchange == 2.0


@pytest.mark.parametrize("inner, outer", list(itertools.pairwise(GOOD)))
def test_an_outer_one_that_is_not_longer_is_refused(inner, outer) -> None:
    with pytest.raises(RefusedError, match=f"{outer}=.* s must be longer than"):
        Deadlines(**{**GOOD, outer: GOOD[inner]})


def test_a_step_has_room_for_exchange_and_vote_together() -> None:
    with pytest.raises(RefusedError, match="exchange and vote .5 s. together"):
        Deadlines(**{**GOOD, "step": 4.9})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "3", None])
@pytest.mark.parametrize("name", list(GOOD))
def test_a_limit_that_is_none_is_refused(name, value) -> None:
    with pytest.raises(RefusedError, match=name):
        Deadlines(**{**GOOD, name: value})


@given(seconds=st.floats(1e-6, 99_000), least=st.floats(1e-3, 60))
def test_a_set_made_for_a_step_is_always_consistent(seconds, least) -> None:
    made = Deadlines.for_step(seconds, least)  # its own check would refuse it
    assert made.message >= least * 0.999 and made.message >= 3 * seconds * 0.999


def test_the_paper_waits_a_minute_for_steps_of_twenty_seconds() -> None:
    assert Deadlines.for_step(20).message == 60


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), "1"])
def test_a_step_of_no_length_is_refused(seconds) -> None:
    with pytest.raises(RefusedError, match="seconds"):
        Deadlines.for_step(seconds)


@given(sizes=st.lists(st.floats(0.001, 1000), min_size=2, max_size=6))
def test_an_inner_limit_never_ends_after_the_one_around_it(sizes) -> None:
    limit = None
    for n, size in enumerate(sizes):
        inner = Limit(f"level {n}", size, limit)
        assert limit is None or (inner.end <= limit.end and inner.left <= size)
        limit = inner


def test_a_limit_that_is_over_says_what_it_was_for_and_who_cut_it() -> None:
    step = Limit("step", 0.02)
    message = Deadlines.for_step(1).start("message", step)
    message.check("rank 3's gradient")
    time.sleep(0.03)
    assert message.over and message.left == 0
    with pytest.raises(WaitTimeout, match=r"rank 3's gradient: the deadline of 3 s for a message is over, cut .*step"):
        message.check("rank 3's gradient")
    with pytest.raises(WaitTimeout, match=r"of 0.02 s for a step is over$"):
        step.check()


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(RefusedError, match="no deadline 'epoch'"):
        Deadlines.for_step(1).start("epoch")
    assert set(FACTORS) == set(GOOD)
