"""The machine that trains: GPUs of one kind in scale-up domains, their links, and what an hour costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.cost.planner.gpus import A100, ASCEND_910C, B200, EFFICIENCIES, H100, Efficiency, Gpu
from labkit.cost.refuse import divides, positive, whole
from labkit.cost.topology.levels import Topology
from labkit.cost.topology.machines import cloudmatrix384, dgx_node, nvl72, scale_up
from labkit.cost.units import GB, Gb

__all__ = [
    "Cluster", "a100_cluster", "b200_cluster", "cloudmatrix_cluster", "h100_cluster", "nvl72_cluster",
]  # fmt: skip

# Dollars for a GPU and hour that Amazon asked in December 2024 (EC2 Capacity Blocks for ML, aws.amazon.com/ec2/
# capacityblocks/pricing): $14.75 for a p4d.24xlarge of 8 A100s (of 40 GB), $39.33 for a p5.48xlarge of 8 H100s. No
# price of B200s or of Ascend 910Cs is at hand.
A100_PRICE, H100_PRICE = 14.75 / 8, 39.33 / 8
_ASKED = "EC2 Capacity Blocks, December 2024"
_SOURCES = {A100_PRICE: f"{_ASKED}, for A100s of 40 GB", H100_PRICE: _ASKED}
A100_NVLINK, A100_NIC = 300 * GB, 200 * Gb  # one direction of 600 GB/s; a card of 200 Gbit/s for each GPU (DGX A100)


@dataclass(frozen=True)
class Cluster:
    """topology: domains and links, innermost first. gpu, efficiency: see there. price: dollars a GPU and hour, or None
    where none is known.

    dtype: in which products are computed.
    """

    topology: Topology
    gpu: Gpu
    efficiency: Efficiency = Efficiency()
    price: float | None = None
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.price is not None:
            positive(price=self.price)
        self.gpu.peak(self.dtype)

    @property
    def gpus(self) -> int:
        """How many there are."""
        return self.topology.gpus

    @property
    def price_said(self) -> str:
        """In words, with where it comes from if it is one of ours: "at $2.00 an hour". "" if none is known."""
        if self.price is None:
            return ""
        source = _SOURCES.get(self.price)
        return f"at ${self.price:.2f} an hour" + (f" ({source})" if source else "")

    @property
    def domain(self) -> int:
        """GPUs of one scale-up domain."""
        return self.topology.capacities[0]

    @property
    def peak(self) -> float:
        """Operations a second of one GPU, from its data sheet."""
        return self.gpu.peak(self.dtype)

    @property
    def reached(self) -> Topology:
        """The topology with the part of its bandwidth that software reaches."""
        parts = [self.efficiency.inside] + [self.efficiency.across] * (len(self.topology.levels) - 1)
        levels = [
            replace(level, bandwidth=level.bandwidth * part)
            for level, part in zip(self.topology.levels, parts, strict=True)
        ]
        for i in range(1, len(levels)):  # a level is never faster than those inside it
            levels[i] = replace(levels[i], bandwidth=min(levels[i].bandwidth, levels[i - 1].bandwidth))
        return Topology(self.topology.name, tuple(levels))

    def with_memory(self, memory: float) -> Cluster:
        """The same with other memory for each GPU, in bytes."""
        return replace(self, gpu=replace(self.gpu, memory=memory))

    def times(self, factor: int) -> Cluster:
        """The same with `factor` times as many GPUs on its outermost network. A single domain cannot grow."""
        whole(factor=factor)
        *inner, outer = self.topology.levels
        if not inner:
            raise ValueError(f"{self.topology.name} is one domain without a network: describe a cluster of several")
        grown = replace(outer, holds=outer.holds * factor)
        return replace(self, topology=Topology(self.topology.name, (*inner, grown)))

    def with_network(self, factor: float) -> Cluster:
        """The same with `factor` times the bandwidth between domains."""
        positive(factor=factor)
        inner, *outer = self.topology.levels
        faster = [replace(one, bandwidth=min(inner.bandwidth, one.bandwidth * factor)) for one in outer]
        return replace(self, topology=Topology(self.topology.name, (inner, *faster)))


def a100_cluster(gpus: int, price: float | None = A100_PRICE) -> Cluster:
    """DGX A100 nodes of 8, NVLink at 300 GB/s and one 200 Gbit/s card for each GPU: Selene (Narayanan et al. 2021)."""
    return Cluster(dgx_node(_nodes(gpus), nvlink=A100_NVLINK, nic=A100_NIC), A100, EFFICIENCIES["A100"], price)


def h100_cluster(gpus: int, price: float | None = H100_PRICE) -> Cluster:
    """H100 nodes of 8, NVLink at 450 GB/s and one 400 Gbit/s card for each GPU: Llama 3's (2024, section 3.3.1)."""
    return Cluster(dgx_node(_nodes(gpus)), H100, EFFICIENCIES["H100"], price)


def b200_cluster(gpus: int, domain: int = 8, price: float | None = None) -> Cluster:
    """B200 GPUs in NVLink domains of any size, one 800 Gbit/s card each."""
    return Cluster(scale_up(gpus, domain), B200, EFFICIENCIES["B200"], price)


def nvl72_cluster(racks: int, price: float | None = None) -> Cluster:
    """Racks of 72 B200 GPUs."""
    return Cluster(nvl72(racks), B200, EFFICIENCIES["B200"], price)


def cloudmatrix_cluster(supernodes: int, price: float | None = None) -> Cluster:
    """CloudMatrix 384 supernodes of Ascend 910C NPUs, each counted as one GPU."""
    return Cluster(cloudmatrix384(supernodes), ASCEND_910C, EFFICIENCIES["Ascend 910C"], price)


def _nodes(gpus: int) -> int:
    whole(gpus=gpus)
    divides(**{"8 GPUs of a node": 8, "gpus": gpus})
    return gpus // 8
