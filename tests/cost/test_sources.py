"""The numbers on collectives that the sources state, from their own inputs."""

from __future__ import annotations

import math

import pytest

from labkit import cost
from labkit.cost import slow_sync, textbook
from labkit.cost.units import GB, MB


def milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)


# Example 1.1, slow gradient synchronization


def test_the_flat_ring_of_the_example():
    assert milliseconds(slow_sync.flat_seconds()) == 239.8
    assert slow_sync.flat_seconds() == pytest.approx(2 * 1023 / 1024 * 3e9 / 25e9)


def test_the_example_needs_three_gigabytes():
    low, high = slow_sync.message_bytes(0.23975), slow_sync.message_bytes(0.23985)
    assert low < 3 * GB < high and high - low < 0.0015 * GB
    # The same bits as GPT-2: 1.5 billion parameters of 16 bits.
    assert slow_sync.GRADIENT == textbook.GPT2_GRADIENT == 1.5e9 * 2
    # With both directions of InfiniBand the message would be 6 GB, and 48.5 ms out of reach.
    assert slow_sync.stated_hierarchical_seconds(6 * GB) > 0.090


def test_the_hierarchical_number_of_the_example():
    assert milliseconds(slow_sync.stated_hierarchical_seconds()) == 48.5
    parts = 7 / 8 * 3e9 / 300e9, 2 * 127 / 128 * 3e9 / 8 / 25e9, 3e9 / 300e9
    assert [round(1000 * part, 2) for part in parts] == [8.75, 29.77, 10.0]
    assert slow_sync.stated_hierarchical_seconds() == pytest.approx(sum(parts))


@pytest.mark.parametrize(("times", "eighths"), [(1, [15]), (0.5, []), (2, [30]), (1.5, [])])
def test_no_other_whole_eighths_of_the_message_give_it(times, eighths):
    share = slow_sync.GRADIENT / slow_sync.RANKS_PER_NODE
    between = cost.ring_all_reduce_time(share, slow_sync.NODES, 0, 1 / slow_sync.PORT)
    nvlink = slow_sync.NVLINK_BOTH_DIRECTIONS * times
    fits = [j for j in range(33) if milliseconds(j * share / nvlink + between) == 48.5]
    assert fits == eighths


def test_what_the_example_should_have_computed():
    assert milliseconds(slow_sync.hierarchical_seconds(both_directions=True)) == 47.3
    assert milliseconds(slow_sync.hierarchical_seconds()) == 64.8  # 300 GB/s both ways is 150 GB/s one way
    whole = cost.hierarchical_all_reduce_time(3 * GB, 1024, 0, 1 / (150 * GB), 8, 0, 1 / (25 * GB))
    assert slow_sync.hierarchical_seconds() == pytest.approx(whole)


def test_the_gain_of_the_example_is_in_the_ports():
    shared = slow_sync.hierarchical_seconds(ports_per_node=1, both_directions=True)
    assert shared > slow_sync.flat_seconds()
    assert slow_sync.rings_seconds(rings=1) == pytest.approx(slow_sync.flat_seconds())
    assert milliseconds(slow_sync.rings_seconds()) == 35.0
    assert slow_sync.rings_seconds() < slow_sync.hierarchical_seconds()
    times = [slow_sync.rings_seconds(rings=r) for r in range(1, 9)]
    assert times == sorted(times, reverse=True)


def test_sixty_percent_does_not_make_a_hundred_milliseconds():
    assert milliseconds(slow_sync.seconds_at_uplink_fraction()) == 68.4
    assert milliseconds(slow_sync.seconds_at_uplink_fraction(stated=False)) == 84.6
    assert round(slow_sync.uplink_fraction_for(), 3) == 0.366
    assert round(slow_sync.uplink_fraction_for(stated=False), 3) == 0.458
    fraction = slow_sync.uplink_fraction_for()
    assert slow_sync.seconds_at_uplink_fraction(fraction) == pytest.approx(slow_sync.OBSERVED)
    # End to end the efficiency is higher than on the uplinks, not lower: 71 percent.
    ideal, slowed = slow_sync.stated_hierarchical_seconds(), slow_sync.seconds_at_uplink_fraction()
    assert round(ideal / slowed, 2) == 0.71
    assert milliseconds(slow_sync.OBSERVED - ideal) == 51.5
    assert round(ideal / slow_sync.OBSERVED, 3) == 0.485
    assert round(slow_sync.average_port_fraction(), 2) == 0.30


def test_the_same_recipe_in_one_direction():
    phases = slow_sync.stated_phases(one_direction=True)
    assert [round(1000 * t, 2) for t in phases] == [17.5, 29.77, 20.0]
    assert round(1000 * slow_sync.stated_hierarchical_seconds(one_direction=True), 2) == 67.27
    assert round(1000 * slow_sync.seconds_at_uplink_fraction(one_direction=True), 2) == 87.11
    fraction = slow_sync.uplink_fraction_for(one_direction=True)
    assert round(fraction, 3) == 0.476
    assert slow_sync.stated_hierarchical_seconds(fraction=fraction, one_direction=True) == pytest.approx(0.1)


def test_sixty_percent_on_average_is_no_fault():
    healthy = slow_sync.average_port_fraction(slow_sync.stated_hierarchical_seconds())
    assert round(healthy, 3) == 0.614
    large = slow_sync.message_of_counter()
    assert round(large / GB, 2) == 6.05
    assert 2 * 127 / 128 * large / 8 == pytest.approx(0.6 * 0.1 * 25 * GB)  # what crosses a port
    assert milliseconds(slow_sync.stated_hierarchical_seconds(large)) == 97.8
    assert slow_sync.average_port_fraction(0.1, large) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="not 0"):
        slow_sync.message_of_counter(fraction=0)


def test_the_example_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="less than"):
        slow_sync.uplink_fraction_for(0.040)
    with pytest.raises(ValueError, match="not 0"):
        slow_sync.seconds_at_uplink_fraction(0)
    with pytest.raises(ValueError, match="not 9"):
        slow_sync.rings_seconds(rings=9)
    with pytest.raises(ValueError, match="not 0"):
        slow_sync.hierarchical_seconds(ports_per_node=0)
    with pytest.raises(ValueError, match="not -1"):
        slow_sync.flat_seconds(-1)


# All-reduce elsewhere in the chapter


def test_gpt2_on_one_node():
    stated = textbook.ring_at(textbook.GPT2_GRADIENT, 8, textbook.NVLINK_ONE_DIRECTION)
    assert stated.nbytes == 5.25 * GB
    assert round(1000 * stated.seconds, 2) == 11.67
    assert round(100 * 1.8 / (1.8 + stated.seconds), 2) == 99.36


def test_gpt2_on_four_nodes():
    inside = textbook.ring_at(textbook.GPT2_GRADIENT, 8, textbook.NVLINK_ONE_DIRECTION)
    stated = textbook.ring_at(textbook.GPT2_GRADIENT, 32, textbook.TEN_GIGABIT)
    assert stated.nbytes == 5.8125 * GB
    assert stated.seconds == pytest.approx(4.650)
    step = 1.8 + inside.seconds + stated.seconds
    assert milliseconds(step) == 6461.7
    assert round(100 * 1.8 / step, 2) == 27.86
    assert round(32 * 1.8 / step, 2) == 8.91
    # One ring over all 32 ranks has its hops inside nodes already: they hide behind the slow one.
    flat = cost.flat_ring_all_reduce_time(3 * GB, 32, 0, 1 / (450 * GB), 8, 0, 1 / (1.25 * GB))
    assert flat == pytest.approx(stated.seconds)


def test_tensor_parallel_traffic_of_175b():
    payload = textbook.tensor_parallel_payload_bytes(4, 2048, 12288)
    assert round(payload / MB, 2) == 201.33
    traffic = textbook.tensor_parallel_traffic_bytes
    assert round(traffic(payload, 8, 6) / GB, 3) == 4.228
    assert round(traffic(payload, 8, 6, all_reduces_per_layer=4) / GB, 3) == 8.456
    assert round(traffic(payload, 8, 96) / GB, 2) == 67.65


def test_the_factor_of_two_is_a_limit():
    payload = textbook.tensor_parallel_payload_bytes(4, 2048, 4096)
    assert round(payload / MB, 1) == 67.1
    assert round(2 * payload / MB) == 134
    assert round(cost.ring_all_reduce_bytes(payload, 8) / MB, 1) == 117.4


def test_the_shards_of_175b_are_reduced_by_128_ranks_and_not_by_1024():
    shard, port = 350 * GB / 8, 50 * GB
    assert shard == 43.75 * GB
    assert round(textbook.ring_at(shard, 1024, port).seconds, 3) == 1.748  # near the 1.75 of the chapter
    right = textbook.ring_at(shard, 128, port).seconds
    assert round(right, 3) == 1.736
    assert round(100 * 2.1 / (2.1 + right), 1) == 54.7
    assert round(100 * 2.1 / (2.1 + 1.75), 1) == 54.5


# Elsewhere in the chapter


def test_what_the_appendix_needs_beside_the_closed_forms():
    assert [textbook.expert_room(c, 2) for c in (1.25, 1.5)] == [0.625, 0.75] and textbook.expert_room(1.25, 1) == 1.25
    ranges = {name: textbook.dynamic_range(name) for name in textbook.FORMATS}
    assert ranges["E4M3"] == 448 / 2**-6 == 28_672 and ranges["E5M2"] == 57_344 / 2**-14
    assert ranges["FP16"] == 65_504 / 2**-14
    assert [round(math.log10(ranges[n] / ranges["E4M3"])) for n in ("FP16", "BF16", "E5M2")] == [5, 72, 5]
    assert 1.1 < ranges["FP16"] / ranges["E5M2"] < 1.2
    assert [textbook.infinities(name) for name in textbook.FORMATS] == [2, 2, 2, 0, 2]
    assert [textbook.warmup_rate(step, 500, 8) for step in (0, 250, 500, 900)] == [1, 4.5, 8, 8]
    # Four times the batch: the rate doubles, if the bound has it in both terms; as printed the smallest one wins.
    best = [textbook.best_rate(batch, 1000) for batch in (16, 64)]
    assert best[1] / best[0] == pytest.approx(2, rel=0.01)
    assert textbook.best_rate(64, 1000, False) == textbook.best_rate(16, 1000, False) == 0.001
    assert round(textbook.rollout_seconds(140 * GB, 1024, 32, 3350 * GB), 2) == 1.34
    assert textbook.decades_apart("FP16", "E4M3") == pytest.approx(4.57, abs=0.01)  # "4 to 5", and for BF16 not
    assert textbook.decades_apart("BF16", "E4M3") == pytest.approx(72.0, abs=0.1)


def test_bad_inputs_of_the_chapter():
    with pytest.raises(ValueError, match="bandwidth .*not 0"):
        textbook.ring_at(1, 8, 0)
    with pytest.raises(ValueError, match="not -4"):
        textbook.tensor_parallel_payload_bytes(-4, 2048, 4096)
    with pytest.raises(ValueError, match="not -1"):
        textbook.tensor_parallel_traffic_bytes(1, 8, -1)
