"""The machines that large models are trained on, as data: links, oversubscription, latency tiers, and placement.

`levels` says what a machine is, `machines`, `hpn` and `buildings` have those of the sources; `axes` places a mesh on
one, `times` has what its collectives take there, `orders` which order of the axes costs least. `domain_size` is the
article's Figure 2: how well GPUs are used by the size of the NVLink domain (`domain_job` is the model behind it).
"""

from labkit.cost.topology.axes import Axis, axis_of, mesh_sizes, place
from labkit.cost.topology.buildings import LATENCY_TIERS, OVERSUBSCRIPTION, clos_buildings
from labkit.cost.topology.domain_job import (
    ARTICLE_SHAPE,
    ARTICLE_TOKENS,
    B200_MEMORY,
    B200_PEAK,
    TENSOR_OVERLAPS,
    Assumptions,
    Configuration,
    configuration,
    pipeline_rounds,
)
from labkit.cost.topology.domain_size import (
    QUOTED,
    best_configuration,
    concurrency_limit,
    configurations,
    utilisation,
    utilisation_rows,
)
from labkit.cost.topology.hpn import HpnPorts, hpn_first, hpn_paper
from labkit.cost.topology.levels import Level, Topology
from labkit.cost.topology.machines import NodeParts, cloudmatrix384, dgx_node, nvl72, scale_up
from labkit.cost.topology.orders import Order, Traffic, cheapest_order, order_seconds, rank_orders
from labkit.cost.topology.times import COLLECTIVES, SEND, collective_seconds, hierarchical_seconds, pace

__all__ = [
    "ARTICLE_SHAPE", "ARTICLE_TOKENS", "Assumptions", "Axis", "B200_MEMORY", "B200_PEAK", "COLLECTIVES",
    "Configuration", "HpnPorts", "LATENCY_TIERS", "Level", "NodeParts", "OVERSUBSCRIPTION", "Order", "QUOTED", "SEND",
    "TENSOR_OVERLAPS", "Topology", "Traffic", "axis_of", "best_configuration", "cheapest_order", "cloudmatrix384",
    "clos_buildings", "collective_seconds", "concurrency_limit", "configuration", "configurations", "dgx_node",
    "hierarchical_seconds", "hpn_first", "hpn_paper", "mesh_sizes", "nvl72", "order_seconds", "pace",
    "pipeline_rounds", "place", "rank_orders", "scale_up", "utilisation",
    "utilisation_rows",
]  # fmt: skip
