"""Alignment training in closed forms: the textbook's numbers (section 1.7), and the formulas against plain counting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.units import GB

POLICY, SMALL = 70e9, 13e9
PPO = cost.aligned_models_bytes([POLICY, SMALL], [POLICY, SMALL])
PPO_LARGE_CRITIC = cost.aligned_models_bytes([POLICY, POLICY], [POLICY, SMALL])
DPO = cost.aligned_models_bytes([POLICY], [POLICY])
LLAMA = dict(layers=80, width=8192, kv_width=8 * 128)  # Llama 2 70B: 64 heads of 128, 8 of keys and values


# The sources' numbers


def test_the_four_models_of_ppo_and_the_two_of_dpo():
    assert cost.state_bytes(POLICY) == 1120 * GB and cost.frozen_bytes(POLICY) == 140 * GB
    assert cost.frozen_bytes(SMALL) == 26 * GB and cost.state_bytes(SMALL) == 208 * GB
    assert (PPO, PPO_LARGE_CRITIC, DPO) == (1494 * GB, 2406 * GB, 1260 * GB)
    assert cost.aligned_models_bytes([POLICY], [POLICY, SMALL]) == 1286 * GB  # GRPO
    assert round(100 * (1 - DPO / PPO), 1) == 15.7 and round(100 * (1 - DPO / PPO_LARGE_CRITIC)) == 48
    assert cost.state_bytes(POLICY) / cost.frozen_bytes(POLICY) == 8


def test_nineteen_gpus_hold_more_than_parameters():
    """Textbook: "a minimum of 19 GPUs for parameter storage alone". With gradients and optimizers it is 19; else 5."""
    assert cost.devices_to_hold(PPO) == 19 and cost.devices_to_hold(DPO) == 16
    assert cost.devices_to_hold(sum(map(cost.frozen_bytes, (POLICY, POLICY, SMALL, SMALL)))) == 5


def test_a_gpu_of_the_policy():
    policy, reference = cost.trained_bytes_per_gpu(POLICY, 8, 4), cost.frozen_bytes_per_gpu(POLICY, 8, 4)
    assert (policy, reference) == (35 * GB, 4.375 * GB)
    assert cost.frozen_bytes_per_gpu(POLICY, 8, 1) == 17.5 * GB
    left = cost.GPU_MEMORY - policy - reference
    cache = cost.kv_cache_bytes_per_gpu(80, 8, 128, 1024, 256, 8, 4)
    assert left == 40.625 * GB and round((left - cache) / GB, 1) == 37.9
    assert round(left / (left - cache), 2) == 1.07  # microbatches of DPO over those of PPO
    # The eight replicas may share the state, which the textbook leaves out.
    assert cost.trained_bytes_per_gpu(POLICY, 8, 4, data=8) == policy
    assert cost.trained_bytes_per_gpu(POLICY, 8, 4, 8, 1) == 70e9 / 32 * (4 + 12 / 8) == 12.03125 * GB
    assert cost.trained_bytes_per_gpu(POLICY, 8, 4, 8, 3) == 4.375 * GB


def test_the_cache_of_a_rollout():
    grouped = cost.kv_cache_bytes(80, 8, 128, 1024, 256)
    assert grouped == 2 * 80 * 8 * 128 * 1024 * 256 * 2 and round(grouped / GB, 2) == 85.90
    assert round(cost.kv_cache_bytes(80, 64, 128, 1024, 256) / GB, 2) == 687.19
    assert round(cost.kv_cache_bytes_per_gpu(80, 8, 128, 1024, 256, 8, 4) / GB, 2) == 2.68
    # Prompts of up to 500 tokens (section 1.7.5) are in the cache too, and the textbook counts what is generated only.
    assert round(cost.kv_cache_bytes(80, 8, 128, 1024 + 500, 256) / GB, 1) == 127.8


def test_one_long_sequence_among_fifteen_short_ones():
    lengths = [2048] + [128] * 15
    assert sum(lengths) == 3968 and 16 * 2048 == 32768
    assert round(100 * cost.padding_waste(lengths), 1) == 87.9
    assert cost.fewest_rows(lengths, 2048) == 2 and cost.padding_waste(lengths, 2, 2048) == 1 / 32


def test_forty_percent_of_the_time_is_no_utilization():
    # Textbook: "only 40 percent utilization" beside DPO's "40 percent-55 percent MFU"; its table has 15 to 25 for PPO.
    assert cost.time_weighted_mfu([(0.6, 0), (0.4, 1)]) == 0.4
    assert [round(cost.time_weighted_mfu([(0.6, 0), (0.4, mfu)]), 2) for mfu in (0.40, 0.55)] == [0.16, 0.22]


# The formulas


@given(
    layers=st.integers(1, 4), kv_heads=st.sampled_from([1, 2, 4, 6]), head=st.integers(1, 5),
    itemsize=st.integers(1, 4), lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
)  # fmt: skip
def test_a_cache_counted_tensor_by_tensor(layers, kv_heads, head, itemsize, lengths):
    counted = 0
    for n in lengths:
        for _ in range(layers):
            keys = values = n * kv_heads * head
            counted += (keys + values) * itemsize
    assert sum(cost.kv_cache_bytes(layers, kv_heads, head, n, 1, itemsize) for n in lengths) == counted
    assert cost.kv_cache_bytes(layers, kv_heads, head, lengths[0], 7, itemsize) == 7 * cost.kv_cache_bytes(
        layers, kv_heads, head, lengths[0], 1, itemsize
    )


@pytest.mark.parametrize(("tensor", "copies"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)])
def test_shards_of_a_cache_add_up_and_heads_are_not_cut(tensor, copies):
    shard = cost.kv_cache_bytes_per_gpu(6, 4, 3, 5, 2, tensor, 3)
    assert shard * tensor * 3 == copies * cost.kv_cache_bytes(6, 4, 3, 5, 2)


def test_without_a_context_the_intensity_is_the_batch():
    for batch in (1, 7, 295, 296):
        assert cost.decoding_intensity(POLICY, batch, 0, **LLAMA) == pytest.approx(batch)
    assert cost.compute_bound_batch(POLICY, 0, **LLAMA) == pytest.approx(cost.machine_balance())


def test_intensities_of_a_large_policy():
    found = [round(cost.decoding_intensity(POLICY, b, 1024, **LLAMA), 2) for b in (1, 256)]
    assert found == [1.02, 161.7]
    assert round(cost.decoding_intensity(POLICY, 10**12, 2048, **LLAMA)) == 217
    assert round(cost.compute_bound_batch(POLICY, 1024, **LLAMA)) == 947
    assert cost.compute_bound_batch(POLICY, 2048, **LLAMA) == math.inf
    assert cost.compute_bound_batch(POLICY, 256, 80, 8192, 8192) == math.inf


@pytest.mark.parametrize("context", [0, 100, 1024])
def test_at_the_bound_computing_and_reading_take_equally_long(context):
    batch = cost.compute_bound_batch(POLICY, context, **LLAMA)
    fewer, more = math.floor(batch * 0.99), math.ceil(batch * 1.01)
    assert cost.decoding_intensity(POLICY, fewer, context, **LLAMA) < cost.machine_balance()
    assert cost.decoding_intensity(POLICY, more, context, **LLAMA) > cost.machine_balance()


def test_seconds_of_a_step():
    one, many = (cost.decoding_seconds(POLICY, b, 0, gpus=8, **LLAMA) for b in (1, 32))
    assert one == many == 140e9 / 3.35e12 / 8
    assert cost.decoding_seconds(POLICY, 1000, 0, gpus=8, **LLAMA) == pytest.approx(1000 * 140e9 / 989e12 / 8)
    assert cost.decoding_seconds(POLICY, 10, 500, **LLAMA) == (140e9 + 10 * 500 * 2 * 80 * 1024 * 2) / 3.35e12


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_waste_counted_position_by_position(lengths):
    wasted = sum(1 for n in lengths for at in range(max(lengths)) if at >= n)
    assert cost.padding_waste(lengths) == pytest.approx(wasted / (len(lengths) * max(lengths)))
    assert cost.fewest_rows(lengths, 50) * 50 >= sum(lengths) > (cost.fewest_rows(lengths, 50) - 1) * 50


def test_the_work_of_a_sequence():
    n, layers, width = 5, 3, 4
    pairs = sum(1 for query in range(n) for key in range(n) if key <= query)
    # n^2 / 2 pairs are half a diagonal fewer than there are.
    assert pairs - n**2 / 2 == n / 2
    forward = 2 * 1000 * n + layers * (n**2 / 2) * 4 * width
    assert cost.sequence_flops(n, 1000, layers, width) == 3 * forward
    shares = [6 * 80 * 8192 * n * n / cost.sequence_flops(n, POLICY, 80, 8192) for n in (2048, 106_811)]
    assert [round(100 * s) for s in shares] == [2, 50]


@given(
    generating=st.floats(0.1, 100), training=st.floats(0.1, 100), gpus=st.integers(2, 40), overlap=st.booleans(),
)  # fmt: skip
def test_no_other_split_is_better(generating, training, gpus, overlap):
    best = cost.best_generators(generating, training, gpus, overlap)
    seconds = {g: cost.separate_seconds(generating, training, g, gpus - g, overlap) for g in range(1, gpus)}
    assert seconds[best] == pytest.approx(min(seconds.values()))
    used = cost.fleet_utilization(generating, training, gpus, seconds[best])
    limit = 1 if overlap else cost.separate_utilization_limit(generating / (generating + training))
    assert used <= limit * (1 + 1e-9)
    together = cost.colocated_seconds(generating, training, gpus)
    assert cost.fleet_utilization(generating, training, gpus, together) == pytest.approx(1)
    assert together <= seconds[best] * (1 + 1e-9)


def test_placements_of_sixty_and_forty():
    """60 GPU-seconds of generating and 40 of training on 10 GPUs."""
    assert cost.colocated_seconds(60, 40, 10) == 10 and cost.colocated_seconds(60, 40, 10, swap=0.5) == 10.5
    assert cost.best_generators(60, 40, 10, overlap=True) == 6
    assert cost.separate_seconds(60, 40, 6, 4, overlap=True) == 10  # a version old
    assert cost.separate_seconds(60, 40, 6, 4, overlap=False) == 20
    assert round(cost.separate_utilization_limit(0.6), 3) == 0.505
    assert cost.separate_utilization_limit(0.5) == pytest.approx(0.5) and cost.separate_utilization_limit(1) == 1
    assert cost.swap_seconds(35 * GB, 64 * GB) == 1.09375


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.frozen_bytes(-1), "params .*-1"),
        (lambda: cost.trained_bytes_per_gpu(1, 0, 1), "tensor .*0"),
        (lambda: cost.frozen_bytes_per_gpu(1, 1, 0), "pipeline .*0"),
        (lambda: cost.kv_cache_bytes(1, 1, 1, -1), "tokens .*-1"),
        (lambda: cost.kv_cache_bytes_per_gpu(80, 8, 128, 1, 1, 8, 3), "pipeline must divide layers=80, and 3"),
        (lambda: cost.kv_cache_bytes_per_gpu(80, 8, 128, 1, 1, 3, 1), "tensor must divide kv_heads=8, and 3"),
        (lambda: cost.kv_cache_bytes_per_gpu(80, 8, 128, 1, 1, 12, 1), "kv_heads must divide tensor=12, and 8"),
        (lambda: cost.decoding_flops(1, 0, 1, 1, 1), "batch .*0"),
        (lambda: cost.padding_waste([]), "empty"),
        (lambda: cost.padding_waste([3, 3], rows=1, room=5), "6 tokens.*1 rows of 5"),
        (lambda: cost.padding_waste([3, 6], rows=2, room=5), "6 in one sequence.*2 rows of 5"),
        (lambda: cost.fewest_rows([0], 5), r"lengths\[0\] .*0"),
        (lambda: cost.time_weighted_mfu([(0.6, 0), (0.3, 1)]), "add up to 0.9"),
        (lambda: cost.time_weighted_mfu([(1.2, 0)]), "share .*1.2"),
        (lambda: cost.best_generators(1, 1, 1, True), "at least 2"),
        (lambda: cost.swap_seconds(1, 0), "bandwidth .*0"),
        (lambda: cost.fleet_utilization(1, 1, 1, 0), "seconds .*0"),
    ],
)
def test_what_cannot_be_is_refused(call, named):
    with pytest.raises(ValueError, match=named):
        call()
