"""The parts of a step add up, utilisation is what the field means by it, overlap hides no more than it lies under."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost import planner
from labkit.cost.planner import MODELS, Cluster, Estimate, Model, Plan, estimate

SMALL = Model("small", 8, 1024, 8, 4, gated=True, vocabulary=4096, sequence=2048, tied=False)
EXPERTS = Model("experts", 8, 1024, 8, 4, gated=True, vocabulary=4096, sequence=2048, tied=False, experts=8, top_k=2,
                expert_inside=1024)  # fmt: skip
KINDS = ("plain", "zero1", "zero2", "zero3")


def overlapping(cluster: Cluster, *names: str, **figures: object) -> Cluster:
    return replace(cluster, efficiency=replace(cluster.efficiency, overlaps=frozenset(names), **figures))  # type: ignore[arg-type]


@st.composite
def plans(draw: st.DrawFn) -> tuple[Model, Plan]:
    model = draw(st.sampled_from((SMALL, EXPERTS)))
    t, p, c, d = (draw(st.sampled_from((1, 2, 4))) for _ in range(4))
    e = draw(st.sampled_from((1, 2))) if model.experts else 1
    while (t * p * c * e * d) % 8:
        d *= 2
    m = draw(st.integers(1, 3)) * p
    schedule, v = draw(st.sampled_from((("one_f_one_b", 1), ("gpipe", 1), ("interleaved", 2), ("zb_h1", 1))))
    return model, Plan(
        t, p, c, e, d, draw(st.sampled_from((1, 2))), m, schedule if p > 1 else "one_f_one_b", v if p > 1 else 1,
        draw(st.sampled_from(KINDS)), 0, draw(st.sampled_from(("all", "selective", "full"))), draw(st.booleans()),
    )  # fmt: skip


def found(case: tuple[Model, Plan], *overlaps: str) -> Estimate:
    model, plan = case
    return estimate(model, overlapping(planner.h100_cluster(plan.gpus), *overlaps), plan)


@given(plans())
def test_parts_add_up_and_are_never_negative(case: tuple[Model, Plan]) -> None:
    one = found(case, "context", "pipeline", "data")
    assert set(one.parts) == set(planner.PARTS)
    assert all(seconds >= -1e-12 for seconds in one.parts.values())
    assert sum(one.parts.values()) == one.seconds > 0
    pace = planner.Costs(case[0], one.cluster).pace(
        one.plan.cut, one.plan.microbatch, one.plan.chunks, one.plan.sequence_parallel, one.plan.recompute
    )
    # All microbatches one after the other at the pace of the slowest rank, and what is not theirs.
    rest = one.parts["bubble"] + one.parts["data"] + one.parts["optimizer"]
    plan = one.plan
    filling = cost.pipeline_exposed_hops(plan.schedule, plan.pipeline, plan.microbatches, plan.chunks) * pace.hop
    assert one.seconds == pytest.approx(one.plan.microbatches * pace.total + rest + filling)


@given(plans())
def test_what_hardware_does_is_at_least_what_the_model_asks_for(case: tuple[Model, Plan]) -> None:
    one = found(case, "data")
    assert 0 < one.mfu <= one.hfu < 1
    assert (one.hfu == one.mfu) == (one.plan.recompute != "full")
    done = one.model.step_flops(one.tokens) / (one.seconds * one.plan.gpus)
    assert one.mfu == pytest.approx(done / one.cluster.peak)


def test_mfu_is_that_of_the_package_where_attention_and_embeddings_are_small() -> None:
    model, plan = MODELS["Llama 3 405B"], Plan(8, 16, 1, 1, 64, 1, 32, "interleaved", 8, "zero1")
    one = estimate(model, planner.h100_cluster(8192), plan)
    simple = cost.mfu(model.params, one.tokens, one.seconds, 8192, one.cluster.peak)
    attention = 12 * model.layers * model.hidden * model.sequence
    assert one.mfu == pytest.approx(simple * (1 + attention / (6 * model.params)), rel=0.01)


def test_hfu_counts_one_forward_pass_more() -> None:
    plan = Plan(data=8, recompute="full")
    one = estimate(SMALL, planner.a100_cluster(8), plan)
    layers = one.model.forward_flops(1) - 2 * one.model.embedding_params
    assert one.hfu / one.mfu == pytest.approx(1 + layers / one.model.step_flops(1))
    selective = estimate(SMALL, planner.a100_cluster(8), Plan(data=8, recompute="selective"))
    scores = 4 * SMALL.sequence * SMALL.hidden * SMALL.layers
    assert selective.hfu / selective.mfu == pytest.approx(1 + scores / SMALL.step_flops(1))


# Overlap


@given(plans())
def test_overlap_never_makes_a_step_longer(case: tuple[Model, Plan]) -> None:
    alone, hidden = found(case), found(case, "tensor", "context", "data")
    for part in ("tensor", "context", "data"):
        assert hidden.parts[part] <= alone.parts[part] + 1e-12
    assert hidden.seconds <= alone.seconds + 1e-9


@given(plans())
def test_overlap_hides_no_more_than_the_computing_it_lies_under(case: tuple[Model, Plan]) -> None:
    model, plan = case
    alone, hidden = found(case), found(case, "tensor", "context", "data")
    costs = planner.Costs(model, alone.cluster)
    layer = costs.layer(plan.microbatch, plan.tensor, plan.context, plan.expert, plan.sequence_parallel, plan.recompute)
    n = plan.microbatches * plan.layers_on_a_rank(model)
    saved = {part: alone.parts[part] - hidden.parts[part] for part in ("tensor", "context", "data")}
    # The column-parallel products' weight gradients, and their input gradients under sequence parallelism; the logits'.
    logits = plan.microbatches * costs.logits(plan.microbatch, plan.tensor, plan.context).weight_gradient
    assert saved["tensor"] <= (1 + plan.sequence_parallel) * (n * layer.weight_gradient * 7 / 12 + logits) + 1e-12
    assert saved["context"] <= n * 3 * layer.attention + 1e-12
    pace = costs.pace(plan.cut, plan.microbatch, plan.chunks, plan.sequence_parallel, plan.recompute)
    # In each microbatch one forward and one backward pass at the most; without ZeRO-2 or 3 in one microbatch only.
    times = plan.microbatches + 1 if plan.stage >= 2 else 1
    assert saved["data"] <= times * pace.total + 1e-12


@given(plans())
def test_the_last_gradient_is_never_hidden(case: tuple[Model, Plan]) -> None:
    one = found(case, "data")
    holders = one.plan.holders
    assert one.parts["data"] > 0 or holders == 1


def test_a_slow_network_shows_where_it_is_longer_than_the_backward_pass() -> None:
    plan = Plan(data=64, microbatches=1, sharding="zero1")
    cluster = planner.h100_cluster(64)
    waits = [estimate(SMALL, cluster.with_network(f), plan).parts["data"] for f in (1, 0.1, 0.01)]
    compute = estimate(SMALL, cluster, plan).parts["computing"]
    assert waits[0] < waits[1] < waits[2]
    # Ten times slower takes ten times as long; what lies under one microbatch stays the same.
    assert waits[2] > 10 * waits[1] and waits[2] - 10 * waits[1] < 10 * compute


def test_sequence_parallelism_waits_for_the_gradient_that_it_gathers_and_hides_the_rest() -> None:
    """Where computing is long: both pairs gather and scatter forward, and backward gather the gradient."""
    wide, plan = replace(SMALL, hidden=8192, inside=32_768, heads=64, vocabulary=128_000), Plan(8, microbatch=8)
    cluster = overlapping(planner.h100_cluster(8), "tensor")
    wires = planner.Costs(wide, cluster).wires(plan.cut)
    half = planner.wires.seconds(wires.tensor, "all_gather", 8 * 2048 * 8192 * 2)
    for sequence, layer, ends in ((True, 6 * half, 2 * half + half), (False, 4 * half, 2 * half)):
        waits = estimate(wide, cluster, replace(plan, sequence_parallel=sequence)).parts["tensor"]
        loss = waits - wide.layers * layer - ends  # some numbers a token
        assert 0 < loss < half / 5


def test_the_last_block_s_gradients_are_waited_for_on_their_way_home_and_no_other_block() -> None:
    long = replace(SMALL, sequence=131_072)
    cluster = overlapping(planner.h100_cluster(8), "context")
    one = estimate(long, cluster, Plan(context=8, sequence_parallel=False))
    axis = planner.Costs(long, cluster).wires(one.plan.cut).context
    home = planner.wires.seconds(axis, "send", 2 * 131_072 / 8 * 512 * 4)  # keys and values of 4 heads in 32 bits
    assert one.parts["context"] == pytest.approx(long.layers * home)


def test_a_flat_ring_goes_at_the_pace_of_the_slowest_link() -> None:
    cluster = overlapping(planner.h100_cluster(16))
    flat = overlapping(planner.h100_cluster(16), hierarchical=False)
    params = planner.Costs(SMALL, flat).exchanged(1, 1, 1, 1).dense
    level = flat.reached.levels[1]
    ring = cost.ring_all_reduce_time(4 * params, 16, level.latency, 1 / level.bandwidth)
    assert estimate(SMALL, flat, Plan(data=16)).parts["data"] == pytest.approx(ring)
    assert estimate(SMALL, cluster, Plan(data=16)).parts["data"] < ring / 4


def test_software_that_overlaps_shards_only_sends_all_else_at_the_end() -> None:
    plans = [Plan(data=8, microbatch=8, sharding=kind) for kind in ("plain", "zero1", "zero2", "zero3")]
    found = {
        name: [estimate(SMALL, overlapping(planner.h100_cluster(8), *name), plan).parts["data"] for plan in plans]
        for name in ((), ("shards",), ("data",))
    }
    assert found["shards",][:3] == found[()][:3] and found["shards",][3] == found["data",][3] < found[()][3]


def test_the_others_wait_for_the_rank_of_a_hot_expert() -> None:
    cluster, plan = overlapping(planner.h100_cluster(8)), Plan(expert=8, microbatch=8)
    even, hot = (estimate(replace(EXPERTS, skew=skew), cluster, plan) for skew in (1.0, 3.0))
    assert 2.5 < hot.parts["expert"] / even.parts["expert"] <= 3  # latencies stay
    assert 1.2 < hot.parts["computing"] / even.parts["computing"] < 3
    with pytest.raises(ValueError, match="skew must be a number above 0, not 0"):
        replace(EXPERTS, skew=0)


def test_a_full_pipeline_waits_for_what_the_other_stages_take() -> None:
    """The last stage has the logits as well, and while the pipeline fills nobody computes any."""
    model, cluster = replace(SMALL, vocabulary=128_000), overlapping(planner.h100_cluster(8))
    plan = Plan(1, 8, microbatches=8)
    one = estimate(model, cluster, plan)
    costs = planner.Costs(model, cluster)
    layer, logits = costs.layer(1, 1, 1, 1, True, "selective").total, costs.logits(1, 1, 1).total
    hops = one.parts["messages"]
    assert one.seconds - hops - one.parts["optimizer"] == pytest.approx(8 * (layer + logits) + 7 * layer, rel=0.01)


# Kernels


def test_narrow_products_wait_for_memory() -> None:
    cluster = planner.h100_cluster(8)
    seconds = planner.product_seconds
    wide = 2 * 8192 * 8192 * 8192 / seconds(cluster, 8192, 8192, 8192)
    assert wide == pytest.approx(cluster.peak * cluster.efficiency.products)
    narrow = seconds(cluster, 8192, 8192, 8)
    moved = 2 * (8192 * 8192 + 8192 * 8 + 8192 * 8)
    assert narrow == pytest.approx(moved / (cluster.gpu.memory_bandwidth * cluster.efficiency.memory))


def test_tensor_parallelism_makes_products_narrower_and_a_layer_less_than_t_times_as_fast() -> None:
    cluster = planner.h100_cluster(8)
    one, eight = (planner.layer_seconds(SMALL, cluster, 1, t, 1, 1, True, "all").total for t in (1, 8))
    assert one / 8 < eight < one


def test_the_optimizer_reads_and_writes_what_a_rank_owns() -> None:
    plain, cut = (
        estimate(SMALL, planner.h100_cluster(8), Plan(data=8, sharding=kind)).parts["optimizer"]
        for kind in ("plain", "zero1")
    )
    assert plain == pytest.approx(8 * cut)
    params = SMALL.params - SMALL.hidden  # the last norm is not counted
    assert plain == pytest.approx(params * 30 / (3.35e12 * 0.8))


# Price


def test_dollars_and_joules() -> None:
    one = estimate(SMALL, planner.h100_cluster(8, price=2.0), Plan(data=8))
    run = one.run(1e9)
    assert (
        run["dollars"] == pytest.approx(run["hours"] * 8 * 2.0) == pytest.approx(1000 * one.dollars_per_million_tokens)
    )
    assert run["megawatt-hours"] == pytest.approx(run["hours"] * 8 * 700 / 1e6)
    assert run["steps"] == 1e9 / (8 * 2048)


def test_parameters_that_come_later_than_they_are_needed_are_waited_for() -> None:
    exchange = planner.Exchange(gather=3.0, scatter=2.0, gather_once=1.0, scatter_once=6.0)
    assert exchange.in_forward(1.0, overlap=True) == 2.0 and exchange.in_forward(1.0, overlap=False) == 3.0
    assert exchange.in_backward(4.0, overlap=True) == 1.0 and exchange.in_backward(9.0, overlap=True) == 0.0
    # Once: a tenth of the first gather and scatter, of the parameters, and what of the gradients is longer than 4 s.
    assert exchange.once(2.0, 4.0, 10, overlap=True) == pytest.approx(0.5 + 0.1 + 2.0)
    assert exchange.once(2.0, 4.0, 10, overlap=False) == 7.0


def test_a_price_is_said_with_where_it_comes_from_and_never_made_up() -> None:
    h100, rack = planner.h100_cluster(8), planner.b200_cluster(8)
    one, other = (estimate(SMALL, x, Plan(data=8)) for x in (h100, rack))
    assert "at $4.92 an hour (EC2 Capacity Blocks, December 2024)" in planner.explained(one)[-1]
    assert "no price of the B200 is at hand" in planner.explained(other)[-1] and "$" not in planner.explained(other)[-1]
    own = estimate(SMALL, planner.h100_cluster(8, price=2.0), Plan(data=8))
    assert "at $2.00 an hour," in planner.explained(own)[-1]
    assert planner.a100_cluster(8).price_said.endswith("(EC2 Capacity Blocks, December 2024, for A100s of 40 GB)")
    hours = one.gpu_hours_per_billion_tokens
    assert hours * 39.33 / 8 == pytest.approx(1000 * one.dollars_per_million_tokens)


def test_of_every_card_the_same_part_is_left_free() -> None:
    for gpu in (planner.A100, planner.H100, planner.B200, planner.ASCEND_910C):
        assert gpu.reserve / (gpu.memory + gpu.reserve) == pytest.approx(1 - 80e9 / (80 * 2**30))
    assert planner.H100.memory == 80e9 and round(planner.H100.reserve / 1e9, 1) == 5.9
    assert planner.B200.memory + planner.B200.reserve == pytest.approx(189e9)
