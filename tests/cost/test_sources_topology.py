"""Numbers of the sources on machines, each from its own inputs: right, wrong, and contradictory.

"Article" is the Chinese article on nonuniform tensor parallelism, by its sections; "FT-HSDP" is arXiv 2602.00277.
"""

from __future__ import annotations

import pytest

from labkit import cost
from labkit.cost import ftar, topology as T
from labkit.cost.units import GB, Gb, Tb

PORTS = T.HpnPorts()


# Article, 3.1 to 3.3


def test_an_8_gpu_node_has_four_switches_with_two_gpus_and_two_cards_each():
    parts = T.NodeParts()
    assert (parts.switches, parts.gpus, parts.nics, parts.nics_per_gpu) == (4, 8, 8, 1)
    # "with 4 cards a server, one on each switch": two GPUs share one.
    few = T.NodeParts(nics_per_switch=1)
    assert few.nics == 4 and few.nics_per_gpu == 0.5
    assert T.dgx_node(2, parts=few).bandwidth(0, 8) == 25 * GB == T.dgx_node(2).bandwidth(0, 8) / 2
    assert T.dgx_node().gpus == 8 and len(T.dgx_node().levels) == 1


def test_scale_up_domains():
    assert T.nvl72().gpus == 72 and T.cloudmatrix384().gpus == 384
    assert round(384 / 72, 1) == 5.3
    # "1.8 TB/s a card" counts both directions; a GPU of a domain has nine times the bandwidth of its 800 Gb/s card.
    assert T.nvl72().levels[0].bandwidth == 900 * GB
    assert T.nvl72(2).levels[0].bandwidth / T.nvl72(2).levels[1].bandwidth == 9
    # "the whole node with 36 CPU + 72 GPU" (6.5): two GPUs for each CPU.
    assert 72 / 36 == 2
    # 128 heads can be shared out among all of 72 GPUs at most 8 ways.
    assert max(t for t in range(1, 73) if 72 % t == 0 and 128 % t == 0) == 8


# Article, 3.4: HPN before its paper


def test_hpn_before_its_paper():
    first = T.hpn_first()
    assert first.capacity("segment") == 128 * 8 == 1024
    assert first.capacity("pod") == 8 * 1024 == 8192
    assert first.gpus == 128 * 8192 == 1_048_576 == 2**20
    # "not oversubscribed": all GPUs of one half of the machine can send to the other at once.
    assert first.bisection() == first.gpus / 2 * 400 * Gb
    assert all(level.oversubscription == 1 for level in first.levels)


# Article, 3.4: HPN as in its paper


def test_hpn_ports_of_a_segment():
    assert 60 + 68 == PORTS.ports and PORTS.down == 68
    assert PORTS.nodes == 68 * 400 // 200 == 136
    assert PORTS.nodes - PORTS.spare_nodes == 128 and PORTS.segment_gpus == 1024
    # Every card has a port on two of the 16 switches: as many ports down as there are ports of cards.
    assert PORTS.tors * PORTS.down * 2 == PORTS.connected_gpus * PORTS.planes
    assert PORTS.segment_oversubscription == pytest.approx((1024 * 400) / (60 * 400 * 16)) == pytest.approx(16 / 15)
    assert round(PORTS.segment_oversubscription, 3) == 1.067
    assert T.HpnPorts(spare_nodes=0).segment_oversubscription == pytest.approx(68 / 60)  # 1.133 with the spares


def test_138_times_8_is_neither_the_number_nor_the_product_that_is_meant():
    assert 138 * 8 == 1104  # "136 nodes, so 138*8=1104 GPUs"
    assert PORTS.connected_gpus == 136 * 8 == 1088
    assert PORTS.connected_gpus - PORTS.segment_gpus == 8 * 8


def test_nic1_to_nic9_are_nine_cards():
    # "Of the nine cards of a node NIC1 to NIC9, these 8 ... NIC0": ten names for nine cards.
    assert len(range(1, 9 + 1)) == 9 and len(range(0, 9 + 1)) == 10
    assert len(range(1, 8 + 1)) == PORTS.gpus_per_node  # NIC1 to NIC8, one a GPU


def test_hpn_pods():
    assert PORTS.segments == 120 // 8 == 15
    assert PORTS.pod_gpus == 15 * 1024 == 15_360  # "15K"
    machine = T.hpn_paper()
    assert machine.gpus == 8 * 15_360 == 122_880  # "120K"
    assert PORTS.core_oversubscription == 15 == 120 / 8 and 120 + 8 == PORTS.ports
    # From a GPU's port to the core both are on the way: 16 : 1, which the article does not say.
    assert PORTS.pod_oversubscription == pytest.approx(16)
    assert machine.level("cluster").share == pytest.approx(400 * Gb / 16)
    # Counted from the switches: 60 in each of 2 planes, 8 ports each to the core, and half of 8 pods.
    switches = PORTS.up * PORTS.planes
    assert machine.bisection() == pytest.approx(4 * switches * 8 * 400 * Gb) == pytest.approx(1536 * Tb)
    # The first version had 8.5 times the GPUs and 137 times the bisection.
    assert round(T.hpn_first().gpus / machine.gpus, 1) == 8.5
    assert round(T.hpn_first().bisection() / machine.bisection()) == 137


def test_stages_belong_into_different_pods_only_if_the_all_reduce_does_not_know_of_pods():
    # "In training large models different stages of PP can be put into different pods, so the traffic across pods is
    # small": 175B, TP8, 8 stages, 1,920 replicas, 16 microbatches of 8,192 tokens.
    payload = cost.pipeline_boundary_bytes(1, 8192, 12_288)
    sends = {"tp": T.Traffic("all_reduce", payload, 4 * 12 * 8), "pp": T.Traffic("send", payload / 8, 16)}
    sizes = {"dp": 1920, "pp": 8, "tp": 8}

    def ranked(algorithm: str) -> list[T.Order]:
        gradients = T.Traffic("all_reduce", 2 * 175e9 / 64, 1, algorithm)
        return T.rank_orders(T.hpn_paper(), sizes, {**sends, "dp": gradients})

    # Halving and doubling sends from all GPUs of a pod at once, through 16 : 1.
    blind = ranked("halving_doubling")
    assert blind[0].axes == ("pp", "dp", "tp") and blind[0].seconds < blind[1].seconds / 2
    # A ring in the order of the ranks leaves a pod at one GPU of each group; then stages are what crosses dearly.
    aware = ranked("best")
    assert aware[0].axes == ("dp", "pp", "tp") and aware[1].axes == ("pp", "dp", "tp")
    assert aware[1].by_axis["pp"] > 10 * aware[0].by_axis["pp"]
    # Tensor parallelism belongs into the node in either case.
    for orders in (aware, blind):
        inside, elsewhere = (
            [o.by_axis["tp"] for o in orders if (o.axes[-1] == "tp") == last] for last in (True, False)
        )
        assert orders[0].axes[-1] == "tp" and 8 * max(inside) < min(elsewhere)


# FT-HSDP, 2.1


def test_latency_tiers_and_oversubscription_of_ft_hsdp():
    machine = T.clos_buildings()
    rack, zone, building = (machine.capacity(name) for name in ("rack", "zone", "building"))
    tiers = [machine.tier(0, other, "rack") for other in (rack - 1, rack, zone, building)]
    assert tiers == pytest.approx([1, 7, 15, 30])
    assert [machine.level(name).oversubscription for name in ("rack", "zone", "building", "campus")] == [1, 1, 2.8, 2.8]
    # Nor do the tiers depend on the seconds that are assumed for the first.
    assert T.clos_buildings(rack_latency=2e-6, nvlink_latency=1e-6).tiers("rack")["campus"] == pytest.approx(30)


def test_the_gpus_of_ft_hsdps_largest_run():
    machine = T.clos_buildings()
    assert machine.gpus == 12 * 8192 == 98_304  # "98K"
    assert machine.capacity("building") == 98_304 / 4 == 24_576 == 8 * 3072  # as large as Llama 3's whole cluster
    assert machine.capacity("building") / 8192 == 3  # replicas a building


def test_a_replica_fits_into_one_zone_or_one_building():
    # "It places all GPUs of a replica within one AI Zone or DC": in zones of Llama 3's size it takes nearly three.
    for zone, level in ((8192, "zone"), (3072, "building")):
        placed = T.place(T.clos_buildings(zone_gpus=zone), {"replica": 12, "inside": 8192})
        assert placed["inside"].crosses.name == level
        assert placed["replica"].crosses.name == "campus"


def test_ftars_own_bandwidth_is_not_oversubscribed():
    # Table 2 is measured across zones: 39.8 to 45.5 GB/s of the 50 of a card, while 1 : 2.8 leaves 17.9 to each GPU if
    # all of them send. So it shows one group at a time on an otherwise idle network.
    reached = [ours for row in ftar.TABLE.values() for ours, _ in row.values()]
    zone = T.clos_buildings().level("building")
    assert round(zone.share / GB, 1) == 17.9 and zone.bandwidth == 50 * GB
    assert min(reached) > 2 * zone.share / GB and max(reached) < zone.bandwidth / GB


def test_three_replicas_a_building_take_the_oversubscription_off_the_wires_between_buildings():
    # A ring over 12 replicas, 3 in a building: of three GPUs one sends out, and 3 > 2.8. Between zones all do.
    machine = T.clos_buildings()
    replica = T.place(machine, {"replica": 12, "inside": 8192})["replica"]
    assert replica.members == (1, 1, 1, 3, 12) and replica.regular
    assert 1 / T.pace(replica)[1] == pytest.approx(50 * GB / 2.8)  # the pace of the zones
    wide = T.place(T.clos_buildings(zone_gpus=24_576), {"replica": 12, "inside": 8192})["replica"]
    assert 1 / T.pace(wide)[1] == pytest.approx(50 * GB)
    alone = T.pace(replica, busy=False)
    assert 1 / alone[1] == pytest.approx(50 * GB) and alone[0] == pytest.approx(30 * 14e-6)


# Article, 3.5.4 and 6.2: the model, the cluster, the batch


def test_480b_is_503_by_its_own_shape():
    assert T.ARTICLE_SHAPE.params == 480e9
    assert round(T.ARTICLE_SHAPE.matrix_params / 1e9, 1) == 503.3
    assert round(T.ARTICLE_SHAPE.matrix_params / 480e9, 3) == 1.049


def test_the_sequence_is_8k_in_one_place_and_16k_in_another():
    # 3.5.4: "sequence length 8K, 16M tokens a batch"; 6.2: "sequence length 16K, 16 million tokens a batch".
    assert T.ARTICLE_TOKENS == 2000 * 8192 == 1000 * 16_384
    assert T.ARTICLE_SHAPE.sequence == 8192


def test_eight_domains_a_replica_do_not_divide_the_layers():
    # 6.3: "each DP replica uses 8 NVL domains" of 32 at TP32: 8 stages, and 100 layers are 12.5 each.
    assert 32_000 / (32 * 8) == 125 and 1000 / 125 == 8
    assert T.ARTICLE_SHAPE.layers % 8 == 4


def test_the_difference_of_nearly_20_percent_is_in_points():
    assert T.QUOTED == {8: 0.68, 32: 0.87}
    assert round(T.QUOTED[32] - T.QUOTED[8], 2) == 0.19  # "a difference of nearly 20 percent"
    assert round(T.QUOTED[32] / T.QUOTED[8], 2) == 1.28
