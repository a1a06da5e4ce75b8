"""ZeRO's bytes: held and sent by each rank, against the sources, the paper's formulas and a cut made by torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.units import GB

stages = st.sampled_from([0, 1, 2, 3])
precisions = st.sampled_from(["mixed", "single"])
numels = st.integers(0, 10_000)
sizes = st.integers(1, 70)
units = st.lists(numels, min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("stage", "gigabytes", "saving"), [(0, 112, 1), (1, 29.3, 3.82), (2, 15.5, 7.21), (3, 1.75, 64)]
)
def test_seven_billion_on_64_gpus(stage, gigabytes, saving):
    assert round(cost.zero_state_bytes(7e9, 64, stage) / GB, 2 if stage == 3 else 1) == gigabytes
    assert round(cost.zero_saving(64, stage), 2) == saving
    assert cost.zero_state_bytes(1, 64, 3) == 0.25  # bytes a parameter


def test_175_billion_on_64_gpus():
    assert cost.zero_state_bytes(175e9, 64, 3) == 43.75 * GB
    assert cost.state_parts(175e9).parameters / 64 == pytest.approx(5.47 * GB, abs=0.005 * GB)


def test_four_and_eight_times_are_limits():
    assert [cost.zero_saving_limit(stage) for stage in range(4)] == [1, 4, 8, math.inf]
    assert [cost.zero_saving_limit(stage, "single") for stage in range(4)] == [1, 2, 4, math.inf]
    for stage in (1, 2):  # "~4x" and "~8x" in the textbook's table: never reached, and far off on one node
        savings = [cost.zero_saving(size, stage) for size in (1, 8, 64, 1024, 10**9)]
        assert savings == sorted(savings) and savings[0] == 1
        assert savings[-2] < cost.zero_saving_limit(stage) == pytest.approx(savings[-1], rel=1e-6)
    assert round(cost.zero_saving(8, 1), 2) == 2.91 and round(cost.zero_saving(8, 2), 2) == 4.27
    # Stage 3 has no limit: N times less on N ranks.
    assert cost.zero_saving(1024, 3) == 1024


@given(params=st.integers(0, 10**12), size=sizes)
def test_the_formulas_of_the_paper(params, size):
    per_parameter = [16, 4 + 12 / size, 2 + 14 / size, 16 / size]
    single = [16, 8 + 8 / size, 4 + 12 / size, 16 / size]
    for stage in range(4):
        assert cost.zero_state_bytes(params, size, stage) == pytest.approx(params * per_parameter[stage])
        assert cost.zero_state_bytes(params, size, stage, "single") == pytest.approx(params * single[stage])


@given(units=units, size=sizes, stage=stages, precision=precisions)
def test_what_each_rank_holds_is_what_torch_cuts(units, size, stage, precision):
    weights, grads, adam = (2, 2, 12) if precision == "mixed" else (4, 4, 8)
    expected = [0] * size
    for unit in units:
        for rank, part in enumerate(torch.arange(unit).tensor_split(size)):
            expected[rank] += weights * (part.numel() if stage == 3 else unit)
            expected[rank] += grads * (part.numel() if stage >= 2 else unit)
            expected[rank] += adam * (part.numel() if stage >= 1 else unit)
    assert cost.zero_state_bytes_by_rank(units, size, stage, precision) == expected
    assert all(type(held) is int for held in cost.zero_state_bytes_by_rank(units, size, stage, precision))


@given(numel=numels, size=sizes, stage=stages, precision=precisions)
def test_by_rank_and_by_formula_agree(numel, size, stage, precision):
    held = cost.zero_state_bytes_by_rank(numel, size, stage, precision)
    assert sum(held) == pytest.approx(size * cost.zero_state_bytes(numel, size, stage, precision))
    assert max(held) - min(held) <= 16
    sent = cost.zero_bytes_per_step_by_rank(numel, size, stage)
    assert sum(sent) == pytest.approx(size * cost.zero_bytes_per_step(numel, size, stage))


@given(units=units, size=sizes, stage=stages, itemsize=st.sampled_from([2, 4, 8]), grad=st.sampled_from([None, 2, 4]))
def test_all_ranks_together_send_whole_tensors(units, size, stage, itemsize, grad):
    # A reduce-scatter or all-gather moves N - 1 times its tensor, however it is cut; an all-reduce twice that.
    wide = itemsize if grad is None else grad
    moved = sum(units) * (size - 1)
    total = {0: 2 * wide, 1: wide + itemsize, 2: wide + itemsize, 3: wide + 2 * itemsize}[stage] * moved
    assert sum(cost.zero_bytes_per_step_by_rank(units, size, stage, itemsize, grad)) == total


@given(k=st.integers(0, 1000), size=sizes)
def test_two_two_and_three_times_the_parameters(k, size):
    nbytes = 2 * k * size
    share = (size - 1) / size * nbytes
    for stage, times in [(0, 2), (1, 2), (2, 2), (3, 3)]:
        assert cost.zero_bytes_per_step(k * size, size, stage) == pytest.approx(times * share)
        assert cost.zero_bytes_per_step_by_rank(k * size, size, stage) == [times * (size - 1) * 2 * k] * size


def test_zero1_by_all_reduce_and_broadcast_sends_half_as_much_again():
    # The textbook: "ZeRO-1 ... None (same as DDP)", and in the text an AllReduce and then a broadcast of the shards.
    described = cost.zero1_by_all_reduce_bytes(7e9, 64)
    assert described == pytest.approx(3 * 63 / 64 * 14 * GB)
    assert described == pytest.approx(1.5 * cost.zero_bytes_per_step(7e9, 64, 1))
    assert described == pytest.approx(cost.zero_bytes_per_step(7e9, 64, 3))
    assert cost.zero_bytes_per_step(7e9, 64, 1) == pytest.approx(cost.zero_bytes_per_step(7e9, 64, 0))


def test_one_rank_sends_nothing():
    assert [cost.zero_bytes_per_step_by_rank(100, 1, stage) for stage in range(4)] == [[0]] * 4


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.zero_state_bytes(1, 4, 4), "stage must be one of 0, 1, 2, 3, not 4"),
        (lambda: cost.zero_state_bytes(1, 4, True), "stage .*True"),
        (lambda: cost.zero_state_bytes(1, 0, 1), "size .*0"),
        (lambda: cost.zero_state_bytes(-1, 4, 1), "params .*-1"),
        (lambda: cost.zero_state_bytes(1, 4, 1, "half"), "precision .*'half'"),
        (lambda: cost.zero_state_bytes_by_rank(1.5, 4, 1), "params must be a whole number .*1.5"),
        (lambda: cost.zero_state_bytes_by_rank([3, -1], 4, 1), r"params .*\[3, -1\]"),
        (lambda: cost.zero_bytes_per_step(1, 4, 1, 0), "itemsize .*0"),
        (lambda: cost.zero_bytes_per_step(-1, 4, 1), "params .*-1"),
        (lambda: cost.zero_bytes_per_step_by_rank(1, 4, 1, 2, 0), "grad_itemsize .*0"),
        (lambda: cost.zero_saving_limit(5), "stage .*5"),
        (lambda: cost.zero1_by_all_reduce_bytes(1, 0), "size .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
