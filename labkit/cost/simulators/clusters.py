"""A cluster of scale-up domains that trains one job, and what failures leave of it by three methods.

Nonuniform tensor parallelism (arXiv 2504.06095, sections 4.4 and 6). A replica is some domains, one for each pipeline
stage. "dp-drop" does without every replica that has a failed GPU. "ntp" runs it narrower, with a smaller local batch,
so that it is done when the others are. "ntp-pw" gives the narrow domains more power, and keeps the batch if it can.
The resource manager packs: it sorts the domains by failures and fills replicas with the worst first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.cost.failures.boost import PowerBoost
from labkit.cost.failures.narrowing import narrow_speed
from labkit.cost.refuse import divides, one_of, positive, whole
from labkit.cost.simulators.cluster_use import Use

__all__ = ["Cluster"]

METHODS = ("dp-drop", "ntp", "ntp-pw")


@dataclass(frozen=True)
class Cluster:
    """`domains` scale-up domains, `domains_per_replica` of which are a replica of `gpus_per_domain`-wide groups.

    widths: that a domain can run at, the full one first; with more failures than the narrowest allows, it is out.
    samples: that a whole replica trains in a step: 16M tokens by 16K of sequence and 128 replicas are 8.
    speeds: of a replica at each width, the full one's is 1; width / full when None (see `narrow_speed`).
    """

    domains: int = 1024
    gpus_per_domain: int = 32
    domains_per_replica: int = 8
    widths: tuple[int, ...] = (32, 30, 28)
    samples: int = 8
    speeds: tuple[float, ...] | None = None
    boost: PowerBoost = field(default_factory=PowerBoost)

    def __post_init__(self) -> None:
        whole(domains=self.domains, gpus_per_domain=self.gpus_per_domain, samples=self.samples)
        whole(domains_per_replica=self.domains_per_replica)
        divides(domains_per_replica=self.domains_per_replica, domains=self.domains)
        whole(**{f"widths[{i}]": width for i, width in enumerate(self.widths)})
        if not self.widths or self.widths[0] != self.gpus_per_domain or list(self.widths) != _falling(self.widths):
            raise ValueError(
                f"widths must fall from gpus_per_domain={self.gpus_per_domain} on, not {self.widths!r}; "
                f"({self.gpus_per_domain},) allows the full width only"
            )
        speeds = self.pace
        positive(**{f"speeds[{i}]": speed for i, speed in enumerate(speeds)})
        most = [width / self.gpus_per_domain for width in self.widths]
        if len(speeds) != len(most) or any(s > m * (1 + 1e-9) for s, m in zip(speeds, most, strict=True)):
            raise ValueError(
                f"speeds must be one for each of widths={self.widths!r}, at most width / full, not {self.speeds!r}"
            )
        if speeds[0] != 1 or list(speeds) != sorted(speeds, reverse=True):
            raise ValueError(f"speeds must begin with 1 and not rise, not {self.speeds!r}")

    @property
    def replicas(self) -> int:
        return self.domains // self.domains_per_replica

    @property
    def gpus(self) -> int:
        return self.domains * self.gpus_per_domain

    @property
    def batch(self) -> int:
        """Samples of a step of the whole cluster."""
        return self.replicas * self.samples

    @cached_property
    def pace(self) -> tuple[float, ...]:
        """The speed of a replica at each width, without more power."""
        return self.speeds or tuple(narrow_speed(width, self.gpus_per_domain) for width in self.widths)

    def width_of(self, failed: int) -> int:
        """The width at which a domain with `failed` GPUs runs; 0 where it is out. Raises ValueError for too many."""
        self._check_failed(np.asarray(failed))
        return next((width for width in self.widths if width <= self.gpus_per_domain - failed), 0)

    def local_batches(self, method: str) -> tuple[int, ...]:
        """Samples that a replica at each width trains while a whole one trains `samples`; whole ones only.

        "ntp": 8, 7, 7 for widths 32, 30, 28, since 8 * 30/32 is 7.5. "ntp-pw": 8, 8, 8. "dp-drop": 8, 0, 0.
        """
        one_of(METHODS, method=method)
        if method == "dp-drop":
            return (self.samples, *[0 for _ in self.widths[1:]])
        most = self.boost.speed(self.boost.limit) if method == "ntp-pw" else 1.0
        return tuple(min(self.samples, math.floor(self.samples * pace * most + 1e-9)) for pace in self.pace)

    def powers(self, method: str) -> tuple[float, ...]:
        """The power of the GPUs of a domain at each width: what its local batch asks for; 1 without a boost."""
        if method != "ntp-pw":
            one_of(METHODS, method=method)
            return tuple(1.0 for _ in self.widths)
        asked = (batch / self.samples / pace for batch, pace in zip(self.local_batches(method), self.pace, strict=True))
        return tuple(self.boost.power_for(speed) if speed > 1 else 1.0 for speed in asked)

    def tally(self, failed_by_domain: ArrayLike) -> NDArray[np.int64]:
        """[..., domains] failed GPUs of each domain -> [..., gpus_per_domain + 1] domains that have so many failed."""
        failed = np.asarray(failed_by_domain)
        self._check_failed(failed)
        levels = self.gpus_per_domain + 1
        rows = failed.reshape(-1, failed.shape[-1])
        place = np.arange(len(rows))[:, None] * levels + rows
        counts = np.bincount(place.ravel(), minlength=len(rows) * levels)
        return counts.reshape(*failed.shape[:-1], levels)

    def use(self, failed_by_domain: ArrayLike, method: str = "ntp", *, grow: bool = False) -> Use:
        """What the packed cluster does. failed_by_domain: [..., domains and spares], in any order. See `use_of`."""
        return self.use_of(self.tally(failed_by_domain), method, grow=grow)

    def use_of(self, tally: NDArray[np.int64], method: str = "ntp", *, grow: bool = False) -> Use:
        """The same from [..., failed] numbers of domains. Whatever it has above `domains` are spares.

        The job has at most `replicas` replicas, or with `grow` as many as there are domains for; the worst domains
        are left out first.
        """
        one_of(METHODS, method=method)
        size = self.domains_per_replica
        failed = np.arange(tally.shape[-1])
        widths = np.array([w for w in (self.widths[:1] if method == "dp-drop" else self.widths)])
        of_level = np.searchsorted(-widths, failed - self.gpus_per_domain)  # its width's index; len(widths): out
        usable = np.where(of_level < len(widths), tally, 0)
        replicas = usable.sum(-1) // size
        if not grow:
            replicas = np.minimum(replicas, self.replicas)
        before = np.cumsum(usable, -1) - usable
        used = np.clip((replicas * size)[..., None] - before, 0, usable)  # the best, by failures
        at = np.stack([used[..., of_level == i].sum(-1) for i in range(len(widths))], -1)
        worse = np.cumsum(at[..., ::-1], -1)[..., ::-1]  # domains at this width or a narrower one
        running = -(-worse // size)  # replicas whose worst domain is there
        by_width = running - np.concatenate([running[..., 1:], np.zeros_like(running[..., :1])], -1)
        batches = np.array(self.local_batches(method)[: len(widths)])
        powers = np.array(self.powers(method)[: len(widths)])
        boosted = method == "ntp-pw"
        groups = at if boosted else by_width * size  # without a boost, all of a replica is as narrow as its worst
        active = groups * widths
        return Use(
            cluster_gpus=self.gpus,
            trained=(by_width * batches).sum(-1),
            useful=(by_width * batches).sum(-1) * (size * self.gpus_per_domain / self.samples),
            failed=(tally * failed).sum(-1),
            active=active.sum(-1),
            idle=(used * (self.gpus_per_domain - failed)).sum(-1) - active.sum(-1),
            stranded=((tally - used) * (self.gpus_per_domain - failed)).sum(-1),
            power=(active * powers).sum(-1),
            boosted_domains=at[..., 1:].sum(-1) if boosted else np.zeros_like(replicas),
        )

    def loss(self, failed_by_domain: ArrayLike, method: str = "ntp", *, packed: bool = True) -> NDArray[np.float64]:
        """The part of the throughput without failures that is lost. failed_by_domain: [..., domains]; [...] comes out.

        More than `domains` columns are spares; they need packing. packed=False: domains stay where they are, every
        `domains_per_replica` a replica.
        """
        if packed:
            return self.use(failed_by_domain, method).loss
        failed = np.asarray(failed_by_domain)
        self._check_failed(failed)
        if failed.shape[-1] != self.domains:
            raise ValueError(
                f"without packing there must be domains={self.domains}, not {failed.shape[-1]}: "
                f"only the resource manager can use spares (packed=True)"
            )
        return self.loss_by_worst(failed.reshape(*failed.shape[:-1], self.replicas, -1).max(-1), method)

    def loss_by_worst(self, failed: NDArray, method: str) -> NDArray[np.float64]:
        """The same without packing, from the failed GPUs of each replica's worst domain: [..., replicas]."""
        return 1 - self.batch_of_worst(method)[failed].sum(-1) / self.batch

    def batch_of_worst(self, method: str) -> NDArray[np.int64]:
        """Samples of a replica whose worst domain has 0, 1, ... gpus_per_domain failed GPUs."""
        batches = dict(zip(self.widths, self.local_batches(method), strict=True)) | {0: 0}
        return np.array([batches[self.width_of(failed)] for failed in range(self.gpus_per_domain + 1)])

    def _check_failed(self, failed: NDArray) -> None:
        if not np.issubdtype(failed.dtype, np.integer) or failed.size and failed.min() < 0:
            raise ValueError("failed GPUs of a domain are counted in whole numbers from 0 on")
        if failed.size and failed.max() > self.gpus_per_domain:
            raise ValueError(
                f"{failed.max()} failures are more than the {self.gpus_per_domain} GPUs of a domain: "
                f"at {self.gpus_per_domain} the domain is lost whole"
            )


def _falling(widths: tuple[int, ...]) -> list[int]:
    return sorted(set(widths), reverse=True)
