"""alpha and beta come back from times that were made with them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from labkit import cost

SIZES = [4**k for k in range(14)]  # 1 byte to 64 MiB


@dataclass
class Message:
    nbytes: int
    start: float
    end: float
    recv_start: float = 0.0


@dataclass
class Bare:
    nbytes: int
    start: float
    end: float


@given(alpha=st.floats(1e-7, 1e-2), beta=st.floats(1e-12, 1e-8))
def test_exact_times_give_the_link_back(alpha, beta):
    fit = cost.fit_alpha_beta((n, alpha + n * beta) for n in SIZES)
    assert fit.alpha == pytest.approx(alpha, rel=1e-6)
    assert fit.beta == pytest.approx(beta, rel=1e-6)
    assert fit.residual < 1e-9 and fit.worst < 1e-9
    assert fit.bandwidth == pytest.approx(1 / beta, rel=1e-6)
    assert fit.half_size == pytest.approx(alpha / beta, rel=1e-6)
    assert fit.seconds(10**6) == pytest.approx(alpha + 10**6 * beta, rel=1e-6)


def test_small_messages_count_as_much_as_large_ones():
    """An ordinary fit would take its latency from the noise of the largest message."""
    alpha, beta = 20e-6, 1e-9
    points = [(n, alpha + n * beta) for n in SIZES]
    points[-1] = (SIZES[-1], points[-1][1] * 1.05)  # 3 ms of noise, 170 times the latency
    fit = cost.fit_alpha_beta(points)
    assert fit.alpha == pytest.approx(alpha, rel=0.05)
    assert fit.beta == pytest.approx(beta, rel=0.05)


def test_errors_say_how_far_off_the_fit_is():
    random.seed(3)
    alpha, beta, noise = 20e-6, 1e-9, 0.1
    inside = 0
    for _ in range(100):
        points = [(n, (alpha + n * beta) * (1 + random.gauss(0, noise))) for n in SIZES]
        fit = cost.fit_alpha_beta(points)
        inside += abs(fit.alpha - alpha) <= 2 * fit.alpha_error and abs(fit.beta - beta) <= 2 * fit.beta_error
        assert fit.residual == pytest.approx(noise, rel=0.7)
        assert fit.residual <= fit.worst
        assert fit.points == len(SIZES)
    assert inside >= 75  # two standard errors hold each of the two 95 times in 100


def test_residuals_are_relative_and_least():
    points = [(1, 1.0), (1, 1.2), (1000, 2.0), (1000, 2.4)]
    fit = cost.fit_alpha_beta(points)

    def squares(alpha: float, beta: float) -> float:
        return sum(((alpha + n * beta) / t - 1) ** 2 for n, t in points)

    best = squares(fit.alpha, fit.beta)
    assert fit.residual == pytest.approx(math.sqrt(best / 4))
    for a, b in ((1.001, 1), (0.999, 1), (1, 1.001), (1, 0.999)):
        assert squares(fit.alpha * a, fit.beta * b) > best


def test_neither_latency_nor_bandwidth_is_negative():
    falling = cost.fit_alpha_beta([(1, 2.0), (10, 1.5), (100, 1.0)])
    assert falling.beta == 0 and falling.bandwidth == math.inf and falling.half_size == math.inf
    # The best constant in relative terms: sum(1/t) / sum(1/t^2).
    assert falling.alpha == pytest.approx((1 / 2 + 1 / 1.5 + 1) / (1 / 4 + 1 / 2.25 + 1))
    early = cost.fit_alpha_beta([(10, 0.5), (20, 2.0), (40, 5.0)])
    assert early.alpha == 0
    rates = [20, 10, 8]
    assert early.beta == pytest.approx(sum(rates) / sum(r * r for r in rates))


def test_two_points_fit_without_error_estimates():
    fit = cost.fit_alpha_beta([(0, 1.0), (10, 3.0)])
    assert (fit.alpha, fit.beta) == (pytest.approx(1.0), pytest.approx(0.2))
    assert math.isnan(fit.alpha_error) and math.isnan(fit.beta_error)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "two different sizes, not 0"),
        ([(8, 1.0), (8, 2.0)], "two different sizes, not 1"),
        ([(8, 1.0), (16, 0.0)], "16 bytes cannot take 0 seconds"),
        ([(8, 1.0), (16, -2.0)], "not -2.0"),
        ([(-8, 1.0), (16, 2.0)], "not -8.0"),
        ([(8, math.nan), (16, 2.0)], "not nan"),
    ],
)
def test_impossible_points(points, message):
    with pytest.raises(ValueError, match=message):
        cost.fit_alpha_beta(points)


def test_sends_of_a_trace():
    alpha, beta = 1e-4, 1e-8
    sends = []
    for n in (100, 10_000, 1_000_000):
        seconds = alpha + n * beta
        for outlier in (1.0, 1.0, 1.0, 9.0):  # the median does not see one slow message in four
            sends.append(Message(n, 5.0, 5.0 + seconds * outlier, recv_start=4.0))
    sends.append(Message(1000, 1.0, 7.0 + alpha + 1000 * beta, recv_start=7.0))  # waited 6 s for its receiver
    sends.append(Message(64, 2.0, 2.0))  # took no time that the clock could see
    assert [n for n, _ in cost.points_of_sends(sends)] == [100, 1000, 10_000, 1_000_000]
    fit = cost.fit_sends(sends)
    assert fit.alpha == pytest.approx(alpha) and fit.beta == pytest.approx(beta)
    assert fit.points == 4


def test_sends_without_the_receivers_side():
    fit = cost.fit_sends([Bare(0, 1.0, 1.5), Bare(10, 2.0, 3.5)])
    assert fit.alpha == pytest.approx(0.5) and fit.beta == pytest.approx(0.1)
