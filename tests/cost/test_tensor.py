"""Bytes, calls, memory and time of tensor parallelism: closed forms against counts, and against each other."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.links.wires import ETHERNET, INFINIBAND, NVLINK
from labkit.cost.units import GB, MB

degrees = st.integers(1, 9)
few = st.integers(1, 6)
flags = st.booleans()
S, H, A = 2048, 12288, 96  # GPT-3


def test_two_and_two_all_reduces_a_layer():
    assert cost.tensor_parallel_calls(1, passes="forward") == cost.TensorParallelCalls(all_reduce=2)
    assert cost.tensor_parallel_calls(1, passes="backward") == cost.TensorParallelCalls(all_reduce=2)
    assert cost.tensor_parallel_calls(6, 32) == cost.TensorParallelCalls(all_reduce=768)
    assert cost.tensor_parallel_calls(1, recompute=True).all_reduce == 6
    assert cost.tensor_parallel_calls(1, passes="forward", recompute=True).all_reduce == 2
    parts = cost.tensor_parallel_calls(1, sequence_parallel=True)
    assert parts == cost.TensorParallelCalls(all_gather=4, reduce_scatter=4)
    again = cost.tensor_parallel_calls(1, sequence_parallel=True, gather_again=True)
    assert again == cost.TensorParallelCalls(all_gather=6, reduce_scatter=4)
    # In a forward pass there is nothing to gather again.
    forward = cost.tensor_parallel_calls(1, passes="forward", sequence_parallel=True, gather_again=True)
    assert forward == cost.TensorParallelCalls(all_gather=2, reduce_scatter=2)


@given(b=few, s=st.integers(1, 40), h=few, layers=few, t=degrees, m=few, recompute=flags)
def test_sequence_parallelism_sends_the_same_bytes(b, s, h, layers, t, m, recompute):
    plain = cost.tensor_parallel_bytes(b, s, h, layers, t, microbatches=m, recompute=recompute)
    cut = cost.tensor_parallel_bytes(b, s, h, layers, t, microbatches=m, recompute=recompute, sequence_parallel=True)
    assert cut == pytest.approx(plain)
    both = cost.tensor_parallel_bytes_by_rank(b, s, h, layers, t, microbatches=m, recompute=recompute)
    parts = cost.tensor_parallel_bytes_by_rank(
        b, s, h, layers, t, microbatches=m, recompute=recompute, sequence_parallel=True
    )
    assert sum(both) == sum(parts) == pytest.approx(t * plain)
    if s % t == 0:
        assert both == parts == [both[0]] * t


def test_gathering_again_sends_a_quarter_more():
    plain = cost.tensor_parallel_bytes(4, S, H, 1, 8)
    again = cost.tensor_parallel_bytes(4, S, H, 1, 8, sequence_parallel=True, gather_again=True)
    assert again == pytest.approx(1.25 * plain)
    assert cost.tensor_parallel_bytes(4, S, H, 1, 8, recompute=True) == pytest.approx(1.5 * plain)


@given(b=few, s=st.integers(1, 40), h=few, t=degrees, sequence=flags)
def test_by_rank_is_what_the_collectives_send(b, s, h, t, sequence):
    sent = cost.tensor_parallel_bytes_by_rank(b, s, h, 3, t, passes="forward", sequence_parallel=sequence, itemsize=4)
    if sequence:  # parts of whole positions
        one = [
            g + r
            for g, r in zip(
                cost.cost_of("all_gather", "ring").bytes_by_rank(s, 4 * b * h, t),
                cost.cost_of("reduce_scatter", "ring").bytes_by_rank(s, 4 * b * h, t),
                strict=True,
            )
        ]
    else:
        one = cost.cost_of("all_reduce", "ring").bytes_by_rank(b * s * h, 4, t)
    assert sent == [6 * n for n in one]


def test_seconds_go_at_the_pace_of_the_slowest_link():
    inside = cost.tensor_parallel_seconds(4, S, H, 1, 8, cost.Links(NVLINK.alpha, NVLINK.beta, 8))
    payload = cost.tensor_parallel_payload_bytes(4, S, H)
    assert inside == pytest.approx(4 * cost.ring_all_reduce_time(payload, 8, NVLINK.alpha, NVLINK.beta))
    across = cost.Links(NVLINK.alpha, NVLINK.beta, 8, INFINIBAND.alpha, INFINIBAND.beta)
    assert cost.tensor_parallel_seconds(4, S, H, 1, 8, across) == inside
    assert cost.tensor_parallel_seconds(4, S, H, 1, 16, across) > 8 * inside
    assert cost.tensor_parallel_seconds(4, S, H, 2, 8, across, microbatches=3, passes="forward") == 3 * inside


# Memory


@given(b=few, s=st.integers(1, 99), k=few, layers=few, t=degrees)
def test_the_table_of_korthikanti(b, s, k, layers, t):
    a = 2 * t
    h = a * k
    wide, square = s * b * h, 5 * a * s / h
    held = cost.tensor_parallel_activation_bytes
    arguments = b, s, h, layers, a
    assert held(*arguments) == cost.activation_bytes(*arguments) == pytest.approx(layers * wide * (34 + square))
    assert held(*arguments, t) == pytest.approx(layers * wide * (10 + 24 / t + square / t))
    assert held(*arguments, t, sequence_parallel=True) == pytest.approx(layers * wide * (34 / t + square / t))
    for sequence in (False, True):
        selective = held(*arguments, t, sequence_parallel=sequence, strategy="selective")
        assert selective == pytest.approx(layers * wide * (34 / t if sequence else 10 + 24 / t))
        full = held(*arguments, t, sequence_parallel=sequence, strategy="full")
        assert full == pytest.approx(layers * wide * 2 / (t if sequence else 1))
    assert held(*arguments, strategy="full") == cost.checkpointed_activation_bytes(b, s, h, layers)
    for dropout in (True, False):
        for itemsize in (2, 4):
            one = held(*arguments, itemsize=itemsize, dropout=dropout)
            assert one == cost.activation_bytes(*arguments, itemsize=itemsize, dropout=dropout)


def test_a_layer_of_175_billion():
    held = cost.tensor_parallel_activation_bytes
    layer = held(1, S, H, 1, A), held(1, S, H, 1, A, 8), held(1, S, H, 1, A, 8, sequence_parallel=True)
    assert [round(n / MB) for n in layer] == [2869, 579, 359]
    selective = held(1, S, H, 1, A, 8, sequence_parallel=True, strategy="selective")
    assert round(selective / MB) == 107
    # Korthikanti et al.: sequence parallelism and selective recomputation together need about five times less.
    assert round(layer[1] / selective, 1) == 5.4


@given(b=few, s=few, h=few, layers=few, t=degrees)
def test_what_waits_for_the_weights_gradient(b, s, h, layers, t):
    wide = layers * s * b * h
    held = cost.weight_gradient_activation_bytes
    assert held(b, s, h, layers) == 32 * wide == (14 + 18) * wide
    assert held(b, s, h, layers, t) == pytest.approx(wide * (8 + 24 / t))
    assert held(b, s, h, layers, t, sequence_parallel=True) == pytest.approx(wide * 32 / t)


def test_parameters_of_a_layer_on_a_rank():
    torch = pytest.importorskip("torch")
    from labkit.models.gpt import Block, GPTConfig

    block = Block(GPTConfig(width=64, heads=4))
    assert cost.layer_parameters(64) == sum(p.numel() for p in block.parameters()) == 12 * 64**2 + 13 * 64
    assert cost.replicated_layer_parameters(64) == sum(
        p.numel() for name, p in block.named_parameters() if "norm" in name or name.endswith(("out.bias", "down.bias"))
    )
    for t in (1, 2, 4, 8):
        own, same = cost.layer_parameters(64, t), cost.replicated_layer_parameters(64)
        assert t * (own - same) + same == cost.layer_parameters(64)
    assert torch is not None
    assert cost.layer_parameters(64, expansion=2) == 8 * 64**2 + 11 * 64


def test_work_of_a_layer():
    flops = cost.layer_flops(4, S, H)
    wide = 4 * S * H
    assert flops.forward == wide * (24 * H + 4 * S) and flops.input_gradient == wide * (24 * H + 8 * S)
    assert flops.weight_gradient == 24 * wide * H
    assert flops.total == pytest.approx(72 * wide * H * (1 + S / (6 * H)))  # Narayanan et al. 2021
    assert flops.weight_gradient < flops.forward < flops.input_gradient < flops.backward
    # Of all layers about 6 operations a parameter and token (Kaplan et al. 2020).
    shape = cost.SHAPES["175B"]
    assert 96 * flops.total == pytest.approx(cost.training_flops(shape.matrix_params, 4 * S) * (1 + S / (6 * H)))


# The vocabulary


def test_the_loss_of_a_cut_vocabulary():
    assert cost.vocabulary_parallel_loss_bytes(4, S, 8) == 3 * 7 / 4 * 4 * S * 4 == 172_032
    assert cost.gathered_logits_bytes(4, S, 51_200, 8) == 7 / 8 * 4 * S * 51_200 * 2
    assert cost.gathered_logits_bytes(4, S, 51_200, 8) > 4000 * cost.vocabulary_parallel_loss_bytes(4, S, 8)
    assert cost.vocabulary_parallel_embedding_bytes(4, S, H, 8) == cost.tensor_parallel_bytes(4, S, H, 1, 8) / 4


@given(b=few, s=few, t=degrees, messages=st.sampled_from([(1, 1, 1), (1, 2), (2, 1), (3,)]))
def test_the_loss_by_rank(b, s, t, messages):
    sent = cost.vocabulary_parallel_loss_bytes_by_rank(b, s, t, messages=messages)
    assert sum(sent) == pytest.approx(t * cost.vocabulary_parallel_loss_bytes(b, s, t))


# Placement


def test_all_reduces_that_fit():
    payload = cost.tensor_parallel_payload_bytes(4, S, H)
    fit = [cost.all_reduces_that_fit(1.0, payload, 8, wire) for wire in (NVLINK, INFINIBAND, ETHERNET)]
    assert fit == [1204, 138, 3]
    for wire, number in zip((NVLINK, INFINIBAND, ETHERNET), fit, strict=True):
        one = cost.ring_all_reduce_time(payload, 8, wire.alpha, wire.beta)
        assert number * one <= 1 < (number + 1) * one


@given(h=st.sampled_from([4096, 12288]), t=st.sampled_from([2, 4, 8]), wire=st.sampled_from([NVLINK, INFINIBAND]))
def test_a_layer_on_a_wire(h, t, wire):
    layer = cost.tensor_parallel_layer(4, S, h, t, 4e14, wire)
    assert layer.compute == pytest.approx(cost.layer_flops(4, S, h).total / (t * 4e14))
    links = cost.Links(wire.alpha, wire.beta)
    assert layer.communication == pytest.approx(cost.tensor_parallel_seconds(4, S, h, 1, t, links))
    assert layer.communication / 2 <= layer.exposed < layer.communication
    assert 0 < layer.share < 1 and layer.efficiency > 1 - layer.share


def test_no_batch_makes_a_slow_wire_fast():
    shares = [cost.tensor_parallel_layer(b, S, H, 8, 4e14, INFINIBAND).share for b in (1, 4, 64, 4096)]
    assert shares[-1] > 0.49 and shares == sorted(shares, reverse=True)
    assert shares[1] == pytest.approx(shares[-1], rel=0.02)  # the latencies are what a batch spreads out
    # The width does: communication over computing falls as 1 / h.
    least = cost.least_hidden_size(8, 4e14, INFINIBAND)
    at_least = cost.tensor_parallel_layer(4096, 64, round(least), 8, 4e14, INFINIBAND)
    assert at_least.share == pytest.approx(0.5, abs=0.005)
    assert cost.least_hidden_size(8, 4e14, NVLINK) == pytest.approx(least / 9)
    assert cost.least_hidden_size(8, 4e14, NVLINK, share=0.1) == pytest.approx(least)


def test_tensor_against_pipeline_bytes():
    tensor = cost.tensor_parallel_bytes(4, S, H, 6, 8)
    pipeline = cost.pipeline_bytes_by_rank(4, S, H, 16, 1)[7]
    assert tensor / pipeline == pytest.approx(cost.tensor_over_pipeline_bytes(6, 8)) == 21
    assert pipeline == 2 * 201_326_592


# Depth


def test_a_deeper_pipeline_saves_memory_and_wastes_time():
    shape = cost.SHAPES["175B"]
    rows = cost.depth_tradeoff(shape, (1, 2, 4, 8, 16, 32), 64, 4e14, tensor=8, sequence_parallel=True)
    assert [row.microbatches for row in rows] == [64] * 6 and [row.gpus for row in rows] == [8, 16, 32, 64, 128, 256]
    assert [row.bubble for row in rows] == pytest.approx([cost.bubble_fraction(row.stages, 64) for row in rows])
    for a, b in zip(rows, rows[1:], strict=False):
        assert b.state == a.state / 2 and b.activations == pytest.approx(a.activations)  # 1F1B: the same on rank 0
        assert b.seconds < a.seconds < 2 * b.seconds  # more GPUs, and each of them less used
        assert b.gpu_seconds > a.gpu_seconds
    assert [row.fits() for row in rows] == [False] * 3 + [True] * 3
    work = 64 * 96 * cost.layer_flops(1, 2048, 12288).total / (8 * 4e14)
    assert rows[0].seconds == pytest.approx(work)


def test_the_same_gpus_cut_otherwise():
    shape = cost.SHAPES["175B"]
    rows = cost.depth_tradeoff(shape, (4, 8, 16, 32), 256, 4e14, gpus=256, tensor=8, sequence_parallel=True)
    assert [(row.pipelines, row.microbatches) for row in rows] == [(8, 32), (4, 64), (2, 128), (1, 256)]
    assert {row.gpus for row in rows} == {256}
    seconds = [row.seconds for row in rows]
    assert seconds == sorted(seconds) and seconds[-1] < 1.03 * seconds[0]  # slower, but hardly
    assert [round(100 * row.bubble, 1) for row in rows] == [8.6, 9.9, 10.5, 10.8]


def test_depth_by_other_schedules():
    shape = cost.SHAPES["7B"]
    by = {
        name: cost.depth_tradeoff(shape, [4], 8, 1e14, schedule=name)[0]
        for name in ("naive", "gpipe", "one_f_one_b", "zb_h1", "zb_h2")
    }
    interleaved = cost.depth_tradeoff(shape, [4], 8, 1e14, schedule="interleaved", chunks=2)[0]
    assert by["naive"].bubble == pytest.approx(0.75)
    assert interleaved.bubble == pytest.approx(cost.bubble_fraction(4, 8, 2))
    assert by["gpipe"].activations == 2 * by["one_f_one_b"].activations < 2 * interleaved.activations
    assert by["zb_h2"].activations > by["one_f_one_b"].activations
    full = cost.depth_tradeoff(shape, [4], 8, 1e14, strategy="full")[0]
    assert full.bubble == pytest.approx(by["one_f_one_b"].bubble)
    assert full.seconds / by["one_f_one_b"].seconds == pytest.approx(4 / 3, rel=0.01)
    assert full.activations < by["one_f_one_b"].activations / 10


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.tensor_parallel_bytes(4, S, H, 0, 8), "layers .*0"),
        (lambda: cost.tensor_parallel_bytes(4, S, H, 1, 0), "size .*0"),
        (lambda: cost.tensor_parallel_bytes(0, S, H, 1, 8), "batch .*0"),
        (lambda: cost.tensor_parallel_bytes_by_rank(4, S, H, 1, True), "size .*True"),
        (lambda: cost.tensor_parallel_bytes(4, S, H, 1, 8, passes="up"), "'both', not 'up'"),
        (lambda: cost.tensor_parallel_calls(1, gather_again=True), "needs sequence_parallel=True"),
        (lambda: cost.tensor_parallel_activation_bytes(1, S, H, 1, 96, 7), "size must divide heads=96.* 6 and 8 do"),
        (lambda: cost.tensor_parallel_activation_bytes(1, S, H, 1, 96, 97), "size must divide heads=96.* 96 do"),
        (lambda: cost.tensor_parallel_activation_bytes(1, S, H, 1, 96, strategy="none"), "'full', not 'none'"),
        (lambda: cost.weight_gradient_activation_bytes(1, S, H, 1, 0), "size .*0"),
        (lambda: cost.model_parallel_state_bytes(-1, 8), "params .*-1"),
        (lambda: cost.model_parallel_state_bytes(1, 8, 0), "pipeline .*0"),
        (lambda: cost.model_parallel_state_bytes(1, 8, bytes_per_parameter=0), "bytes_per_parameter .*0"),
        (lambda: cost.layer_parameters(64, 3), "size must divide hidden=64, and 3 does not; 2 and 4 do"),
        (lambda: cost.layer_flops(1, 0, 64), "sequence .*0"),
        (lambda: cost.vocabulary_parallel_loss_bytes_by_rank(1, 1, 2, messages=(1, 1)), r"\(1, 1\)"),
        (lambda: cost.gathered_logits_bytes(1, 1, 0, 2), "vocabulary .*0"),
        (lambda: cost.all_reduces_that_fit(1, 1e6, 1, NVLINK), "size must be at least 2"),
        (lambda: cost.all_reduces_that_fit(-1, 1e6, 2, NVLINK), "seconds .*-1"),
        (lambda: cost.least_hidden_size(8, 1e14, NVLINK, share=1), "share must be a part below 1"),
        (lambda: cost.tensor_parallel_layer(1, 1, 1, 2, 0, NVLINK), "flops_per_second .*0"),
        (lambda: cost.tensor_over_pipeline_bytes(0, 8), "layers .*0"),
        (lambda: cost.depth_tradeoff(cost.SHAPES["7B"], [64], 8, 1e14), "at most the 32 layers in 1 chunks, not 64"),
        (lambda: cost.depth_tradeoff(cost.SHAPES["7B"], [3], 8, 1e14, gpus=32), "gpus .* multiple of 3 .*32 is not: "),
        (lambda: cost.depth_tradeoff(cost.SHAPES["7B"], [4], 7, 1e14, batch=2), r"sequences .* of 2 .*\[6, 8\] are"),
        (lambda: cost.depth_tradeoff(cost.SHAPES["7B"], [0], 8, 1e14), "stages .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_gigabytes():
    assert round(cost.tensor_parallel_bytes(4, S, H, 6, 8) / GB, 3) == 8.456


@given(b=few, s=st.integers(1, 30), k=few, layers=few, t=degrees, sequence=flags)
def test_a_whole_model_is_its_parts(b, s, k, layers, t, sequence):
    h = 4 * k
    sent = cost.tensor_parallel_model_bytes_by_rank(b, s, h, layers, t, sequence_parallel=sequence)
    layer = cost.tensor_parallel_bytes(b, s, h, layers, t, itemsize=4)
    ends = 2 * cost.vocabulary_parallel_embedding_bytes(b, s, h, t, 4) + cost.vocabulary_parallel_loss_bytes(b, s, t)
    shared = cost.ring_all_reduce_bytes((6 * h * layers + (2 + s) * h) * 4, t) if sequence else 0
    assert sum(sent) == pytest.approx(t * (layer + ends + shared))
    assert cost.replicated_gradient_bytes_by_rank(h, layers, 2) == [2 * 6 * h * layers] * 2
