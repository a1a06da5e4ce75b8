"""Learning rates for another batch, and schedules: against the sentences of their papers."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from labkit import optim
from labkit.wire.errors import RefusedError


def test_linear_and_square_root_of_the_batch():
    assert optim.linear_scaled(0.1, 8192, 256) == pytest.approx(3.2)  # Goyal et al. 2017
    assert optim.sqrt_scaled(0.1, 8192, 256) == pytest.approx(0.1 * math.sqrt(32))
    assert optim.linear_scaled(0.4, 128, 512) == pytest.approx(0.1)  # downwards too
    assert optim.linear_scaled(0.3, 64, 64) == optim.sqrt_scaled(0.3, 64, 64) == 0.3


@pytest.mark.parametrize("scaled", [optim.linear_scaled, optim.sqrt_scaled])
@pytest.mark.parametrize("wrong", [(0.1, 0, 256), (0.1, 256, -1), (0.0, 256, 256), (math.nan, 256, 256)])
def test_a_rate_or_a_batch_of_zero_is_refused(scaled, wrong):
    with pytest.raises(RefusedError, match="more than zero"):
        scaled(*wrong)


def test_gradual_warmup_goes_from_the_small_rate_to_k_times_it():
    base, k, steps = 0.1, 32, 100
    rate = optim.warmup(steps, start=1 / k)
    for t in (0, 1, 37, 99):
        assert k * base * rate(t) == pytest.approx(base + t / steps * (k * base - base))
    assert [rate(t) for t in (100, 101, 10_000)] == [1, 1, 1]
    assert optim.warmup(0)(0) == 1 and optim.warmup(4)(0) == 0 and optim.warmup(4)(3) == 0.75


def test_decays_begin_at_one_and_end_where_they_should():
    for schedule in (optim.cosine(110, begin=10, end=0.1), optim.polynomial(110, begin=10, end=0.1)):
        assert [schedule(t) for t in (0, 10)] == [1, 1]
        assert [schedule(t) for t in (110, 500)] == pytest.approx([0.1, 0.1])
        values = [schedule(t) for t in range(10, 111)]
        assert all(a > b for a, b in zip(values, values[1:], strict=False))
    assert optim.cosine(100)(50) == pytest.approx(0.5)
    assert optim.polynomial(100)(50) == pytest.approx(0.25)
    assert optim.polynomial(100, power=1)(25) == pytest.approx(0.75)
    tenths = optim.milestones([30, 60, 80])
    assert [tenths(t) for t in (0, 29, 30, 59, 60, 80)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.001])


def test_schedules_multiply_and_fit_torch():
    schedule = optim.combined(optim.warmup(4), optim.cosine(12, begin=4), optim.constant)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=2.0)
    scheduler = LambdaLR(optimizer, schedule)
    for step in range(14):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(2 * schedule(step))
        optimizer.step()
        scheduler.step()
    assert schedule(2) == 0.5 and schedule(8) == pytest.approx(0.5) and schedule(13) == pytest.approx(0)


@pytest.mark.parametrize("make", [
    lambda: optim.warmup(-1), lambda: optim.warmup(5, start=2), lambda: optim.cosine(10, begin=10),
    lambda: optim.polynomial(0), lambda: optim.cosine(10, begin=-1),
])  # fmt: skip
def test_schedules_that_make_no_sense_are_refused(make):
    with pytest.raises(RefusedError):
        make()
