"""Alibaba's HPN, twice: as it was drawn before its paper, and as the paper has it (Qian et al. 2024).

Numbers are those of the article on nonuniform tensor parallelism, section 3.4, which tells both. Every GPU has a card
of two 200 Gb/s ports, each to another top-of-rack switch ("dual ToR"), in two planes that stay apart up to the core.

Two slips of the article, which the ports decide: 136 nodes are 136 * 8 = 1,088 GPUs and not "138*8=1104"; and "NIC1 to
NIC9, these 8" of a node's nine cards must be NIC1 to NIC8, as NIC0 is that of the other network.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.links.wires import INFINIBAND, NVLINK, NVLINK_ONE_DIRECTION
from labkit.cost.refuse import divides, not_negative, whole
from labkit.cost.topology.levels import Level, Topology
from labkit.cost.topology.machines import ARTICLE, NCCL_LATENCY, SWITCH_LATENCY
from labkit.cost.units import Gb

GPU_PORT = 2 * 200 * Gb  # bytes per second, one direction
_ASSUMED = f"{NCCL_LATENCY}, and 1 µs for each further switch on the way"


@dataclass(frozen=True)
class HpnPorts:
    """The ports of the paper's HPN, and what follows from them.

    tors: top-of-rack switches of a segment, of `ports` ports each, `up` of them to aggregation switches. port,
    nic_port: bytes per second of a switch's port, and of one of a card's two. spare_nodes: of a segment, kept to
    replace broken ones. core_down, core_up: ports of an aggregation switch.
    """

    tors: int = 16
    ports: int = 128
    up: int = 60
    port: float = 400 * Gb
    nic_port: float = 200 * Gb
    planes: int = 2
    gpus_per_node: int = 8
    spare_nodes: int = 8
    aggregation_down: int = 120
    aggregation_up: int = 8

    def __post_init__(self) -> None:
        whole(tors=self.tors, ports=self.ports, up=self.up, planes=self.planes, gpus_per_node=self.gpus_per_node)
        whole(aggregation_down=self.aggregation_down, aggregation_up=self.aggregation_up)
        not_negative(spare_nodes=self.spare_nodes)
        if self.up >= self.ports:
            raise ValueError(f"up must leave some of the {self.ports} ports for nodes, and {self.up} do not")
        wanted = self.planes * self.gpus_per_node
        if self.tors != wanted:
            raise ValueError(f"tors must be one for each plane and GPU of a node, {wanted}, not {self.tors}")
        if self.spare_nodes >= self.nodes:
            raise ValueError(f"spare_nodes must be fewer than the {self.nodes} nodes of a segment")
        divides(**{"switches of a plane": self.tors // self.planes, "aggregation_down": self.aggregation_down})

    @property
    def down(self) -> int:
        """Ports of a top-of-rack switch to nodes: 68."""
        return self.ports - self.up

    @property
    def nodes(self) -> int:
        """Nodes that can be connected in a segment: 68 ports serve 136 of half the speed."""
        return int(self.down * self.port / self.nic_port)

    @property
    def connected_gpus(self) -> int:
        """136 * 8 = 1,088 (the article: "138*8=1104")."""
        return self.nodes * self.gpus_per_node

    @property
    def segment_gpus(self) -> int:
        """Of the nodes that are not spare: 1,024."""
        return (self.nodes - self.spare_nodes) * self.gpus_per_node

    @property
    def segment_oversubscription(self) -> float:
        """Ports of the working GPUs over those that leave the segment: 1.0667, with the spare nodes 68 / 60."""
        return self.segment_gpus * self.planes * self.nic_port / (self.up * self.port * self.tors)

    @property
    def segments(self) -> int:
        """Segments of a pod: an aggregation switch has a port for each of the 8 switches of its plane: 120 / 8."""
        return self.aggregation_down // (self.tors // self.planes)

    @property
    def pod_gpus(self) -> int:
        """15,360."""
        return self.segments * self.segment_gpus

    @property
    def core_oversubscription(self) -> float:
        """Of the aggregation switches, ports down over ports up: 15."""
        return self.aggregation_down / self.aggregation_up

    @property
    def pod_oversubscription(self) -> float:
        """Ports of a pod's GPUs over those that leave the pod: 1.0667 * 15 = 16."""
        return self.segment_oversubscription * self.core_oversubscription


def hpn_first(
    *,
    nvlink: float = NVLINK_ONE_DIRECTION,
    nvlink_latency: float = NVLINK.alpha,
    nic_latency: float = INFINIBAND.alpha,
    switch_latency: float = SWITCH_LATENCY,
) -> Topology:
    """HPN before its paper: 128 nodes of 8 a segment, 8 segments a pod, 128 pods: 1,048,576 GPUs, not oversubscribed.

    NVLink's bandwidth and all latencies are assumptions: the segment is one network hop, and each further level adds
    two switches.
    """
    far = [nic_latency + 2 * k * switch_latency for k in range(3)]
    source = f"{ARTICLE}, 3.4, before the paper"
    return Topology(
        "HPN, before its paper",
        (
            Level("node", 8, nvlink, nvlink_latency, source=source, assumed="bandwidth; " + NCCL_LATENCY),
            Level("segment", 128, GPU_PORT, far[0], source=source, assumed=_ASSUMED),
            Level("pod", 8, GPU_PORT, far[1], source=source, assumed=_ASSUMED),
            Level("cluster", 128, GPU_PORT, far[2], source=source, assumed=_ASSUMED),
        ),
    )


def hpn_paper(
    pods: int = 8,
    *,
    ports: HpnPorts | None = None,
    nvlink: float = NVLINK_ONE_DIRECTION,
    nvlink_latency: float = NVLINK.alpha,
    nic_latency: float = INFINIBAND.alpha,
    switch_latency: float = SWITCH_LATENCY,
) -> Topology:
    """HPN as in its paper: 128 working nodes a segment, 15 segments a pod; with the article's 8 pods 122,880 GPUs.

    Between segments 1.0667 : 1, between pods 16 : 1 (the article names the aggregation switches' 15 : 1 alone). That
    is why it puts pipeline stages into different pods. NVLink's bandwidth and all latencies are assumptions.
    """
    ports = HpnPorts() if ports is None else ports
    whole(pods=pods)
    far = [nic_latency + 2 * k * switch_latency for k in range(3)]
    source = f"{ARTICLE}, 3.4, after the paper"
    port = ports.planes * ports.nic_port
    levels = [
        Level("node", ports.gpus_per_node, nvlink, nvlink_latency, source=source, assumed="bandwidth; " + NCCL_LATENCY),
        Level("segment", ports.segment_gpus // ports.gpus_per_node, port, far[0], source=source, assumed=_ASSUMED),
        Level("pod", ports.segments, port, far[1], max(1.0, ports.segment_oversubscription), source, _ASSUMED),
    ]
    if pods > 1:
        levels.append(Level("cluster", pods, port, far[2], max(1.0, ports.pod_oversubscription), source, _ASSUMED))
    return Topology(
        "HPN, as in its paper", tuple(levels),
        notes=("136 nodes are 1,088 GPUs, not 1,104", "eight of a node's nine cards are NIC1 to NIC8, not to NIC9"),
    )  # fmt: skip
