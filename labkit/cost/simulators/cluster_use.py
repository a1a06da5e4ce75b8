"""Where the GPUs of a cluster are, after failures. Numbers of GPUs, as arrays over whatever was asked about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Use"]


@dataclass(frozen=True)
class Use:
    """All [...], one number for each placement or piece of time. failed + active + idle + stranded are all GPUs.

    cluster_gpus: of the cluster without spares. trained: samples of a step. useful: these in GPUs at usual power.
    active: GPUs that train. idle: healthy ones that their replica is too narrow for; another job can borrow them.
    stranded: healthy ones in domains that no replica uses, dropped or spare. power: of all active ones, 1 for a GPU
    at its usual power, though it may wait for others. boosted_domains: those with more power.
    """

    cluster_gpus: int
    trained: NDArray
    useful: NDArray
    failed: NDArray
    active: NDArray
    idle: NDArray
    stranded: NDArray
    power: NDArray
    boosted_domains: NDArray

    @property
    def loss(self) -> NDArray[np.float64]:
        """Part of the throughput of the cluster without failures; below 0 where it grew by spares (`grow`)."""
        return 1 - self.useful / self.cluster_gpus

    @property
    def waiting(self) -> NDArray[np.float64]:
        """Active GPUs that wait, since only whole samples are trained or the slowest rank holds more."""
        return np.maximum(0, self.active - self.useful)

    @property
    def boosted(self) -> NDArray[np.float64]:
        """GPUs at usual power that the boost replaces: useful + waiting = active + boosted."""
        return np.maximum(0, self.useful - self.active)

    def energy_per_sample(self, idle_power: float = 0.0) -> NDArray[np.float64]:
        """Over that of a cluster without failures; infinite if nothing is trained.

        idle_power: of a healthy GPU that does not train, idle or stranded, over its usual power; 0 if it is off or
        another job pays for it.
        """
        drawn = self.power + idle_power * (self.idle + self.stranded)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.useful > 0, drawn / self.useful, np.inf)
