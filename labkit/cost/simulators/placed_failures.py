"""A number of failures in a cluster, placed by chance: many placements at once.

Nonuniform tensor parallelism (arXiv 2504.06095, figures 3, 6 and 10). For failures that come and go: `cluster_runs`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.cost.estimates import Estimate
from labkit.cost.refuse import divides, probability, whole
from labkit.cost.simulators.clusters import Cluster

__all__ = ["loss_at", "place_failures"]


def place_failures(
    failures: int, gpus: int, gpus_per_domain: int, samples: int = 1000, seed: int = 0, blast: int = 1
) -> NDArray[np.int64]:
    """`failures` different GPUs by chance, each with its `blast` neighbours: [samples, domains] GPUs that are out.

    Raises ValueError for more failures than GPUs, or a blast that does not divide a domain.
    """
    whole(gpus=gpus, gpus_per_domain=gpus_per_domain, samples=samples, blast=blast)
    divides(gpus_per_domain=gpus_per_domain, gpus=gpus)
    divides(blast=blast, gpus_per_domain=gpus_per_domain)
    if isinstance(failures, bool) or not isinstance(failures, int) or not 0 <= failures <= gpus:
        raise ValueError(f"failures must be a whole number from 0 to gpus={gpus}, not {failures!r}")
    random = np.random.default_rng(seed)
    out = np.zeros((samples, gpus // blast), bool)
    for row in out:
        row[random.choice(gpus, failures, replace=False, shuffle=False) // blast] = True
    return out.reshape(samples, gpus // gpus_per_domain, -1).sum(-1) * blast


def loss_at(
    fraction: float,
    cluster: Cluster,
    method: str = "ntp",
    *,
    packed: bool = True,
    spares: int = 0,
    blast: int = 1,
    samples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """The part of the throughput that is lost with `fraction` of the GPUs failed, over placements by chance (figure 6).

    The GPUs in spare domains fail as well. blast: GPUs that each failure takes, so that `fraction * blast` are out
    where blasts do not meet (figure 10).
    """
    probability(fraction=fraction)
    whole_spares(spares)
    gpus = cluster.gpus + spares * cluster.gpus_per_domain
    failed = place_failures(round(fraction * gpus), gpus, cluster.gpus_per_domain, samples, seed, blast)
    return Estimate.of(cluster.loss(failed, method, packed=packed))


def whole_spares(spares: int) -> None:
    """Raise ValueError unless `spares` is a whole number from 0 on."""
    if isinstance(spares, bool) or not isinstance(spares, int) or spares < 0:
        raise ValueError(f"spares must be a whole number of domains from 0 on, not {spares!r}")
