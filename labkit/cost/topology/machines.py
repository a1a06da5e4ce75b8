"""Machines that are one scale-up domain: an 8-GPU node, NVL72, CloudMatrix 384; and clusters of such domains.

Counts are those of the article on nonuniform tensor parallelism (sections 3.1 to 3.3 and 6.2), which gives few
bandwidths and no latencies. A latency here is one hop in NCCL's own cost model (`links.wires`), for want of a better
source; every such number is an argument. Bandwidths are in bytes per second and one direction.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.links.wires import INFINIBAND, NVLINK, NVLINK_ONE_DIRECTION
from labkit.cost.refuse import divides, whole
from labkit.cost.topology.levels import Level, Topology
from labkit.cost.units import GB, TB, US, Gb

ARTICLE = "article on nonuniform tensor parallelism"
NCCL_LATENCY = "latency: a hop in NCCL's cost model"
NVLINK5 = 1.8 * TB / 2  # "1.8 TB/s a card" (article, section 6.2): NVLink counts both directions
B200_NIC = 800 * Gb  # "an 800 Gbps InfiniBand NIC for each GPU", the same section
H100_NIC = 400 * Gb  # the textbook chapter's InfiniBand NDR
SWITCH_LATENCY = 1 * US  # one more switch on the way: an assumption, no source of the book has it
_NDR, _B200 = "textbook chapter: InfiniBand NDR", f"{ARTICLE}, 6.2"


@dataclass(frozen=True)
class NodeParts:
    """What is in an 8-GPU node (article, section 3.1): GPUs and NICs hang in pairs on the switches of the CPUs."""

    cpus: int = 2
    switches_per_cpu: int = 2
    gpus_per_switch: int = 2
    nics_per_switch: int = 2

    def __post_init__(self) -> None:
        whole(**vars(self))

    @property
    def switches(self) -> int:
        """PCIe switches: 4."""
        return self.cpus * self.switches_per_cpu

    @property
    def gpus(self) -> int:
        """8."""
        return self.switches * self.gpus_per_switch

    @property
    def nics(self) -> int:
        """For the network between nodes: 8; with one on each switch 4."""
        return self.switches * self.nics_per_switch

    @property
    def nics_per_gpu(self) -> float:
        """1, or a half where two GPUs share one."""
        return self.nics / self.gpus


def dgx_node(
    nodes: int = 1,
    *,
    parts: NodeParts | None = None,
    nvlink: float = NVLINK_ONE_DIRECTION,
    nic: float = H100_NIC,
    nvlink_latency: float = NVLINK.alpha,
    nic_latency: float = INFINIBAND.alpha,
) -> Topology:
    """8 GPUs joined by NVLink and NVSwitch, every one with every other; with `nodes`, so many on one flat network.

    nic: bytes per second of one network card; with 4 cards in a node a GPU has half of one.
    """
    parts = NodeParts() if parts is None else parts
    node = Level(
        "node", parts.gpus, nvlink, nvlink_latency, source=f"{ARTICLE}, 3.1; bandwidth: textbook chapter",
        assumed=NCCL_LATENCY,
    )  # fmt: skip
    return _cluster("8-GPU node", node, nodes, nic * parts.nics_per_gpu, nic_latency, _NDR)


def nvl72(
    racks: int = 1,
    *,
    nvlink: float = NVLINK5,
    nic: float = B200_NIC,
    nvlink_latency: float = NVLINK.alpha,
    nic_latency: float = INFINIBAND.alpha,
) -> Topology:
    """72 B200 GPUs of one rack (and 36 CPUs) joined by NVLink and NVSwitch; with `racks`, so many on a flat network."""
    rack = Level("rack", 72, nvlink, nvlink_latency, source=f"{ARTICLE}, 3.2 and 6.2", assumed=NCCL_LATENCY)
    return _cluster("NVL72", rack, racks, nic, nic_latency, _B200)


def cloudmatrix384(
    supernodes: int = 1,
    *,
    unified_bus: float = 392 * GB,
    nic: float = 400 * Gb,
    bus_latency: float = NVLINK.alpha,
    nic_latency: float = INFINIBAND.alpha,
) -> Topology:
    """384 Ascend 910C NPUs, every one with every other; with `supernodes`, so many on one flat network.

    The article has the count only. The bandwidths (392 GB/s of the unified bus and 400 Gb/s outwards, a NPU and
    direction) and the 48 nodes of 8 are those of Zuo et al. 2025 (arXiv 2506.12708), where the bus does not block: so
    nodes are no level of their own. That its latency is NVLink's is an assumption.
    """
    supernode = Level(
        "supernode", 384, unified_bus, bus_latency, source=f"{ARTICLE}, 3.3; bandwidth: arXiv 2506.12708",
        assumed="latency: that of NVLink",
    )  # fmt: skip
    return _cluster("CloudMatrix 384", supernode, supernodes, nic, nic_latency, "arXiv 2506.12708")


def scale_up(
    gpus: int,
    domain: int,
    *,
    nvlink: float = NVLINK5,
    nic: float = B200_NIC,
    nvlink_latency: float = NVLINK.alpha,
    nic_latency: float = INFINIBAND.alpha,
) -> Topology:
    """`gpus` B200 GPUs in NVLink domains of `domain`, on one flat network: the cluster of the article's simulations.

    (Section 6.2: 32,000 GPUs in domains of 32.) Raises ValueError if domains do not divide the cluster.
    """
    whole(domain=domain, gpus=gpus)
    if domain > gpus:
        raise ValueError(f"domain must be at most the {gpus} GPUs of the cluster, not {domain}")
    divides(domain=domain, gpus=gpus)
    inside = Level("domain", domain, nvlink, nvlink_latency, source=f"{ARTICLE}, 6.2", assumed=NCCL_LATENCY)
    return _cluster(f"NVL{domain}", inside, gpus // domain, nic, nic_latency, _B200)


def _cluster(name: str, inside: Level, count: int, nic: float, nic_latency: float, source: str) -> Topology:
    """`count` such units on one network on which nothing is oversubscribed."""
    whole(**{f"{inside.name}s": count})
    if count == 1:
        return Topology(name, (inside,))
    outside = Level(
        "cluster", count, nic, nic_latency, source=source,
        assumed=f"a flat network that is not oversubscribed; {NCCL_LATENCY}",
    )  # fmt: skip
    return Topology(f"{count} x {name}", (inside, outside))
