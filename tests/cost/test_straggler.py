"""The expected maximum: against known values, against draws, and against the three times that the textbook states."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from labkit import cost

GPUS, MEAN, STEP, P99 = 1024, 0.180, 0.340, 0.720  # the textbook's job
sizes = st.integers(2, 100_000)


def test_known_maxima_of_normals():
    # Exact for 2 and 3: 1/sqrt(pi) and 3/(2 sqrt(pi)); 4 and 10 from tables of order statistics (Harter 1961).
    known = {1: 0, 2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi), 4: 1.029375373, 10: 1.538752731}
    for size, value in known.items():
        assert cost.normal_maximum(size) == pytest.approx(value, abs=2e-9)


@given(size=sizes)
def test_normals_grow_like_the_root_of_the_logarithm(size):
    assert cost.normal_maximum(size) < math.sqrt(2 * math.log(size))
    assert cost.normal_maximum(size) > cost.normal_maximum(size - 1)
    assert cost.harmonic(size) == pytest.approx(cost.harmonic(size - 1) + 1 / size)


def draws(kind, rng):
    match kind:
        case cost.Normal():
            return rng.gauss(kind.mean, kind.deviation)
        case cost.Exponential():
            return kind.base + rng.expovariate(1 / kind.delay)
        case cost.Lomax():
            return kind.base + kind.scale * (rng.random() ** (-1 / kind.tail) - 1)
    return kind.base + kind.delay * (rng.random() < kind.chance)


KINDS = [
    cost.Normal(0.18, 0.02), cost.Exponential(0.15, 0.03), cost.Lomax(0.17, 0.02, 3.3), cost.RareDelay(0.18, 0.5, 0.01)
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_drawn_maxima_come_out_as_expected(kind, size):
    rng = random.Random(f"{kind} {size}")
    maxima = sorted(max(draws(kind, rng) for _ in range(size)) for _ in range(4000))
    error = math.sqrt(fmean((m - fmean(maxima)) ** 2 for m in maxima) / len(maxima))
    assert abs(fmean(maxima) - kind.expected_maximum(size)) < 4 * error + 1e-12
    if size > 1 and not isinstance(kind, cost.RareDelay):
        below = sum(m < kind.quantile_of_maximum(size, 0.9) for m in maxima) / len(maxima)
        assert abs(below - 0.9) < 4 * math.sqrt(0.09 / len(maxima))


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_waits_for_nobody(kind):
    assert kind.expected_maximum(1) == pytest.approx(kind.mean)


def test_which_distribution_has_the_textbooks_three_times():
    # It names none, and gives 180, 340 and 720 ms. Fit two, and ask for the third.
    normal, exponential = (kind.fitted(MEAN, STEP, GPUS) for kind in (cost.Normal, cost.Exponential))
    for kind in (normal, exponential):
        assert (kind.mean, kind.expected_maximum(GPUS)) == pytest.approx((MEAN, STEP))
    assert round(1000 * normal.deviation, 1) == 49.3 and round(1000 * exponential.delay, 1) == 24.6
    assert round(1000 * normal.quantile_of_maximum(GPUS, 0.99)) == 390
    assert round(1000 * exponential.quantile_of_maximum(GPUS, 0.99)) == 439
    # Both are far below 720. Smooth noise with a heavy tail has all three.
    heavy = cost.Lomax.fitted(MEAN, STEP, P99, GPUS)
    assert (heavy.mean, heavy.expected_maximum(GPUS)) == pytest.approx((MEAN, STEP))
    assert heavy.quantile_of_maximum(GPUS, 0.99) == pytest.approx(P99) and round(heavy.tail, 2) == 3.35
    near = cost.Lomax(0.172, 0.0174, 3.3)  # rounded constants, worked out elsewhere
    told = (near.mean, near.expected_maximum(GPUS), near.quantile_of_maximum(GPUS, 0.99))
    assert [round(1000 * t) for t in told] == [180, 340, 728]
    # And so has one stall of 540 ms, in 3 of 10 steps.
    rare = cost.RareDelay.fitted(MEAN, STEP, P99, GPUS)
    assert rare.delay == pytest.approx(0.540) and rare.expected_maximum(GPUS) == pytest.approx(STEP)
    assert round(rare.stalled_steps(GPUS), 3) == 0.296 and rare.quantile_of_maximum(GPUS, 0.99) == P99
    assert round(1 / rare.chance) == 2915  # a GPU stalls once in so many steps
    assert rare.mean == pytest.approx(MEAN, rel=2e-3)
    # What a barrier costs on average, whatever the distribution: 47 percent of the step.
    assert round(1 - MEAN / STEP, 2) == 0.47


def test_growth_is_not_faster_than_linear():
    """The textbook: "BSP's barrier cost grows faster than linearly with cluster size". It cannot."""
    for kind in (cost.Normal.fitted(MEAN, STEP, GPUS), cost.Exponential.fitted(MEAN, STEP, GPUS)):
        waits = [kind.expected_maximum(n) - kind.mean for n in (GPUS, 2 * GPUS, 4 * GPUS)]
        assert 1 < waits[1] / waits[0] < 1.11 and waits[2] / waits[1] < waits[1] / waits[0]
    rare, heavy = (kind.fitted(MEAN, STEP, P99, GPUS) for kind in (cost.RareDelay, cost.Lomax))
    # What tells the two apart is another size: stalls soon come in every step, a power law goes on growing.
    assert [round(1000 * kind.expected_maximum(8 * GPUS)) for kind in (heavy, rare)] == [500, 688]
    assert heavy.expected_maximum(100 * GPUS) > 0.88 > 0.73 > rare.expected_maximum(100 * GPUS)
    powers = [heavy.expected_maximum(n) - heavy.base for n in (100 * GPUS, 200 * GPUS)]
    assert powers[1] / powers[0] == pytest.approx(2 ** (1 / heavy.tail), rel=0.01)
    waits = [rare.expected_maximum(n) - rare.base for n in (GPUS, 2 * GPUS, 4 * GPUS, 64 * GPUS)]
    assert round(waits[1] / waits[0], 2) == 1.70 and waits[-1] == pytest.approx(0.540)
    # What does grow faster than linearly is the GPU time that all together wait, N times the wait of one.
    assert 2 * GPUS * waits[1] > 2 * GPUS * waits[0]


@given(times=st.lists(st.floats(0, 10), min_size=1, max_size=30), size=st.integers(1, 50))
def test_no_maximum_exceeds_the_sum(times, size):
    expected = cost.expected_maximum_of(times, size)
    assert expected <= size * fmean(times) * (1 + 1e-9) + 1e-12
    assert fmean(times) - 1e-9 <= expected <= max(times) + 1e-9


def test_measured_times_by_counting_all_draws():
    times = [1.0, 2.0, 5.0]
    pairs = [max(a, b) for a in times for b in times]
    assert cost.expected_maximum_of(times, 2) == pytest.approx(fmean(pairs))
    assert cost.expected_maximum_of(times, 1) == pytest.approx(fmean(times))


def test_one_percent_of_a_thousand():
    # "At 1000 GPUs with 1 percent probability ... approximately 10 GPUs straggle every iteration."
    stall = cost.RareDelay(0.18, 0.5, 0.01)
    assert 1000 * stall.chance == 10
    assert stall.stalled_steps(1000) == pytest.approx(1 - 0.99**1000) and 1 - stall.stalled_steps(1000) < 5e-5
    # So nearly every step is slow already, and more GPUs make none slower.
    assert stall.expected_maximum(100_000) / stall.expected_maximum(1000) < 1.0001
    assert round(stall.stalled_steps(69), 2) == 0.50  # half of the steps on 69


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.Normal(0.1, -1), "deviation .*-1"),
        (lambda: cost.Exponential(-0.1, 1), "base .*-0.1"),
        (lambda: cost.RareDelay(1, 1, 1.5), "chance .*1.5"),
        (lambda: cost.Lomax(1, 1, 1), "tail .*1"),
        (lambda: cost.Lomax.fitted(0.18, 0.34, 0.40, 1024), "slow=0.4 s: no power law"),
        (lambda: cost.Lomax.fitted(0.18, 0.34, 3, 1024), "slow=3 s: no power law"),
        (lambda: cost.Normal(1, 1).expected_maximum(0), "size .*0"),
        (lambda: cost.Normal(1, 1).quantile_of_maximum(4, 1), "q .*1"),
        (lambda: cost.RareDelay(1, 1, 0.5).quantile_of_maximum(4, 2), "q .*2"),
        (lambda: cost.Normal.fitted(0.3, 0.2, 8), "not below the mean"),
        (lambda: cost.Normal.fitted(0.1, 0.2, 1), "at least two ranks"),
        (lambda: cost.Exponential.fitted(0.1, 5, 8), "mean=0.1 s is too short"),
        (lambda: cost.RareDelay.fitted(0.1, 0.3, 0.2, 8), "slow=0.2 s"),
        (lambda: cost.expected_maximum_of([], 2), "samples .*0"),
        (lambda: cost.normal_maximum(1.5), "size .*1.5"),
        (lambda: cost.harmonic(0), "size .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
