"""The critical batch from (batch, steps) pairs: exact where the law holds, refused where it cannot."""

from random import Random
from statistics import median

import pytest

from labkit import cost
from labkit.cost.training.batch import samples_to_target, steps_to_target
from labkit.optim import critical_batch_interval, fit_critical_batch
from labkit.wire.errors import RefusedError

BATCHES = (2, 8, 32, 128, 512)


def test_runs_that_follow_the_law_give_its_two_numbers_back():
    fit = fit_critical_batch([(b, steps_to_target(b, 50, 20)) for b in BATCHES])
    assert (fit.least_steps, fit.least_examples, fit.critical) == pytest.approx((50, 1000, 20))
    assert fit.residual == pytest.approx(0, abs=1e-12)
    assert fit.steps(20) == pytest.approx(100)
    for b in BATCHES:  # the same thing as the hyperbola of the paper
        s, e = fit.steps(b), samples_to_target(b, 50, 20)
        assert (s / fit.least_steps - 1) * (e / fit.least_examples - 1) == pytest.approx(1)
    assert cost.critical_batch_from(8, 0.5, 1) > 0  # one law on both sides of the wall


def test_relative_errors_count_so_that_no_end_of_the_curve_outvotes_the_other():
    true = {b: steps_to_target(b, 50, 20) for b in BATCHES}
    for b in (2, 512):
        fit = fit_critical_batch([(x, s * (1.1 if x == b else 1)) for x, s in true.items()])
        assert 0.8 < fit.critical / 20 < 1.25 and 0.01 < fit.residual < 0.06


def test_the_interval_over_seeds_holds_the_truth_and_shrinks_with_more_seeds():
    random, width = Random(0), {}
    for seeds in (6, 60):
        runs = {b: [steps_to_target(b, 50, 20) * random.uniform(0.8, 1.2) for _ in range(seeds)] for b in BATCHES}
        low, high = critical_batch_interval(runs, resamples=300)
        assert low < 20 < high
        assert low < fit_critical_batch([(b, median(s)) for b, s in runs.items()]).critical < high
        width[seeds] = high - low
    assert width[60] < 0.6 * width[6]


@pytest.mark.parametrize("points", [
    [(8, 100.0)], [(8, 100.0), (8, 90.0)],  # one batch size
    [(8, 100.0), (16, 0.0)], [(0, 100.0), (16, 50.0)],
    [(8, 100.0), (16, 120.0), (32, 150.0)],  # more steps with more batch
    [(8, 100.0), (16, 49.0), (32, 24.0)],  # better than in proportion
])  # fmt: skip
def test_points_without_a_critical_batch_are_refused(points):
    with pytest.raises(RefusedError):
        fit_critical_batch(points)
