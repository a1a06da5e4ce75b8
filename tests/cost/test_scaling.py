"""Efficiency, goodput, Amdahl with communication, and the fit of two sizes: against known laws and noisy draws."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from labkit import cost

seconds, sizes = st.floats(1e-3, 1e3), st.integers(1, 10_000)
growths, kinds = st.sampled_from(["bytes", "messages", "none"]), st.sampled_from(["strong", "weak"])


@given(one=seconds, size=sizes, communication=st.floats(0, 10))
def test_strong_and_weak_efficiency_of_the_fleet_law(one, size, communication):
    strong = cost.step_seconds(one, size, communication)
    assert cost.strong_efficiency(one, strong, size) == pytest.approx(cost.scaling_efficiency(one, size, communication))
    weak = cost.step_seconds(one * size, size, communication)  # every rank has the work of one
    assert cost.weak_efficiency(one, weak) == pytest.approx(one / (one + communication))


@given(size=sizes, serial=st.floats(0, 1))
def test_amdahl_with_communication(size, serial):
    alone = cost.amdahl_speedup(size, serial)
    assert alone == pytest.approx(1 / (serial + (1 - serial) / size))
    assert alone <= size * (1 + 1e-12) and (serial == 0 or alone <= cost.amdahl_ceiling(serial) * (1 + 1e-12))
    assert cost.amdahl_speedup(size, serial, 0.1) == pytest.approx(1 / (1 / alone + 0.1))
    assert cost.amdahl_speedup(size, serial, lambda n: 0.001 * n) == pytest.approx(1 / (1 / alone + 0.001 * size))


def test_latency_ends_the_speedup():
    # 1/N + c N is least at sqrt(1/c): 1,000 ranks for a millionth.
    best = cost.fastest_size(lambda n: cost.amdahl_speedup(n, 0.0, lambda n: 1e-6 * n))
    assert best == 1000
    assert cost.fastest_size(lambda n: cost.amdahl_speedup(n, 0.0), limit=5000) == 5000
    assert cost.fastest_size(lambda n: -n) == 1


def test_mfu_and_goodput():
    # 175B, 2M tokens, 1,024 GPUs of 1979e12, 2.07 s: one half by the textbook's own assumption.
    step = cost.training_seconds(175e9, 2e6, 1979e12 / 2, 1024)
    assert cost.mfu(175e9, 2e6, step, 1024, 1979e12) == pytest.approx(0.5)
    assert cost.goodput(0.5, 0.5) == 0.25 and cost.equivalent_ranks(0.25, 1024) == 256
    # Measured on all, MFU is the product already: 3.5 s of exposed communication make 18.6 percent of it.
    assert cost.mfu(175e9, 2e6, step + 3.5, 1024, 1979e12) == pytest.approx(cost.goodput(0.5, step / (step + 3.5)))


@given(kind=kinds, growth=growths, compute=st.floats(1, 100), communication=st.floats(0, 10))
def test_two_exact_sizes_give_the_law_back(kind, growth, compute, communication):
    def law(n):
        return compute / (n if kind == "strong" else 1) + communication * cost.communication_growth(growth, n)

    points = [cost.Measured(n, law(n), 1e-3) for n in (1, 4)]
    fit = cost.fit_scaling(points, kind, growth)
    assert fit.compute == pytest.approx(compute) and fit.communication == pytest.approx(communication, abs=1e-9)
    for n in (1, 2, 8, 100):
        assert fit.seconds(n) == pytest.approx(law(n))
        alone = compute / (n if kind == "strong" else 1)
        assert fit.efficiency(n) == pytest.approx(alone / law(n))
    assert fit.error(1) == pytest.approx(1e-3) and fit.error(4) == pytest.approx(1e-3)


@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize("growth", ["bytes", "messages"])
def test_the_error_is_that_of_repeated_experiments(kind, growth):
    rng, truth, noise = random.Random(f"{kind} {growth}"), (8.0, 0.3), {2: 0.02, 4: 0.05, 6: 0.03}

    def law(n):
        return truth[0] / (n if kind == "strong" else 1) + truth[1] * cost.communication_growth(growth, n)

    predicted, efficient, fit = [], [], None
    for _ in range(2000):
        points = [cost.Measured(n, law(n) + rng.gauss(0, noise[n]), noise[n]) for n in (2, 4)]
        fit = cost.fit_scaling(points, kind, growth)
        predicted.append(fit.seconds(16))
        efficient.append(fit.efficiency(16))

    def deviation(values):
        return math.sqrt(fmean((v - fmean(values)) ** 2 for v in values))

    assert fmean(predicted) == pytest.approx(law(16), abs=5 * fit.error(16) / math.sqrt(2000))
    assert deviation(predicted) == pytest.approx(fit.error(16), rel=0.08)
    assert deviation(efficient) == pytest.approx(fit.efficiency_error(16), rel=0.12)


def test_the_cliff():
    # Strong scaling by bytes: efficiency A / (A + 2 C (N - 1)), one half at N = 1 + A / 2C.
    points = [cost.Measured(n, 1.0 / n + 0.01 * 2 * (n - 1) / n, 1e-4) for n in (2, 4)]
    fit = cost.fit_scaling(points)
    assert fit.size_at_efficiency(0.5) == 51
    assert fit.efficiency(51) == pytest.approx(0.5) and fit.efficiency(52) < 0.496
    few, many = fit.size_interval(0.5)
    assert few < 51 < many
    wide = fit.size_interval(0.5, deviations=4)
    assert wide[0] < few and wide[1] > many
    # Without communication there is none.
    flat = cost.fit_scaling([cost.Measured(n, 1.0 / n, 1e-4) for n in (2, 4)])
    assert flat.size_at_efficiency(0.9) == math.inf


def test_the_interval_of_the_cliff_comes_from_the_error_of_the_ratio():
    times, noise = {2: 1.9, 4: 3.3}, {2: 0.05, 4: 0.02}

    def fitted(**moved):
        return cost.fit_scaling(
            [cost.Measured(n, times[n] + moved.get(f"n{n}", 0.0), noise[n]) for n in times], "weak", "messages"
        )

    def ratio(**moved):
        return fitted(**moved).communication / fitted(**moved).compute

    # The error of C / A by moving each time a little, and adding the two effects as independent errors.
    effects = [(ratio(**{f"n{n}": 1e-6}) - ratio()) / 1e-6 * noise[n] for n in times]
    spread = 2 * math.hypot(*effects)
    for efficiency in (0.1, 0.01):
        ends = [1 + (1 / efficiency - 1) / (2 * r) for r in (ratio() + spread, ratio() - spread)]
        assert fitted().size_interval(efficiency) == tuple(math.floor(end) for end in ends)


@pytest.mark.parametrize("growth", ["bytes", "messages", "none"])
def test_a_weak_law_says_how_the_same_job_scales_strongly(growth):
    points = [cost.Measured(2, 3.0, 0.1), cost.Measured(4, 3.5, 0.2), cost.Measured(1, 2.0, 0.1)]
    weak = cost.fit_scaling(points, "weak", growth)
    strong = weak.strong(64)
    # On 64 ranks the two are the same step, with the same error; on 1 it is 64 times the work.
    assert strong.seconds(64) == pytest.approx(weak.seconds(64))
    assert strong.error(64) == pytest.approx(weak.error(64)) and strong.error(1) == pytest.approx(64 * weak.error(1))
    assert strong.efficiency(64) == pytest.approx(weak.efficiency(64)) and strong.efficiency(1) == 1
    assert strong.seconds(1) == pytest.approx(64 * weak.compute)
    with pytest.raises(ValueError, match="strong scaling already"):
        strong.strong(64)


def test_a_third_size_tells_which_law_holds():
    points = [cost.Measured(n, 1.0 + 0.02 * 2 * (n - 1), 0.002) for n in (2, 4, 8)]  # latency grows with N
    right = cost.fit_scaling(points[:2], "weak", "messages")
    wrong = cost.fit_scaling(points[:2], "weak", "bytes")
    assert abs(right.misses(points[2])) < 1e-6 and wrong.misses(points[2]) > 3
    # Fitted to all three the wrong law cannot pass through them.
    assert abs(cost.fit_scaling(points, "weak", "bytes").misses(points[2])) > 3


def test_measured_from_repeats():
    point = cost.Measured.of(4, [1.0, 2.0, 3.0])
    assert (point.size, point.seconds) == (4, 2.0) and point.error == pytest.approx(1 / math.sqrt(3))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.strong_efficiency(0, 1, 2), "one .*0"),
        (lambda: cost.weak_efficiency(1, -1), "many .*-1"),
        (lambda: cost.equivalent_ranks(0.5, 0), "size .*0"),
        (lambda: cost.mfu(1, 1, 1, 1, 0), "peak_flops .*0"),
        (lambda: cost.goodput(0, 1), "single_mfu .*0"),
        (lambda: cost.amdahl_speedup(4, 1.5), "serial_fraction .*1.5"),
        (lambda: cost.amdahl_speedup(4, 0.5, lambda n: -n), "communication .*-4"),
        (lambda: cost.fastest_size(lambda n: n, 0), "limit .*0"),
        (lambda: cost.Measured(4, 1.0, 0), "error .*0"),
        (lambda: cost.Measured.of(4, [1.0]), "at least two measured times, not 1"),
        (lambda: cost.fit_scaling([cost.Measured(4, 1.0, 0.1)] * 2), r"two sizes, not at \[4, 4\]"),
        (lambda: cost.fit_scaling([cost.Measured(1, 1, 0.1), cost.Measured(2, 0.1, 0.1)]), "not the law of these"),
        (lambda: cost.fit_scaling([], "both"), "kind .*'both'"),
        (lambda: cost.fit_scaling([], "weak", "square"), "growth .*'square'"),
        (
            lambda: cost.fit_scaling([cost.Measured(2, 1, 0.1), cost.Measured(3, 1, 0.1)], "weak", "none"),
            r"sizes \[2, 3\] cannot tell",
        ),
        (
            lambda: cost.fit_scaling([cost.Measured(1, 2, 0.1), cost.Measured(2, 2, 0.1)]).size_at_efficiency(1),
            "efficiency",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_what_memory_lets_a_kernel_reach():
    """The roofline: 295 operations a byte balance an H100; a product of one row has one, an addition a sixth."""
    assert round(cost.machine_balance()) == 295
    assert round(cost.product_intensity(8192, 4096, 4096)) == 1638
    square = 4096  # n / 3 for numbers of 2 bytes: 2 n^3 operations, 3 n^2 numbers
    assert cost.product_intensity(square, square, square) == pytest.approx(square / 3)
    assert cost.product_intensity(1, square, square) == pytest.approx(1, rel=1e-3)
    assert cost.elementwise_intensity(1, reads=2, writes=1) == pytest.approx(1 / 6)
    assert cost.roofline_share(1638) == 1 and cost.roofline_share(1 / 6) == pytest.approx(1 / 6 / 295.22, rel=1e-4)
    assert cost.roofline_share(10, peak_flops=40, memory_bandwidth=2) == 0.5
    rows = next(n for n in range(1, 4096) if cost.roofline_share(cost.product_intensity(n, 4096, 4096)) == 1)
    assert rows == 345  # not 295, since the two other matrices move as well
    with pytest.raises(ValueError, match="intensity .*0"):
        cost.roofline_share(0)
