"""A cluster through a trace of failures: throughput that is lost, pauses of a fixed batch, spares. Days.

Nonuniform tensor parallelism (arXiv 2504.06095, figures 6 and 7). After each failure and each repair the job goes
on at once in its new order: what a restart takes is not counted here; `fleet_runs` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.cost.estimates import Estimate
from labkit.cost.refuse import one_of, whole
from labkit.cost.simulators.clusters import METHODS, Cluster
from labkit.cost.simulators.failure_traces import FailureTrace
from labkit.cost.simulators.histories import Floats, History, Ints, unit_changes, units_by_level, worst_of_groups
from labkit.cost.simulators.placed_failures import whole_spares

__all__ = [
    "ClusterRun",
    "FixedBatch",
    "domain_history",
    "fixed_batch",
    "run_cluster",
    "run_unpacked",
    "spares_without_pause",
]


@dataclass(frozen=True)
class ClusterRun:
    """loss: part of the throughput, mean over the days. worst: at the worst time. gpu_days: where they went, mean.

    gpu_days has useful, waiting, idle, stranded and failed, less boosted; they sum to all GPU-days. energy: of all
    samples together, over that without failures, with idle GPUs at no power.
    """

    loss: Estimate
    worst: Estimate
    gpu_days: dict[str, float]
    energy: Estimate


@dataclass(frozen=True)
class FixedBatch:
    """throughput: per GPU, spares counted, over that without failures and spares. paused: part of the days.

    uninterrupted: part of the samples that never paused. by_sample: [samples], the part of the days that each paused.
    """

    spares: int
    throughput: Estimate
    paused: Estimate
    uninterrupted: float
    by_sample: Floats


def domain_history(trace: FailureTrace, cluster: Cluster, spares: int | Ints = 0) -> History:
    """How many of the cluster's first `domains + spares` domains have 0, 1, 2 ... failed GPUs: [pieces, levels].

    spares: one number, or one for each sample. Raises ValueError if the trace has too few GPUs.
    """
    whole_spares(int(np.min(spares)))
    limit = np.broadcast_to(cluster.domains + np.asarray(spares), (trace.samples,))
    needed = int(limit.max()) * cluster.gpus_per_domain
    if needed > trace.gpus:
        raise ValueError(
            f"domains={cluster.domains} and spares={np.max(spares)} need {needed} GPUs, and the trace has "
            f"{trace.gpus}: draw_failures(gpus={needed}, ...), or at most "
            f"{max(0, trace.gpus // cluster.gpus_per_domain - cluster.domains)} spares"
        )
    domain = trace.gpu // cluster.gpus_per_domain
    ours = domain < limit[trace.sample]
    changes = unit_changes(trace.sample[ours], domain[ours], trace.start[ours], trace.end[ours], trace.days)
    return units_by_level(changes, limit, trace.samples, trace.days)


def run_cluster(trace: FailureTrace, cluster: Cluster, method: str = "ntp", spares: int = 0) -> ClusterRun:
    """The packed cluster through the trace; a step has as many samples as can be trained."""
    whole_spares(spares)
    history = domain_history(trace, cluster, spares)
    use = cluster.use_of(history.values, method)
    kinds = ("useful", "waiting", "idle", "stranded", "failed", "boosted")
    gpu_days = {kind: float(history.mean(getattr(use, kind)).mean()) * trace.days for kind in kinds}
    trained = history.mean(use.useful)
    energy = np.divide(history.mean(use.power), trained, where=trained > 0, out=np.full(trace.samples, np.inf))
    return ClusterRun(
        loss=Estimate.of(history.mean(use.loss)),
        worst=Estimate.of(history.most(use.loss)),
        gpu_days=gpu_days,
        energy=Estimate.of(energy),
    )


def run_unpacked(trace: FailureTrace, cluster: Cluster, method: str = "ntp") -> Estimate:
    """The part of the throughput that is lost where each domain stays in its replica, mean over the days."""
    domain_history(trace, cluster)  # for its refusals
    domain = trace.gpu // cluster.gpus_per_domain
    ours = domain < cluster.domains
    changes = unit_changes(trace.sample[ours], domain[ours], trace.start[ours], trace.end[ours], trace.days)
    worst = worst_of_groups(changes, cluster.domains_per_replica)
    history = units_by_level(worst, np.full(trace.samples, cluster.replicas), trace.samples, trace.days)
    batch = cluster.batch_of_worst(method)[: history.values.shape[1]]
    return Estimate.of(history.mean(1 - history.values @ batch / cluster.batch))


def fixed_batch(trace: FailureTrace, cluster: Cluster, method: str = "ntp", spares: int = 0) -> FixedBatch:
    """Every step has the whole batch, or the job pauses until enough is repaired (figure 7).

    Spare domains are packed with all others into as many replicas as they fill: 16 of them are two replicas more, and
    make up for 16 replicas that each train 7 samples of 8. A larger batch than asked for is not trained.
    """
    whole_spares(spares)
    paused = _paused(trace, cluster, method, spares)
    size = cluster.domains / (cluster.domains + spares)
    return FixedBatch(
        spares, Estimate.of((1 - paused) * size), Estimate.of(paused), float((paused == 0).mean()), paused
    )


def spares_without_pause(trace: FailureTrace, cluster: Cluster, method: str = "ntp", most: int = 128) -> Ints:
    """The fewest spare domains with which a sample never pauses: [samples]; `most` + 1 where `most` do not suffice.

    By bisection: a further domain never makes a batch smaller. The trace needs the GPUs of `most` spares.
    """
    one_of(METHODS, method=method)
    whole(most=most)
    low, high = np.zeros(trace.samples, np.int64), np.full(trace.samples, most + 1, np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        without = _paused(trace, cluster, method, np.minimum(middle, most)) == 0
        high = np.where((low < high) & without & (middle <= most), middle, high)
        low = np.where((low < high) & ~without, middle + 1, low)
    return high


def _paused(trace: FailureTrace, cluster: Cluster, method: str, spares: int | Ints) -> Floats:
    history = domain_history(trace, cluster, spares)
    trained = cluster.use_of(history.values, method, grow=True).trained
    return history.mean(trained < cluster.batch)
