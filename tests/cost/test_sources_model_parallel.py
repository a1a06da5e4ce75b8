"""Numbers of the sources on tensor and pipeline parallelism, each from its own inputs: right and wrong.

"Textbook" is the chapter "Distributed Training", "book" the shorter chapter of that name, "article" the Chinese article
on nonuniform tensor parallelism. More on single all-reduces is in `test_sources`, on memory in `test_memory`.
"""

from __future__ import annotations

import pytest

from labkit import cost
from labkit.cost.links.wires import INFINIBAND, NVLINK
from labkit.cost.units import GB, MB, MiB

GPT3 = cost.SHAPES["175B"]
S, H = GPT3.sequence, GPT3.hidden
PAYLOAD = cost.tensor_parallel_payload_bytes(4, S, H)  # a microbatch of 4 sequences
PEAK = 1979e12 / 2  # operations a second of an H100 in 16 bits, without the sparsity that its 1979 TFLOP/s count


# The bubble


@pytest.mark.parametrize(
    ("stages", "microbatches", "percent", "digits"),
    [(4, 1, 75, 0), (4, 4, 42.9, 1), (4, 8, 27.3, 1), (4, 32, 8.57, 2), (8, 32, 17.95, 2), (16, 16, 48.4, 1),
     (16, 32, 31.9, 1)],
)  # fmt: skip
def test_bubbles(stages, microbatches, percent, digits):
    assert round(100 * cost.bubble_fraction(stages, microbatches), digits) == percent


def test_two_bubbles_of_one_chapter():
    # Textbook, configuration C: "(p-1)/m ... roughly 9 percent"; everywhere else (p-1)/(m+p-1).
    assert round(100 * cost.bubble_overhead(4, 32), 1) == 9.4
    assert round(100 * cost.bubble_fraction(4, 32), 1) == 8.6
    # It also puts the bubble "at the beginning and end of each microbatch": then m would not make it smaller.
    assert cost.naive_bubble_fraction(4) == 0.75


def test_from_18_percent_to_5_costs_no_memory_under_1f1b():
    # Textbook: "requires more microbatches, which consume additional activation memory on each GPU".
    few, many = 32, cost.microbatches_for(8, 0.05)
    assert many == 133 and round(100 * cost.bubble_fraction(8, many), 1) == 5.0
    held = [cost.in_flight_microbatches("one_f_one_b", 8, m) for m in (few, many)]
    assert held[0] == held[1] == [8, 7, 6, 5, 4, 3, 2, 1]
    # It holds for GPipe, which the sentence before it does not speak of.
    assert [max(cost.in_flight_microbatches("gpipe", 8, m)) for m in (few, many)] == [32, 133]
    # "m far above p to keep the bubble below 10 percent": 8.4 times p.
    assert cost.microbatches_for(16, 0.10) == 135


def test_interleaving_recovers_a_part():
    # Textbook: it recovers "that lost 18 percent of fleet capacity". Two chunks leave 9.9 percent, four 5.2.
    assert [round(100 * cost.bubble_fraction(8, 32, v), 1) for v in (1, 2, 4)] == [17.9, 9.9, 5.2]
    # And with more chunks it is paid for in memory and messages.
    assert cost.in_flight_microbatches("interleaved", 8, 32, 2)[0] == 11.5
    assert cost.pipeline_messages_by_rank(8, 32, 2)[3] == 2 * cost.pipeline_messages_by_rank(8, 32)[3]


def test_further_reduce_the_bubble_and_the_memory():
    # Book: GPipe, 1F1B and interleaved schedules "further reduce the bubble and the activation memory". None does
    # both.
    steps = {name: cost.pipeline_step_seconds(name, 4, 8, 1, 1, 1) for name in ("gpipe", "one_f_one_b")}
    assert steps["gpipe"] == steps["one_f_one_b"]
    assert cost.pipeline_step_seconds("interleaved", 4, 8, 1, 1, 1, 2) < steps["one_f_one_b"]
    held = {name: cost.in_flight_microbatches(name, 4, 8, v)[0] for name, v in (("one_f_one_b", 1), ("interleaved", 2))}
    assert held == {"one_f_one_b": 4, "interleaved": 5.5}


def test_1f1b_keeps_one_more_than_its_warmup():
    # Book: "keeps at most `warmup` activations", warmup = n_stages - rank - 1. The last rank would keep none.
    marks = [mark.activations for mark in cost.in_flight_by_rank("one_f_one_b", 4, 8)]
    warmup = [4 - rank - 1 for rank in range(4)]
    assert warmup == [3, 2, 1, 0] and marks == [w + 1 for w in warmup]


def test_from_o_of_mp_to_o_of_p_is_of_two_different_things():
    # Textbook: 1F1B reduces "the peak activation memory footprint from O(m p) to O(p)". m p is what all stages of
    # GPipe hold together, p what the first stage of 1F1B does. All stages of 1F1B hold p (p+1) / 2.
    p, m = 8, 32
    gpipe, flush = (cost.in_flight_microbatches(name, p, m) for name in ("gpipe", "one_f_one_b"))
    assert (sum(gpipe), gpipe[0]) == (m * p, m) and (sum(flush), flush[0]) == (p * (p + 1) / 2, p)


def test_halving_the_depth_does_not_double_the_activations():
    # Textbook: from 16 stages to 8 "per-stage parameter + activation memory roughly doubles". The state does.
    deep, shallow = (
        cost.pipeline_activation_bytes_by_rank(GPT3, "one_f_one_b", p, 32, 4, tensor=8, sequence_parallel=True)
        for p in (16, 8)
    )
    states = [cost.model_parallel_state_bytes(GPT3.params, 8, p) for p in (16, 8)]
    assert states[1] == 2 * states[0]
    # The first rank holds p microbatches of L/p layers: as much at any depth. (The last one's do double.)
    assert shallow[0] == pytest.approx(deep[0]) == pytest.approx(96 * 4 * 358_612_992)
    assert shallow[-1] == pytest.approx(2 * deep[-1])
    # Under GPipe they double.
    gpipe = [cost.pipeline_activation_bytes_by_rank(GPT3, "gpipe", p, 32, 4, tensor=8)[0] for p in (16, 8)]
    assert gpipe[1] == pytest.approx(2 * gpipe[0])


def test_fewer_stages_for_the_same_microbatches_or_the_same_cluster():
    # "Fewer stages mean a smaller fill-and-drain penalty for the same microbatch count": 31.9 to 17.9 percent.
    assert [round(100 * cost.bubble_fraction(p, 32), 1) for p in (16, 8)] == [31.9, 17.9]
    # On the same GPUs with the same batch there are twice as many pipelines, with half as many microbatches each.
    rows = cost.depth_tradeoff(GPT3, (16, 8), 32, 4e14, gpus=128, tensor=8, sequence_parallel=True)
    assert [(row.pipelines, row.microbatches) for row in rows] == [(1, 32), (2, 16)]
    assert [round(100 * row.bubble, 1) for row in rows] == [31.9, 30.4]


def test_the_blackwell_case_has_more_stages():
    # Textbook: p = 32 "reducing the total number of pipeline stages and associated bubble" against a reference of 16.
    assert [round(100 * cost.bubble_fraction(p, 32), 1) for p in (16, 32)] == [31.9, 49.2]
    assert cost.model_parallel_state_bytes(1e12, 16, 32) == 31.25 * GB  # it would fit with 16 stages too
    assert cost.model_parallel_state_bytes(1e12, 16, 16) == 62.5 * GB < cost.GPU_MEMORY


def test_near_zero_for_4_stages_and_8_microbatches():
    # Textbook: 27 percent, "zero-bubble scheduling can reduce this to near zero". At the price of nearly twice the
    # activations; within the memory of 1F1B it is 11 percent. In floating-point operations of 175B:
    assert [round(100 * cost.zero_bubble_fraction(s, 4, 8), 1) for s in ("zb_h1", "zb_h2")] == [11.1, 0.0]
    assert [max(cost.in_flight_microbatches(s, 4, 8)) for s in ("one_f_one_b", "zb_h1", "zb_h2")] == [4, 4, 7]
    flops = cost.layer_flops(1, S, H)
    f, b, w = flops.forward, flops.input_gradient, flops.weight_gradient
    assert [round(100 * cost.zero_bubble_fraction(s, 4, 8, f, b, w), 1) for s in ("zb_h1", "zb_h2")] == [11.6, 1.0]
    # A step that waits for all ranks keeps the last rank's late beginning: 27 units with either, 33 with 1F1B.
    step = [cost.pipeline_step_seconds(s, 4, 8, 1, 1, 1) for s in ("one_f_one_b", "zb_h1", "zb_h2")]
    assert step == [33, 27, 27] and round(100 * (1 - 24 / 27), 1) == 11.1


def test_the_layers_of_the_figures():
    assert 16 // 4 == 4 and 24 // 4 == 6 and 32 // 4 == 8  # layers a stage: textbook twice, and book
    assert 96 // 16 == 6 and 12 * 8 == 96


# Pipeline traffic


def test_32_megabytes_are_mebibytes():
    boundary = cost.pipeline_boundary_bytes(1, 2048, 8192)
    assert boundary == 32 * MiB and round(boundary / MB, 2) == 33.55  # textbook: "approximately 32 MB"


def test_200_megabytes_per_boundary_are_of_a_microbatch():
    # Textbook: "approximately 200 MB of data per stage boundary per step". A step of 32 microbatches: 12.9 GB.
    assert PAYLOAD == cost.pipeline_boundary_bytes(4, S, H) == 201_326_592
    sent = cost.pipeline_bytes_by_rank(4, S, H, 16, 32)
    assert round(sent[7] / GB, 1) == 12.9 and sent[0] == sent[15] == sent[7] / 2


def test_tensor_parallelism_moves_more_than_the_gradients():
    # Textbook: data parallelism "generates the largest burst of traffic ... the entire 350 GB gradient". With t = 8
    # and p = 16 a GPU's part of it is 2.73 GB, as the page before says; it sends 5.4 GB of it in a step, and 271 GB
    # for tensor parallelism with 32 microbatches, 12.9 for the pipeline.
    part = cost.state_parts(GPT3.params).gradients / 128
    assert round(part / GB, 2) == 2.73 and cost.state_parts(GPT3.params).gradients == 350 * GB
    assert round(cost.ring_all_reduce_bytes(part, 128) / GB, 1) == 5.4
    tensor = cost.tensor_parallel_bytes(4, S, H, 6, 8, microbatches=32)
    assert round(tensor / GB) == 271
    assert tensor / cost.pipeline_bytes_by_rank(4, S, H, 16, 32)[7] == pytest.approx(21)
    assert cost.tensor_over_pipeline_bytes(6, 8) == 21


def test_doubling_replicas_moves_no_more_bytes_from_a_gpu():
    # Textbook's quiz: from DP 128 to 256 "traffic volume grows accordingly", that is, twice. Of all GPUs together;
    # each one sends 0.4 percent more.
    part = cost.state_parts(GPT3.params).gradients / 128
    each = [cost.ring_all_reduce_bytes(part, d) for d in (128, 256)]
    assert each[1] / each[0] == pytest.approx(1.004, abs=1e-4)
    assert 256 * each[1] / (128 * each[0]) == pytest.approx(2, rel=0.005)


def test_gpus_of_the_configurations():
    assert 8 * 4 * 32 == 8 * 128 == 1024 and 8 * 16 * 128 == 16_384 and 16_384 * 2 == 32_768  # textbook
    assert 8 * 8 * 16 == 128 * 8 == 1024  # book
    # Configuration C: a quarter of 43.75 GB on each GPU, by ring over 32 at 50 GB/s: 0.42 s, against 1.74 s for B.
    gradients = cost.model_parallel_state_bytes(GPT3.params, 8, 4, bytes_per_parameter=2)
    assert gradients == 43.75 * GB / 4
    assert round(cost.ring_all_reduce_time(gradients, 32, 0, INFINIBAND.beta), 2) == 0.42


# Tensor traffic


def test_the_traffic_of_175_billion():
    assert round(PAYLOAD / MB, 2) == 201.33
    stage = cost.tensor_parallel_bytes(4, S, H, 6, 8, passes="forward")
    assert round(stage / GB, 3) == 4.228  # textbook: "about 4.2 GB per pipeline stage"
    assert round(cost.tensor_parallel_bytes(4, S, H, 6, 8) / GB, 3) == 8.456
    assert round(16 * stage / GB, 2) == 67.65  # "the full 96-layer replica": of one rank of each stage


def test_134_megabytes_take_the_factor_as_two():
    payload = cost.tensor_parallel_payload_bytes(4, 2048, 4096)
    assert round(payload / MB, 1) == 67.1 and round(2 * payload / MB) == 134
    assert round(cost.ring_all_reduce_bytes(payload, 8) / MB, 1) == 117.4
    # "25.7 GB per forward pass, roughly 51 GB" by factor two; by 7/4 it is 22.5 and 45.1. 134 x 192 is 25.7; with all
    # digits 25.8 and 51.5.
    assert 134 * 192 / 1000 == pytest.approx(25.7, abs=0.03) and round(2 * payload * 192 / GB, 1) == 25.8
    forward = cost.tensor_parallel_bytes(4, 2048, 4096, 96, 8, passes="forward")
    both = cost.tensor_parallel_bytes(4, 2048, 4096, 96, 8)
    assert [round(n / GB, 1) for n in (forward, both)] == [22.5, 45.1]
    # And 96 layers of width 4096 are no model of the chapter: its 96 layers are 12,288 wide, its 4096 wide model has
    # 32.
    assert cost.SHAPES["7B"].hidden == 4096 and cost.SHAPES["7B"].layers == 32 and H == 3 * 4096


def test_one_of_four_all_reduces():
    # Textbook: 0.1-0.5 ms for an all-reduce over NVLink and 2-10 ms over InfiniBand, "with 96 blocks 200-960 ms".
    assert 96 * 2 == 192 and 96 * 10 == 960  # one all-reduce a block, though its own sentence before has two
    assert cost.tensor_parallel_calls(96).all_reduce == 384 == 4 * 96
    # For payloads of 67 and 201 MB: 2.3 and 7 ms at 50 GB/s; at 900 GB/s 0.13 and 0.39, one way (450 GB/s) 0.26 and
    # 0.78.
    payloads = [cost.tensor_parallel_payload_bytes(4, 2048, h) for h in (4096, H)]
    sent = [cost.ring_all_reduce_bytes(n, 8) for n in payloads]
    times = [[round(1000 * n / (rate * GB), 2) for n in sent] for rate in (50, 900, 450)]
    assert times == [[2.35, 7.05], [0.13, 0.39], [0.26, 0.78]]
    # So a microbatch of its 175B model waits 2.7 s over InfiniBand, not one.
    assert round(384 * times[0][1] / 1000, 1) == 2.7


def test_single_digits_do_not_follow():
    # Textbook: over InfiniBand tensor parallelism collapses MFU "to single digits". From its own payload, with every
    # GPU at its peak while it computes: 29 percent, or 22 if it reaches one half. For width 4096: 12 and 11.
    def utilization(hidden: int, reached: float) -> int:
        layer = cost.tensor_parallel_layer(4, S, hidden, 8, reached * PEAK, INFINIBAND)
        return round(100 * reached * layer.compute / (layer.compute + layer.communication))

    assert [utilization(h, r) for h in (H, 4096) for r in (1, 0.5)] == [29, 22, 12, 11]
    # Over 10-gigabit Ethernet it does: bandwidth over width decides, and no batch changes it.
    inside = cost.tensor_parallel_layer(4, S, H, 8, PEAK / 2, NVLINK)
    assert round(100 * inside.share) == 13 and round(100 * inside.efficiency) == 93


def test_relatively_small_and_latency_bound():
    # Textbook: messages of tensor parallelism "are relatively small ... making them strictly latency-bound", and
    # "occur thousands of times per step". A chunk of a ring of 8 is 25 MB; latency is a hundredth of its time.
    chunk = PAYLOAD / 8
    assert round(chunk / MB) == 25 and NVLINK.share(chunk) > 0.94 and chunk > 16 * NVLINK.half_size
    # A GPU of a stage of 6 layers calls 24 all-reduces a microbatch: thousands from 42 microbatches on, 768 in 32.
    assert cost.tensor_parallel_calls(6, 32).all_reduce == 768
    assert cost.tensor_parallel_calls(6, 42).all_reduce > 1000


def test_nine_times_per_direction():
    assert NVLINK.bandwidth / INFINIBAND.bandwidth == 9
    # Its footnote has "24x-36x InfiniBand HDR": both directions against one. Like for like 12 and 18.
    assert [both / 2 / 25 for both in (600, 900)] == [12, 18]


def test_what_table_1_leaves_out():
    # Textbook, table 1: tensor parallelism sends "proportional to B x N_L". The sequence and the width count as much.
    one = cost.tensor_parallel_bytes(1, 1024, 4096, 10, 8)
    for other in ((2, 1024, 4096, 10), (1, 2048, 4096, 10), (1, 1024, 8192, 10), (1, 1024, 4096, 20)):
        assert cost.tensor_parallel_bytes(*other, 8) == 2 * one
    # Beside it, pipelines are "proportional to B x S x d": all three sizes. "Ethernet is sufficient", for 201 MB: 161
    # ms at 10 gigabits, next to 46 ms of forward computing for its 6 layers at half the peak.
    flops = cost.layer_flops(4, S, H)
    assert round(1000 * PAYLOAD / (1.25 * GB)) == 161 and round(6000 * flops.forward / (8 * PEAK / 2)) == 46


def test_one_all_reduce_is_of_the_forward_pass():
    # Book and article: column then row needs one all-reduce. The backward pass has the other one.
    assert cost.tensor_parallel_calls(1).all_reduce == 2 * 2
    assert cost.tensor_parallel_calls(1, passes="forward").all_reduce == 2


def test_the_cut_of_the_books_feed_forward():
    columns = cost.split_sizes(4 * 12, 2)  # d to 4d on two GPUs: 0..2d and 2d..4d
    assert columns == [2 * 12, 2 * 12]


def test_column_parallelism_sends_less_in_the_forward_pass_only():
    # Article 3.5.2: a column-parallel map gathers, a row-parallel one all-reduces, so "column parallelism communicates
    # less". Forward, half as much. In the backward pass the input's gradient of the column-parallel map is
    # all-reduced; that of a row-parallel one, whose input was cut, is gathered. For a square map both send the same in
    # sum.
    n, t = 4 * 2048 * 4096 * 2, 8
    gather, reduce = cost.ring_all_gather_bytes(n, t), cost.ring_all_reduce_bytes(n, t)
    assert reduce == 2 * gather
    column, row = (gather, reduce), (reduce, gather)  # forward, backward
    assert sum(column) == sum(row) == 3 * gather


# Memory


def test_static_memory_of_tensor_8_and_pipeline_16():
    held = {n: cost.model_parallel_state_bytes(GPT3.params, 8, 16, bytes_per_parameter=n) / GB for n in (10, 14, 16)}
    assert [round(gigabytes, 2) for gigabytes in held.values()] == [13.67, 19.14, 21.88]
    # Neither the "simplified" 10 bytes nor the "fuller" 14 has gradients, which its own 16 bytes have.
    parts = cost.state_parts(1)
    assert parts.parameters + 8 == 10 and parts.parameters + parts.optimizer == 14 and parts.total == 16
    assert cost.model_parallel_state_bytes(GPT3.params, 8, 16) == held[16] * GB


def test_tensor_parallelism_alone():
    assert cost.model_parallel_state_bytes(GPT3.params, 8, bytes_per_parameter=2) == 43.75 * GB  # "approximately 44"
    assert cost.model_parallel_state_bytes(GPT3.params, 8, bytes_per_parameter=10) == 218.75 * GB
    assert cost.model_parallel_state_bytes(GPT3.params, 8) == 350 * GB  # with all 16 bytes
    assert 350 / 80 == 4.375 and cost.devices_to_hold(350 * GB) == 5
    assert 1.75e11 * 8 == 1.4e12 and 1.75e11 * 12 == 2.1e12  # Adam's state, globally


def test_activations_need_recomputation_even_so():
    # "leaving the remaining HBM for activations": of 80 GB 58 are left at t = 8, p = 16. 1F1B's first rank holds those
    # of all 96 layers for one microbatch: 222 GB of 4 sequences with tensor parallelism, 41 with all that Korthikanti
    # et al. do.
    left = cost.GPU_MEMORY - cost.model_parallel_state_bytes(GPT3.params, 8, 16)
    assert round(left / GB) == 58
    first = {
        (sequence, strategy): cost.pipeline_activation_bytes_by_rank(
            GPT3, "one_f_one_b", 16, 32, 4, tensor=8, sequence_parallel=sequence, strategy=strategy
        )[0]
        for sequence in (False, True)
        for strategy in cost.ACTIVATION_STRATEGIES
    }
    assert [round(n / GB) for n in first.values()] == [222, 126, 19, 138, 41, 2]
    assert {key for key, n in first.items() if n <= left} == {(False, "full"), (True, "selective"), (True, "full")}


def test_the_wall_is_not_only_tensor_parallelisms_to_climb():
    # Textbook: 43.8 + 50 GB are more than 80, "the only recourse is tensor parallelism". Recomputation is another.
    state = cost.zero_state_bytes(GPT3.params, 64, 3)
    full = cost.peak_activation_bytes(1, S, H, GPT3.layers, GPT3.heads, "full")
    assert round(state / GB, 2) == 43.75 and round((state + full) / GB, 1) == 51.5 < 80


def test_sizes_of_megatron_and_gpipe():
    assert round(8.3e9 / 340e6) == 24  # times BERT-Large
    assert round(8.3 / 1.5, 1) == 5.5  # "5.6 times GPT-2": of 1.5 billion parameters it is 5.5
    assert round(8.3 / 5.6, 2) == 1.48
    assert round(100 * cost.bubble_fraction(4, 4)) == 43


# Larger domains (article, 3.5.4)


def test_twenty_points_are_28_percent():
    assert 87 - 68 == 19 and round(87 / 68 - 1, 2) == 0.28


def test_why_more_replicas_make_a_larger_bubble():
    # 16 million tokens in sequences of 8K are 2048 sequences a step. On 32K GPUs with 16 stages, groups of 8 leave 256
    # replicas and 8 microbatches of one sequence for each, groups of 32 leave 64 replicas and 32.
    sequences = 16 * 2**20 // 8192
    replicas = {t: 32_768 // (16 * t) for t in (8, 32)}
    assert sequences == 2048 and replicas == {8: 256, 32: 64}
    bubbles = {t: round(100 * cost.bubble_fraction(16, sequences // d), 1) for t, d in replicas.items()}
    assert bubbles == {8: 65.2, 32: 31.9}
