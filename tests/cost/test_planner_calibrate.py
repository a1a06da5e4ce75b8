"""The fit finds figures that made the measurements, keeps those that no run speaks of, and states its error."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from labkit.cost import planner
from labkit.cost.planner import Efficiency, MeasuredStep, Model, Plan, calibrated, estimate

SMALL = Model("small", 8, 2048, 16, vocabulary=8192, sequence=2048)
PLANS = (
    Plan(data=16, sharding="zero1"), Plan(data=16, sharding="zero3", recompute="full"), Plan(8, data=2, microbatch=4),
    Plan(4, 4, microbatches=8), Plan(2, 2, data=4, microbatches=4), Plan(context=4, data=4, microbatches=2),
    Plan(pipeline=8, data=2, microbatches=8, schedule="gpipe"), Plan(16, microbatch=2),
)  # fmt: skip
CLUSTER = replace(planner.h100_cluster(16), efficiency=Efficiency(overlaps=frozenset()))


def measured(truth: Efficiency, noise: float = 0.0, plans: tuple[Plan, ...] = PLANS) -> list[MeasuredStep]:
    draw, machine = random.Random(3), replace(CLUSTER, efficiency=truth)
    return [
        MeasuredStep(SMALL, CLUSTER, plan, estimate(SMALL, machine, plan).seconds * (1 + draw.uniform(-noise, noise)))
        for plan in plans
    ]


def test_exact_measurements_give_the_figures_back() -> None:
    truth = Efficiency(0.4, 0.3, 0.5, 0.6, 0.35, overlaps=frozenset())
    fit = calibrated(measured(truth))
    for figure in planner.FIGURES:
        assert getattr(fit.efficiency, figure) == pytest.approx(getattr(truth, figure), rel=1e-3)
    assert fit.worst < 1e-4 and fit.on(CLUSTER).efficiency == fit.efficiency


def test_noise_becomes_the_stated_error() -> None:
    truth = Efficiency(0.4, 0.5, 0.8, 0.6, 0.35, overlaps=frozenset())
    fit = calibrated(measured(truth, noise=0.1), ["products", "inside", "across"], start=truth)
    assert 0.01 < fit.median <= fit.worst < 0.12
    assert fit.efficiency.products == pytest.approx(0.4, rel=0.25)
    assert fit.efficiency.memory == truth.memory
    runs = measured(truth, noise=0.1)
    assert fit.errors == pytest.approx([run.predicted(fit.efficiency) / run.seconds - 1 for run in runs])
    assert f"{100 * fit.worst:.1f} % at worst" in str(fit) and "fitted to 8 runs" in str(fit)


def test_a_figure_that_no_run_speaks_of_stays() -> None:
    alone = (Plan(16, microbatch=1), Plan(16, microbatch=2), Plan(16, microbatch=4))
    one_domain = planner.b200_cluster(16, 16)
    truth = Efficiency(0.3, overlaps=frozenset())
    runs = [
        MeasuredStep(SMALL, one_domain, plan, estimate(SMALL, replace(one_domain, efficiency=truth), plan).seconds)
        for plan in alone
    ]
    fit = calibrated(runs, ["products", "across"], start=Efficiency(0.6, overlaps=frozenset()))
    assert fit.efficiency.products == pytest.approx(0.3, rel=1e-3) and fit.efficiency.across == pytest.approx(0.8)


def test_refusals() -> None:
    runs = measured(CLUSTER.efficiency)
    with pytest.raises(ValueError, match="2 runs cannot fix 5 figures: measure 5 or more, or fit fewer"):
        calibrated(runs[:2])
    with pytest.raises(ValueError, match="figures must be one of 'products', .*, not 'speed'"):
        calibrated(runs, ["speed"])
    with pytest.raises(ValueError, match="seconds must be a number above 0, not 0"):
        MeasuredStep(SMALL, CLUSTER, PLANS[0], 0)
