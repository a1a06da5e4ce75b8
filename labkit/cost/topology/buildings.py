"""A three-layer Clos network over several buildings: the cluster of FT-HSDP (arXiv 2602.00277, section 2.1).

A switch joins the GPUs of a rack, another layer the racks of an AI zone, a third the zones of a building; the third
layers of all buildings form a full mesh. Between zones and between buildings the network is oversubscribed by 2.8.
Latencies are given as ratios only: 1 in a rack, 7 in a zone, 15 between zones, 30 between buildings ("7x higher" is
read as 7 times).
"""

from __future__ import annotations

from labkit.cost.links.wires import INFINIBAND, NVLINK, NVLINK_ONE_DIRECTION
from labkit.cost.refuse import divides, positive, whole
from labkit.cost.topology.levels import Level, Topology
from labkit.cost.topology.machines import H100_NIC, NCCL_LATENCY

FT_HSDP = "FT-HSDP (arXiv 2602.00277), 2.1"
LATENCY_TIERS = {"rack": 1, "zone": 7, "building": 15, "campus": 30}  # of two GPUs that share no smaller unit
OVERSUBSCRIPTION = 2.8  # "1:2.8", between zones and between buildings
REPLICA_GPUS, REPLICAS, BUILDINGS = 8192, 12, 4  # section 6: "98K H100 GPUs", 12 replicas over 4 buildings


def clos_buildings(
    *,
    buildings: int = BUILDINGS,
    building_gpus: int = REPLICA_GPUS * REPLICAS // BUILDINGS,
    zone_gpus: int = REPLICA_GPUS,
    rack_gpus: int = 16,
    node_gpus: int = 8,
    oversubscription: float = OVERSUBSCRIPTION,
    nvlink: float = NVLINK_ONE_DIRECTION,
    nic: float = H100_NIC,
    nvlink_latency: float = NVLINK.alpha,
    rack_latency: float = INFINIBAND.alpha,
) -> Topology:
    """4 buildings of 24,576 GPUs, in zones, racks and nodes; latencies of 1, 7, 15 and 30 times `rack_latency` seconds.

    From the source: the layers, 98,304 GPUs (12 replicas of 8,192) in 4 buildings, the tiers, 1 : 2.8. Assumed, for the
    source does not say: a zone holds one replica ("within one AI Zone or DC"); racks are not oversubscribed in their
    zone; 400 Gb/s a GPU and 16 GPUs a rack, as in Llama 3's cluster (arXiv 2407.21783, section 3.3.1), whose building
    of 24,576 has zones of 3,072 (zone_gpus=3072: there no replica fits into one); and `rack_latency`, NCCL's one hop
    over a network. Ratios do not depend on it.

    Raises ValueError where units do not divide the next larger ones.
    """
    whole(buildings=buildings, building_gpus=building_gpus, zone_gpus=zone_gpus, rack_gpus=rack_gpus,
          node_gpus=node_gpus)  # fmt: skip
    positive(rack_latency=rack_latency)
    for inner, outer in ((("node_gpus", node_gpus), ("rack_gpus", rack_gpus)),
                         (("rack_gpus", rack_gpus), ("zone_gpus", zone_gpus)),
                         (("zone_gpus", zone_gpus), ("building_gpus", building_gpus))):  # fmt: skip
        if inner[1] > outer[1]:
            raise ValueError(f"{inner[0]} must be at most {outer[0]}={outer[1]}, not {inner[1]}")
        divides(**dict((inner, outer)))
    late = {name: tier * rack_latency for name, tier in LATENCY_TIERS.items()}
    seconds = "seconds: the tier times NCCL's hop over a network"
    levels = [
        Level("node", node_gpus, nvlink, min(nvlink_latency, rack_latency), source="textbook chapter",
              assumed=NCCL_LATENCY),
        Level("rack", rack_gpus // node_gpus, nic, late["rack"], source=FT_HSDP, assumed=f"GPUs, bandwidth; {seconds}"),
        Level("zone", zone_gpus // rack_gpus, nic, late["zone"], source=FT_HSDP, assumed=f"GPUs, bandwidth; {seconds}"),
        Level("building", building_gpus // zone_gpus, nic, late["building"], oversubscription, FT_HSDP, seconds),
        Level("campus", buildings, nic, late["campus"], oversubscription, FT_HSDP, seconds),
    ]  # fmt: skip
    return Topology(
        "FT-HSDP's buildings", tuple(levels),
        notes=("how many GPUs a zone and a rack have is not said",),
    )  # fmt: skip
