"""The run of chapter 21's explanation, made once more: a cluster through 15 days of failures that are drawn.

A student's numbers decide what is assumed and the seed, so the same run can be made wherever it is judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from labkit import cost
from labkit.cost.estimates import Estimate
from labkit.cost.simulators.cluster_runs import ClusterRun

DAYS = 15
ACCOUNTS = ("useful", "waiting", "idle", "stranded", "failed")  # what a GPU may do; "boosted" is no GPU
HARDWARE, SOFTWARE = (0.78, None), (0.22, 3 / 24)  # part of all failures, days of repair; None: what is assumed


@dataclass(frozen=True)
class OwnCluster:
    """by_method: the run by each method. out: GPU-days in repair. gpu_days: of all GPUs together."""

    by_method: dict[str, ClusterRun]
    out: Estimate
    gpu_days: float


@lru_cache(maxsize=8)
def own_cluster(repair: int, samples: int, drawings: int, seed: int) -> OwnCluster:
    """The run of the numbers `repair` (days), `samples` of a replica, `drawings` and `seed`."""
    cluster = cost.Cluster(samples=samples)
    trace = cost.draw_failures(cluster.gpus, DAYS, drawings, seed, kinds=cost.llama3_kinds(repair))
    found = {method: cost.run_cluster(trace, cluster, method) for method in ("dp-drop", "ntp", "ntp-pw")}
    every, healthy = cluster.gpus * DAYS, trace.gpu_days()["healthy"]
    out = Estimate(
        every - healthy.mean, healthy.error, every - healthy.highest, every - healthy.lowest, healthy.samples
    )
    return OwnCluster(found, out, float(every))


def expected_out(repair: float, days: float = DAYS, gpus: int = 32_768) -> float:
    """GPU-days in repair that are expected if all GPUs work at first, to the first order.

    A GPU that fails at time t is out for the repair D, or until the end: D T - D^2/2 for each failure a day, if D <= T.
    """
    rate = 419 / 54 / 16_384  # Llama 3: failures a day of one GPU
    each = [(share, repair if length is None else length) for share, length in (HARDWARE, SOFTWARE)]
    return gpus * rate * math.fsum(share * (length * days - length**2 / 2) for share, length in each)
