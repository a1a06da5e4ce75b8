"""A plan's memory, bytes and time are the closed forms of the package, added up; what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit import cost
from labkit.cost import planner
from labkit.cost.planner import MODELS, Model, Plan, estimate

GPT3 = MODELS["GPT-3 175B"]
SMALL = Model("small GPT", 8, 512, 8, vocabulary=1024, sequence=256, positions=256, biases=True, dropout=True)
EXPERTS = Model(
    "small experts", 8, 512, 8, 4, gated=True, vocabulary=1024, sequence=256, tied=False, experts=8, top_k=2, shared=1,
    expert_inside=256,
)  # fmt: skip
A100 = planner.a100_cluster
H100 = planner.h100_cluster


# Models


def test_parameters_are_those_that_the_authors_name() -> None:
    billions = {name: round(model.params / 1e9, 1) for name, model in MODELS.items()}
    assert billions == {
        "GPT-2 1.5B": 1.6, "GPT-3 175B": 174.6, "Llama 3 8B": 8.0, "Llama 3 70B": 70.6, "Llama 3 405B": 405.9,
        "Mixtral 8x7B": 46.7,
    }  # fmt: skip


def test_a_layer_of_gpt_is_that_of_the_closed_forms() -> None:
    assert GPT3.layer_params == cost.layer_parameters(GPT3.hidden)
    assert GPT3.replicated_layer_params == cost.replicated_layer_parameters(GPT3.hidden)
    layer = cost.layer_flops(1, GPT3.sequence, GPT3.hidden)
    logits = 6 * GPT3.sequence * GPT3.embedding_params
    assert GPT3.step_flops(GPT3.sequence) == pytest.approx(96 * layer.total + logits)


def test_the_parameters_of_experts() -> None:
    dense, routed = EXPERTS.dense_layer_params, EXPERTS.expert_layer_params
    assert routed == 8 * 3 * 512 * 256
    assert dense == 512 * (2 * 512 + 512) + 3 * 512 * 256
    assert EXPERTS.layer_matrix_params == dense + 2 * 3 * 512 * 256 + 8 * 512
    assert EXPERTS.params == 8 * (dense + routed + 2 * 512 + 8 * 512) + 2 * 1024 * 512 + 512


# Memory


@pytest.mark.parametrize("kind, stage", [("plain", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3)])
def test_state_is_that_of_zero(kind: str, stage: int) -> None:
    held = estimate(SMALL, H100(64), Plan(data=64, sharding=kind, gradient_bytes=2)).held
    last_norm = 2 * SMALL.hidden
    assert held.state == pytest.approx(cost.zero_state_bytes(SMALL.params - last_norm, 64, stage))


def test_hybrid_sharding_cuts_the_state_inside_a_domain_only() -> None:
    held = estimate(SMALL, H100(64), Plan(data=64, sharding="hsdp", shard=8, gradient_bytes=2)).held
    assert held.state == pytest.approx(cost.hybrid_state_bytes(SMALL.params - 2 * SMALL.hidden, 8))


def test_gradients_of_four_bytes_are_twice_as_large() -> None:
    two, four = (estimate(SMALL, H100(8), Plan(data=8, gradient_bytes=n)).held for n in (2, 4))
    assert four.gradients == 2 * two.gradients and four.state - two.state == two.gradients


@pytest.mark.parametrize("recompute", ["all", "selective", "full"])
@pytest.mark.parametrize(
    "schedule, chunks", [("one_f_one_b", 1), ("gpipe", 1), ("interleaved", 2), ("zb_h1", 1), ("naive", 1)]
)
def test_activations_are_those_of_the_schedule(schedule: str, chunks: int, recompute: str) -> None:
    shape = cost.Shape(SMALL.params, SMALL.layers, SMALL.hidden, SMALL.heads, SMALL.sequence)
    plan = Plan(2, 4, microbatch=2, microbatches=8, schedule=schedule, chunks=chunks, recompute=recompute)
    found = planner.Costs(SMALL, A100(8)).activations(plan.cut, 2, 8, schedule, chunks, True, recompute)
    held = cost.pipeline_activation_bytes_by_rank(
        shape, schedule, 4, 8, 2, chunks=chunks, tensor=2, sequence_parallel=True, strategy=recompute
    )
    first, last = (one.activations for one in found)
    assert (first, last) == pytest.approx((held[0], held[-1]))


def test_fused_attention_keeps_no_scores() -> None:
    fused = replace(A100(8), efficiency=planner.Efficiency(fused_attention=True))
    many, few = (planner.Costs(SMALL, one).kept(1, 1, 1, True, "all")[0] for one in (A100(8), fused))
    assert many - few == SMALL.heads * SMALL.sequence**2 * 5


def test_grouped_keys_and_a_gated_layer() -> None:
    # Llama 3 405B: 2 (q and what attention gives) + 2 * 8/128 (k, v) + 3 * 3.25 (SwiGLU) of h values each, and 4 h.
    model = MODELS["Llama 3 405B"]
    kept = cost.layer_activation_bytes(
        8192, model.hidden, model.queries, model.keys_values, model.inside, 8, gated=True, dropout=False,
        sequence_parallel=True,
    )  # fmt: skip
    assert kept == pytest.approx(2 * 8192 * 16_384 / 8 * (2 + 2 * 8 / 128 + 3 * 3.25 + 4))


# Bytes


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_tensor_parallel_bytes(sequence_parallel: bool, recompute: str) -> None:
    plan = Plan(8, 4, 1, 1, 1, 4, 8, sequence_parallel=sequence_parallel, recompute=recompute)
    sent = estimate(GPT3, A100(32), plan).sent["tensor"]
    assert sent == cost.tensor_parallel_bytes(
        4, 2048, 12_288, 24, 8, microbatches=8, sequence_parallel=sequence_parallel, gather_again=sequence_parallel,
        recompute=recompute == "full",
    )  # fmt: skip


def test_pipeline_bytes_are_shared_out_among_tensor_ranks() -> None:
    plan = Plan(8, 4, 1, 1, 1, 4, 8, "interleaved", 2)
    sent = estimate(GPT3, A100(32), plan).sent["pipeline"]
    assert sent == max(cost.pipeline_bytes_by_rank(4, 2048, 12_288, 4, 8, 2)) / 8


@pytest.mark.parametrize("kind, stage", [("plain", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3)])
def test_data_parallel_bytes(kind: str, stage: int) -> None:
    plan = Plan(data=16, microbatches=4, sharding=kind, gradient_bytes=2)
    params = SMALL.params - 2 * SMALL.hidden
    each = cost.accumulation_bytes_per_step(params, 16, stage, 4, exchange_each=stage >= 2)
    assert estimate(SMALL, H100(16), plan).sent["data"] == pytest.approx(each)


def test_hybrid_bytes() -> None:
    plan = Plan(data=64, sharding="hsdp", shard=8, gradient_bytes=2)
    sent = cost.hybrid_bytes_per_step(SMALL.params - 2 * SMALL.hidden, 8, 8)
    assert estimate(SMALL, H100(64), plan).sent["data"] == pytest.approx(sent.total)


def test_context_and_expert_bytes() -> None:
    plan = Plan(context=2, expert=4, data=2, microbatch=2, microbatches=3)
    sent = estimate(EXPERTS, H100(16), plan).sent
    ring = cost.ring_attention_bytes_by_rank([128, 128], 4, 64, batch=2)[0]
    assert sent["context"] == 3 * 8 * ring
    payload = cost.dispatch_payload_bytes(2 * 128, 512, 2)
    assert sent["expert"] == 3 * 8 * 4 * payload * 3 / 4  # there and back, forward and backward; 3 of 4 go elsewhere


def test_axes_lie_inside_a_domain_or_across() -> None:
    found = estimate(GPT3, A100(1024), Plan(8, 8, 1, 1, 16, 1, 16))
    assert found.link == {"tensor": "node", "context": "", "expert": "", "data": "cluster", "pipeline": "cluster"}
    wide = estimate(MODELS["Llama 3 70B"], planner.b200_cluster(64, 64), Plan(8, 2, 1, 1, 4, 1, 4))
    assert set(wide.link.values()) == {"domain", ""}


# Refusals


@pytest.mark.parametrize(
    "options, words",
    [
        ({"tensor": 0}, "tensor must be a whole number of at least 1, not 0"),
        ({"schedule": "dualpipe"}, "schedule must be one of .*'zb_h2', not 'dualpipe'"),
        ({"sharding": "zero4"}, "sharding must be one of .*not 'zero4'"),
        ({"chunks": 2}, "chunks must be 1 for one_f_one_b, not 2: take schedule='interleaved'"),
        ({"data": 6, "sharding": "hsdp", "shard": 4}, "shard must divide the 6 ranks .* and 4 does not: take 3"),
        ({"shard": 4}, "shard=4 has a meaning for 'hsdp' only, not for 'plain'"),
        ({"gradient_bytes": 1}, "gradient_bytes must be one of 2, 4, not 1"),
    ],
)
def test_a_plan_that_is_none(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Plan(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "model, plan, words",
    [
        (SMALL, Plan(3), "tensor=3 does not divide the 8 heads of small GPT: take 2"),
        (SMALL, Plan(pipeline=9), "pipeline=9 is more than the 8 layers of small GPT: take at most 8"),
        (SMALL, Plan(context=3), "context=3 cuts a sequence into 6 chunks, and 256 tokens do not divide: take 2"),
        (SMALL, Plan(expert=2), "expert=2 needs experts, and small GPT has none: take expert=1"),
        (EXPERTS, Plan(expert=3), "expert=3 does not divide the 8 experts: take 2"),
        (SMALL, Plan(pipeline=4, schedule="interleaved", chunks=2, microbatches=6), "6 are no multiple: take 8"),
        (SMALL, Plan(pipeline=4, schedule="interleaved", chunks=4, microbatches=4), "16 parts .* take chunks=2"),
        (SMALL, Plan(pipeline=4, schedule="zb_h2", microbatches=6), "zb_h2 needs 7 microbatches .*: take zb_h1"),
    ],
)
def test_a_plan_that_no_machine_could_run(model: Model, plan: Plan, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan.refuse(model)


def test_a_plan_that_does_not_fill_the_cluster() -> None:
    with pytest.raises(ValueError, match="tensor 8 x pipeline 4 x data 16 = 512 ranks do not fill 1024 GPUs: take d"):
        estimate(GPT3, A100(1024), Plan(8, 4, 1, 1, 16))
    with pytest.raises(ValueError, match="the 24 that hold the model once do not divide 64"):
        estimate(GPT3, A100(64), Plan(8, 3, 1, 1, 2))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Model("m", 2, 10, 3), "heads must divide hidden=10, and 3 does not"),
        (lambda: Model("m", 2, 16, 4, experts=2, top_k=3, expert_inside=8), "top_k must be at most the 2 experts"),
        (lambda: Model("m", 2, 16, 4, top_k=1), "m has no experts, so top_k, .* must be 0"),
        (lambda: planner.Efficiency(products=1.2), "products must be a part .* at most 1, not 1.2"),
        (lambda: planner.Efficiency(overlaps=frozenset({"disk"})), "overlaps can have .*, not 'disk'"),
        (lambda: planner.H100.peak("int3"), "H100 has no peak for dtype='int3': choose 'bf16' or 'fp8' or 'fp32'"),
        (lambda: H100(12), "8 GPUs of a node must divide gpus=12"),
        (lambda: H100(8).times(2), "is one domain without a network"),
    ],
)  # fmt: skip
def test_a_model_or_machine_that_is_none(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


# Numbers of the sources


def test_static_memory_and_gpus_of_the_sources() -> None:
    assert [(claim.said, claim.agrees) for claim in planner.static_memory()[:2]] == [("13.7", True), ("19.1", True)]
    assert [round(claim.found, 2) for claim in planner.static_memory()[:2]] == [13.67, 19.14]
    assert Plan(8, 8, 1, 1, 16).gpus == 1024 and Plan(8, 16, 1, 1, 128).gpus == 16_384
    # By the planner's own count, with gradients: 16 bytes for a sixteenth of the layers for one embedding, and
    # for the positions, which every tensor rank of the first stage holds.
    held = estimate(GPT3, H100(16_384), Plan(8, 16, 1, 1, 128, 1, 32, gradient_bytes=2)).held
    layers, embedding = 6 * GPT3.layer_params / 8, GPT3.embedding_params / 8
    positions = 2048 * GPT3.hidden
    assert held.state == pytest.approx(16 * (layers + embedding + positions), rel=1e-3)


@pytest.mark.parametrize("stages, microbatches, percent", [(4, 8, 27.3), (4, 32, 8.6), (8, 32, 17.9), (16, 32, 31.9)])
def test_the_bubbles_of_the_sources(stages: int, microbatches: int, percent: float) -> None:
    model = replace(GPT3, vocabulary=1)  # all stages alike, but for one column of logits
    parts = estimate(model, A100(8 * stages), Plan(1, stages, data=8, microbatches=microbatches)).parts
    busy = sum(parts[name] for name in ("computing", "uneven", "recomputed", "tensor", "messages"))
    assert round(100 * parts["bubble"] / (busy + parts["bubble"]), 1) == percent
    assert cost.bubble_fraction(stages, microbatches) == pytest.approx(parts["bubble"] / (busy + parts["bubble"]), 1e-3)


def test_logits_and_what_is_there_for_a_moment() -> None:
    costs = planner.Costs(SMALL, H100(8))
    first, last = costs.activations((2, 4, 1, 1, 1), 2, 8, "one_f_one_b", 1, True, "full")
    assert first.logits == 0 and last.logits == 6 * 2 * 256 * 1024 / 2
    everything = costs.kept(2, 2, 1, True, "all")[0]
    assert first.buffers == pytest.approx(everything - costs.kept(2, 2, 1, True, "full")[0])  # one layer again
    # Under ZeRO-3 two layers' parameters are there at a time, and the whole gradient of one.
    sharded = estimate(SMALL, H100(8), Plan(data=8, sharding="zero3", recompute="all")).held
    assert sharded.buffers == pytest.approx(SMALL.layer_params * (2 * 2 + 4))


def test_what_is_computed_again_sends_again() -> None:
    once, twice = (
        estimate(EXPERTS, H100(16), Plan(context=2, expert=4, data=2, recompute=r)).sent for r in ("all", "full")
    )
    forward = cost.ring_attention_bytes_by_rank([128, 128], 4, 64, passes="forward")[0]
    assert twice["context"] - once["context"] == 8 * forward
    assert twice["expert"] == 1.5 * once["expert"]


def test_experts_are_updated_by_those_that_hold_them() -> None:
    costs = planner.Costs(EXPERTS, H100(16))
    params = costs.params(1, 1, 4, 1)[0]
    assert params.experts == EXPERTS.layers * EXPERTS.expert_layer_params / 4
    moved = (26 + 4) * (params.dense / 16 + params.experts / 4)  # 4 ranks hold the same experts, 16 all else
    seconds = costs.optimizer((1, 1, 1, 4, 4), "zero1", 0, 4, 1)
    assert seconds == pytest.approx(moved / (3.35e12 * 0.8))
