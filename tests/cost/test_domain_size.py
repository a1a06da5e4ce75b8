"""Utilisation by the size of the NVLink domain: the model, its limits, and what it gives for the article's Figure 2."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost import topology as T
from labkit.cost.topology import Assumptions

ROUND = T.ARTICLE_TOKENS // T.ARTICLE_SHAPE.sequence  # sequences of a batch
LONG = replace(T.ARTICLE_SHAPE, sequence=16_384)


def percent(*args: int, **options: object) -> float:
    return round(100 * T.utilisation(*args, **options), 1)  # type: ignore[arg-type]


# The parts of the model


@pytest.mark.parametrize(
    "p, m, v", [(1, 3, 1), (4, 8, 1), (4, 3, 1), (4, 8, 2), (4, 2, 3), (5, 1, 4), (4, 10, 2), (3, 8, 2)]
)
def test_rounds_are_those_of_the_simulated_schedule(p: int, m: int, v: int) -> None:
    """With fewer microbatches than stages, as many, more, and rounds that are longer than p."""
    from labkit.parallel.pipeline import Costs, interleaved, simulate

    line = simulate(interleaved(p, m, v), Costs(1.0 / v, 1.5 / v, 0.5 / v))
    assert T.pipeline_rounds(p, m, v) * 3.0 == pytest.approx(line.seconds)


def test_rounds_agree_with_the_closed_form_of_the_package() -> None:
    for p, m, v in ((4, 8, 2), (8, 8, 1), (2, 6, 3)):
        name = "interleaved" if v > 1 else "one_f_one_b"
        assert T.pipeline_rounds(p, m, v) * 6 == pytest.approx(cost.pipeline_step_seconds(name, p, m, 1, 2, 3, v))


def test_what_a_step_is_spent_on_adds_up() -> None:
    cluster = T.scale_up(32_000, 32)
    one = T.configuration(cluster, 32, 10, 10, ROUND)
    assert str(one) == "TP32 PP10 DP100 v10 m20"
    assert one.seconds == pytest.approx(one.ideal + sum(one.by_cause.values()))
    assert one.utilisation + sum(one.lost.values()) == pytest.approx(1)
    # Without messages a step is its rounds: 20 + 9/10 microbatches of a tenth of the layers each.
    flops = cost.layer_flops(1, 8192, 20_480).total / (32 * Assumptions().flops_per_second)
    free = T.configuration(cluster, 32, 10, 10, ROUND, assumptions=Assumptions(tensor_overlap="all"))
    waiting = max(0.0, free.by_cause["tensor"] / (20 * 10))
    assert free.seconds == pytest.approx((20 + 9 / 10) * 10 * (flops + waiting) + free.by_cause["data"])
    assert free.ideal == pytest.approx(20 * 10 * flops)


def test_tensor_parallelism_is_that_of_the_layer_model() -> None:
    """Inside a domain the exposed all-reduces are those of `tensor_parallel_layer`."""
    cluster, assume = T.scale_up(32_000, 32), Assumptions()
    one = T.configuration(cluster, 32, 10, 1, ROUND)
    nvlink = cost.wires.Wire("NVLink", 900e9, 3.4e-6)
    layer = cost.tensor_parallel_layer(1, 8192, 20_480, 32, assume.flops_per_second, nvlink)
    assert one.by_cause["tensor"] == pytest.approx(one.microbatches * 10 * layer.exposed)
    # Behind all computing it is hidden, until it takes longer: four times the speed leaves a quarter of the time.
    for faster, left in ((1, 0.0), (4, layer.communication - layer.compute / 4)):
        rule = Assumptions(tensor_overlap="all", flops_per_second=faster * assume.flops_per_second)
        hidden = T.configuration(cluster, 32, 10, 1, ROUND, assumptions=rule)
        assert hidden.by_cause["tensor"] == pytest.approx(one.microbatches * 10 * left) and left >= 0
    bare = T.configuration(cluster, 32, 10, 1, ROUND, assumptions=Assumptions(tensor_overlap="none"))
    assert bare.by_cause["tensor"] == pytest.approx(one.microbatches * 10 * layer.communication)


def test_messages_between_stages_are_two_for_each_chunk_and_microbatch() -> None:
    rule = Assumptions(pipeline_overlap=False)
    one = T.configuration(T.scale_up(32_000, 8), 8, 10, 5, ROUND, assumptions=rule)
    payload = cost.pipeline_boundary_bytes(1, 8192, 20_480) / 8
    assert one.by_cause["pipeline"] == pytest.approx(one.microbatches * 5 * 2 * (14e-6 + payload / 100e9))
    assert T.configuration(T.scale_up(32_000, 8), 8, 10, 5, ROUND).by_cause["pipeline"] == 0


def test_data_parallelism_is_a_ring_of_all_weights_of_a_rank() -> None:
    cluster = T.scale_up(32_000, 8)
    one = T.configuration(cluster, 8, 10, 1, ROUND, assumptions=Assumptions(data_overlap=False))
    weights = T.ARTICLE_SHAPE.matrix_params / 80
    assert one.data == 400
    assert one.by_cause["data"] == pytest.approx(cost.ring_all_reduce_time(2 * weights, 400, 14e-6, 1 / 100e9))


def test_memory_is_state_and_activations_of_the_fullest_rank() -> None:
    one = T.configuration(T.scale_up(32_000, 32), 32, 8, 1, ROUND)  # 100 layers on 8 ranks: 13 on the fullest
    weights = T.ARTICLE_SHAPE.matrix_params * 13 / 100 / 32
    held = cost.pipeline_activation_bytes_by_rank(
        T.ARTICLE_SHAPE, "one_f_one_b", 8, 16, tensor=32, sequence_parallel=True, strategy="selective"
    )[0]
    assert one.memory == pytest.approx(cost.zero_state_bytes(weights, 125, 1) + held * 13 / 12.5)
    assert one.by_cause["uneven"] == pytest.approx(one.ideal * (13 / 12.5 - 1))


# Limits


@given(
    st.sampled_from([8, 16, 32, 64]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2, 4, 5, 10]),
    st.integers(50, 400),
)
def test_no_cut_uses_more_than_the_batch_allows(domain: int, tensor: int, pipeline: int, sequences: int) -> None:
    gpus = 3200
    if gpus // (tensor * pipeline) > sequences:
        return
    free = Assumptions(tensor_overlap="all", data_overlap=True, flops_per_second=1e9)
    one = T.configuration(T.scale_up(gpus, domain), tensor, pipeline, 1, sequences, assumptions=free)
    assert one.utilisation <= T.concurrency_limit(gpus, tensor, sequences) * (1 + 1e-9)
    assert all(seconds >= -1e-9 for seconds in one.by_cause.values())


def test_the_limit_is_reached_where_nothing_is_sent() -> None:
    free = Assumptions(tensor_overlap="all", flops_per_second=1e9, memory=1e15)
    found = T.configurations(T.scale_up(3200, 8), 200, assumptions=free)
    assert T.concurrency_limit(3200, 8, 200) == 0.5
    assert found[0].utilisation == pytest.approx(0.5, rel=1e-6)
    assert max(one.utilisation for one in found if one.tensor == 4) <= 0.25 + 1e-9


def test_with_nothing_to_send_and_enough_sequences_all_is_used() -> None:
    free = Assumptions(tensor_overlap="all", flops_per_second=1e6, memory=1e15)
    assert T.best_configuration(3200, 8, assumptions=free).utilisation == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("gpus", [8000, 32_000])
def test_a_larger_domain_is_never_worse_where_smaller_ones_divide_it(gpus: int) -> None:
    """Up to the order of the axes on it: with three axes a step may lie a little worse in a larger domain."""
    used = [T.utilisation(gpus, domain, tensor_limit=128) for domain in (8, 16, 32, 64)]
    assert all(later >= earlier - 0.01 for earlier, later in zip(used, used[1:], strict=False))


def test_what_hides_more_is_never_slower() -> None:
    by_rule = [T.utilisation(32_000, 32, assumptions=Assumptions(tensor_overlap=rule)) for rule in T.TENSOR_OVERLAPS]
    assert by_rule == sorted(by_rule)
    for option in ("data_overlap", "pipeline_overlap", "interleave"):
        off = T.utilisation(32_000, 8, tensor_limit=16, assumptions=Assumptions(**{option: False}))
        assert off < T.utilisation(32_000, 8, tensor_limit=16)


# The article's Figure 2


def test_figure_2a_at_32_000_gpus() -> None:
    assert percent(32_000, 32) == 88.4  # quoted: 87
    assert percent(32_000, 8, tensor_limit=128) == 78.1  # quoted: 68
    assert percent(32_000, 8) == 44.7
    assert percent(32_000, 16) == 82.2 and percent(32_000, 64) == 88.4


def test_68_percent_with_domains_of_8_is_not_possible_inside_them() -> None:
    """At TP8 a batch of 16 million tokens has work for half of 32,000 GPUs, whatever the network."""
    assert T.concurrency_limit(32_000, 8, ROUND) == 0.5 < T.QUOTED[8]
    assert T.concurrency_limit(32_000, 8, ROUND // 2) == 0.25  # with sequences of 16K
    assert T.concurrency_limit(8000, 8, ROUND) == 1.0  # and no more than all
    best = T.best_configuration(32_000, 8, tensor_limit=128)
    assert best.tensor == 16 and best.utilisation > T.QUOTED[8]
    # 2^24 tokens on 2^15 GPUs are the same case.
    assert percent(32_768, 8, tokens=2**24) == 44.7 and percent(32_768, 32, tokens=2**24) == 88.4


def test_at_8_000_gpus_the_domain_hardly_matters() -> None:
    """The article: "at a smaller scale (8K GPUs) a larger domain brings little"."""
    used = [percent(8000, domain, tensor_limit=128) for domain in (8, 16, 32)]
    assert used == [91.2, 93.2, 92.7]


def test_figure_2b_larger_jobs_need_wider_tensor_parallelism() -> None:
    rows = T.utilisation_rows((8000, 16_000, 32_000, 64_000), (16,), (8, 16, 128))
    table = {(row["GPUs"], row["TP at most"]): round(100 * row["utilisation"], 1) for row in rows}  # type: ignore[operator]
    assert [table[8000, limit] for limit in (8, 16, 128)] == [93.2, 93.2, 93.2]
    assert [table[16_000, limit] for limit in (8, 16, 128)] == [91.8, 91.8, 91.8]
    assert [table[32_000, limit] for limit in (8, 16, 128)] == [47.3, 82.2, 82.2]
    assert [table[64_000, limit] for limit in (8, 16, 128)] == [23.6, 41.7, 62.5]
    wide = next(row for row in rows if row["GPUs"] == 64_000 and row["TP at most"] == 128)
    assert str(wide["cut"]).startswith("TP32 ")  # across two domains of 16


def test_the_quoted_pair_lies_within_what_overlap_and_speed_can_do() -> None:
    """Each quoted number is between the model's values for all-reduces that are not hidden and for half-hidden ones."""
    bare, half = Assumptions(tensor_overlap="none"), Assumptions()
    for domain, options in ((8, {"tensor_limit": 128}), (32, {})):
        low, high = (T.utilisation(32_000, domain, assumptions=a, **options) for a in (bare, half))  # type: ignore[arg-type]
        assert low < T.QUOTED[domain] + 0.002 and T.QUOTED[domain] < high
    assert percent(32_000, 8, tensor_limit=128, assumptions=bare) == 68.1
    assert percent(32_000, 32, assumptions=bare) == 79.2


def test_sequences_of_16k_leave_less_to_share_out() -> None:
    assert percent(32_000, 8, shape=LONG) == 23.8 and percent(32_000, 8, shape=LONG, tensor_limit=128) == 60.3
    assert percent(32_000, 32, shape=LONG) == 74.7


def test_the_cut_that_the_article_names_is_far_from_87_here() -> None:
    """TP32 and 8 domains a replica, 16K: 8 microbatches on 8 stages, and 100 layers do not divide."""
    found = [T.configuration(T.scale_up(32_000, 32), 32, 8, v, 1000, shape=LONG).utilisation for v in range(1, 13)]
    assert round(100 * max(found), 1) == 59.3  # 9 chunks a rank of up to two layers
    assert round(100 * T.configuration(T.scale_up(32_000, 32), 32, 10, 10, 1000, shape=LONG).utilisation, 1) == 68.5


def test_72_gpus_are_not_cut_by_128_heads() -> None:
    """The widest tensor parallelism that fills an NVL72 is 8; of 64 of its GPUs, the others spare, it is 64."""
    all_72 = T.best_configuration(72 * 56, 72, tokens=252 * 8192)
    assert all_72.tensor == 8 and round(100 * all_72.utilisation, 1) == 47.3
    assert percent(64 * 500, 64) == 88.4


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: T.utilisation(32_000, 72), "domain must divide gpus=32000, and 72 does not; 64 and 80 do"),
        (lambda: T.utilisation(32_000, 0), "domain must be a whole number of at least 1"),
        (lambda: T.utilisation(8, 8), "no mix of tensor, pipeline and data parallelism fits on 8 GPUs"),
        (lambda: T.utilisation(8000, 8, tokens=8191), "tokens must be whole sequences of 8192"),
        (lambda: T.utilisation(8000, 8, tensor_limit=0), "tensor_limit must be a whole number"),
        (lambda: T.configuration(T.scale_up(80, 8), 3, 1, 1, 80), "tensor must divide heads=128, and 3 does not"),
        (lambda: T.configuration(T.scale_up(80, 8), 8, 3, 1, 80), "tensor . pipeline must divide GPUs=80"),
        (lambda: T.configuration(T.scale_up(80, 8), 8, 1, 1, 9), "80 GPUs in 10 replicas of 8 leave some without"),
        (lambda: T.configuration(T.scale_up(80, 8), 8, 2, 51, 80), "at most the 100 layers, not 102"),
        (lambda: Assumptions(tensor_overlap="some"), "tensor_overlap must be one of 'none', 'backward', 'all'"),
        (lambda: Assumptions(stage=3), "stage must be one of 0, 1, 2"),
        (lambda: Assumptions(recompute="full"), "recompute must be one of 'all', 'selective'"),
        (lambda: Assumptions(flops_per_second=0), "flops_per_second must be a number above 0"),
        (lambda: T.pipeline_rounds(0, 1), "stages must be a whole number"),
        (lambda: T.concurrency_limit(8, 8, 0), "sequences must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()
