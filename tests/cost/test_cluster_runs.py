"""A cluster through a trace of failures: exact in time, so equal to looking at any moment; and what must add up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labkit import cost
from labkit.cost.simulators.clusters import METHODS

CLUSTER = cost.Cluster(domains=24, gpus_per_domain=8, domains_per_replica=3, widths=(8, 7, 6), samples=8)
KINDS = (
    cost.FailureKind("one", 0.6, 0.8), cost.FailureKind("tray", 0.3, 0.2, 4), cost.FailureKind("pair", 0.1, 0.3, 2)
)  # fmt: skip
TRACE = cost.draw_failures((24 + 10) * 8, 6, 40, seed=8, rate=0.05, kinds=KINDS)


def moments(number: int = 600) -> np.ndarray:
    return (np.arange(number) + 0.5) / number * TRACE.days


@pytest.mark.parametrize("spares", [0, 4])
@pytest.mark.parametrize("method", METHODS)
def test_the_mean_over_time_is_that_of_many_moments(method, spares):
    found = cost.run_cluster(TRACE, CLUSTER, method, spares)
    seen = np.array([CLUSTER.loss(TRACE.failed_by_domain(t, 8)[:, : 24 + spares], method) for t in moments()])
    assert found.loss.mean == pytest.approx(seen.mean(), abs=0.002)
    assert 0 < found.loss.mean <= found.worst.mean
    assert found.worst.highest >= seen.max() - 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_without_packing_it_is_that_of_many_moments_too(method):
    found = cost.run_unpacked(TRACE, CLUSTER, method)
    seen = [CLUSTER.loss(TRACE.failed_by_domain(t, 8)[:, :24], method, packed=False) for t in moments()]
    assert found.mean == pytest.approx(np.mean(seen), abs=0.002)
    assert found.mean > cost.run_cluster(TRACE, CLUSTER, method).loss.mean


def test_the_history_of_domains_is_what_the_trace_says_at_any_time():
    history = cost.domain_history(TRACE, CLUSTER, 10)
    for day in (0.0, 1.3, 5.9):
        at = (history.start <= day) & (day < history.start + history.days)
        tally = CLUSTER.tally(TRACE.failed_by_domain(day, 8))[:, : history.values.shape[1]]
        assert history.values[at].tolist() == tally.tolist()


@pytest.mark.parametrize("spares", [0, 7])
@pytest.mark.parametrize("method", METHODS)
def test_gpu_days_add_up(method, spares):
    run = cost.run_cluster(TRACE, CLUSTER, method, spares)
    total = math.fsum(run.gpu_days[kind] for kind in ("useful", "waiting", "idle", "stranded", "failed"))
    assert total - run.gpu_days["boosted"] == pytest.approx((24 + spares) * 8 * 6)
    assert run.gpu_days["useful"] == pytest.approx((1 - run.loss.mean) * 24 * 8 * 6)
    ours = TRACE.gpu < (24 + spares) * 8
    lost = (np.minimum(TRACE.end, 6) - TRACE.start)[ours].sum() / TRACE.samples
    assert run.gpu_days["failed"] == pytest.approx(lost)


def test_without_failures_nothing_is_lost_paused_or_boosted():
    quiet = cost.draw_failures(CLUSTER.gpus, 3, 4, rate=0)
    for method in METHODS:
        run = cost.run_cluster(quiet, CLUSTER, method)
        assert run.loss.mean == run.worst.mean == 0 and run.energy.mean == 1
        assert run.gpu_days["useful"] == pytest.approx(CLUSTER.gpus * 3)
        assert cost.run_unpacked(quiet, CLUSTER, method).mean == 0
        found = cost.fixed_batch(quiet, CLUSTER, method)
        assert (found.throughput.mean, found.paused.mean, found.uninterrupted) == (1, 0, 1)


def test_methods_keep_their_order_in_every_sample():
    paused = {m: cost.fixed_batch(TRACE, CLUSTER, m, 5).by_sample for m in METHODS}
    assert (paused["dp-drop"] >= paused["ntp"]).all() and (paused["ntp"] >= paused["ntp-pw"]).all()
    assert paused["dp-drop"].mean() > paused["ntp"].mean() > paused["ntp-pw"].mean()


@pytest.mark.parametrize("method", METHODS)
def test_a_fixed_batch_pauses_while_it_cannot_be_met(method):
    found = cost.fixed_batch(TRACE, CLUSTER, method, 4)
    by_moment = [
        CLUSTER.use(TRACE.failed_by_domain(t, 8)[:, :28], method, grow=True).trained < CLUSTER.batch for t in moments()
    ]
    assert found.paused.mean == pytest.approx(np.mean(by_moment), abs=0.004)
    np.testing.assert_allclose(found.throughput.mean, (1 - found.by_sample.mean()) * 24 / 28)
    assert found.uninterrupted == np.mean(found.by_sample == 0)


@pytest.mark.parametrize("method", METHODS)
def test_the_fewest_spares_are_enough_and_one_less_is_not(method):
    fewest = cost.spares_without_pause(TRACE, CLUSTER, method, most=10)
    assert cost.spares_without_pause(TRACE, CLUSTER, method, most=3).tolist() == np.minimum(fewest, 4).tolist()
    assert 0 < fewest.min() or method == "ntp-pw"
    for spares in range(11):
        paused = cost.fixed_batch(TRACE, CLUSTER, method, spares).by_sample
        assert ((paused == 0) == (fewest <= spares)).all()
    assert fewest.max() <= 11


def test_spare_domains_of_ntp_count_by_whole_replicas():
    # 7 of 8 samples from each of 8 narrow replicas: one replica more makes up for all of them, and less does not.
    cluster = cost.Cluster(24, 8, 3, (8, 7), samples=8)
    trace = cost.draw_failures(cluster.gpus + 10 * 8, 2, 20, seed=1, rate=0.02, kinds=(cost.FailureKind("a", 1, 0.3),))
    fewest = cost.spares_without_pause(trace, cluster, "ntp", most=10)
    assert set(fewest) <= {1, 2, 3, 4} and 3 in fewest  # a spare or two replace a failed domain or two


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.run_cluster(TRACE, CLUSTER, spares=11), "need 280 GPUs, and the trace has 272: draw_.*gpus=280"),
        (lambda: cost.run_cluster(TRACE, CLUSTER, spares=11), "or at most 10 spares"),
        (lambda: cost.run_cluster(TRACE, cost.Cluster()), "need 32768 GPUs, and the trace has 272.* at most 0 spares"),
        (lambda: cost.fixed_batch(TRACE, CLUSTER, spares=-1), "spares .*-1"),
        (lambda: cost.fixed_batch(TRACE, CLUSTER, spares=1.5), "spares .*1.5"),
        (lambda: cost.spares_without_pause(TRACE, CLUSTER, "all"), "'ntp-pw', not 'all'"),
        (lambda: cost.spares_without_pause(TRACE, CLUSTER, most=50), "the trace has 272"),
        (lambda: cost.run_unpacked(TRACE, CLUSTER, "all"), "'ntp-pw', not 'all'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
