"""Keys of chapter 9, tensor parallelism. Numbers come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost.links.wires import INFINIBAND, NVLINK
from labkit.cost.units import GB, MB, MS
from labkit.grading.answers import Choice, Number, Several, Symbolic

# Bytes of a layer ---------------------------------------------------------------------------------------------------


def activation_mb(h: int, b: int, s: int, L: int, t: int) -> Number:
    """MB of the activation that one all-reduce sums."""
    right = cost.tensor_parallel_payload_bytes(b, s, h) / MB
    slips = [
        (right / 2, "In 16 bits a number has 2 bytes."),
        (right * 2, "In 16 bits a number has 2 bytes, not 4."),
        (right / t, "The sum has all columns: only its partial sums come from different ranks."),
        (h * h * 2 / MB, "That is a matrix of weights. Activations travel: b sequences of s positions."),
        (right / b, "All b sequences are summed."),
    ]
    return Number.of(right, "MB", slips)


def sent_once_mb(h: int, b: int, s: int, L: int, t: int) -> Number:
    """MB that a rank sends in one all-reduce."""
    whole = cost.tensor_parallel_payload_bytes(b, s, h) / MB
    slips = [
        (2 * whole, "That is the limit of very many ranks. The ring's factor is 2 (t-1)/t."),
        (whole * (t - 1) / t, "That is one half of the ring: an all-reduce has two."),
        (whole, "That is the activation itself. Which part of it does a rank send, and how often?"),
        (2 * whole * (t - 1), "That is what all ranks send together."),
        (2 * whole / t, "A ring sends (t-1)/t of a tensor in each half, not 1/t."),
    ]
    return Number.of(cost.tensor_parallel_bytes(b, s, h, 1, t) / 4 / MB, "MB", slips)


def sent_forward_gb(h: int, b: int, s: int, L: int, t: int) -> Number:
    """GB that a rank sends in the forward pass of all layers."""
    right = cost.tensor_parallel_bytes(b, s, h, L, t, passes="forward") / GB
    slips = [
        (right / 2, "A layer has two pairs of matrices, attention and feed-forward, with an all-reduce each."),
        (right * 2, "That is forward and backward."),
        (right / L, "That is one layer."),
        (right * t / (t - 1), "That takes the factor 2, the limit of very many ranks."),
        (right * t, "That is what all ranks send together."),
    ]
    return Number.of(right, "GB", slips)


def sent_in_a_step() -> Symbolic:
    """Bytes that a rank sends in a step of m microbatches, each with an activation of A bytes."""
    slips = [
        ("4*m*L*(t-1)/t*A", "That is one pass. The backward pass has two all-reduces a layer as well."),
        ("8*m*L*A", "That is the limit of very many ranks."),
        ("8*L*(t-1)/t*A", "Every microbatch has its own activations, and they are summed every time."),
        ("2*m*L*(t-1)/t*A", "That is one all-reduce a layer. How many has it, in both passes together?"),
        ("4*m*L*A", "An all-reduce sends 2 (t-1)/t of its tensor."),
        ("8*m*L*(t-1)*A", "That is what all ranks send together."),
    ]
    return Symbolic("8*m*L*(t-1)/t*A", "m L t A", slips)


# Find the error: 134 MB ---------------------------------------------------------------------------------------------

_BOOK = {"batch": 4, "sequence": 2048, "hidden": 4096}


def really_sent(t: int, percent: int) -> Number:
    """MB of one all-reduce of the textbook's example."""
    whole = cost.tensor_parallel_payload_bytes(**_BOOK) / MB
    slips = [
        (2 * whole, "That is what the textbook says: the limit of very many ranks."),
        (whole, "That is the activation. An all-reduce sends 2 (t-1)/t of it."),
        (whole * (t - 1) / t, "That is one half of the ring: an all-reduce has two."),
    ]
    return Number.of(cost.ring_all_reduce_bytes(whole, t), "MB", slips)


def too_many(t: int, percent: int) -> Number:
    """GB of the textbook's step that nobody sends."""
    said = 4 * 96 * 2 * cost.tensor_parallel_payload_bytes(**_BOOK) / GB
    sent = 4 * 96 * cost.ring_all_reduce_bytes(cost.tensor_parallel_payload_bytes(**_BOOK), t) / GB
    slips = [
        (sent, "That is what is sent. How much more does the textbook say?"),
        ((said - sent) / 2, "That is one pass. Their step is forward and backward."),
        ((said - sent) / 4, "There are two all-reduces a layer in each pass."),
        ((said - sent) / 384, "That is one all-reduce. A step has four in each of the 96 layers."),
    ]
    return Number.of(said - sent, "GB", slips, 0.02)


def ranks_for_percent(t: int, percent: int) -> Number:
    """The fewest ranks with which 2 is at most `percent` percent more than 2 (n-1)/n: n/(n-1) <= 1 + p."""
    right = math.ceil((100 + percent) / percent - 1e-9)
    slips = [
        (right - 1, "With so many it is still a little more. What is really sent is smaller by n/(n-1)."),
        (right + 1, "Nearly: one rank less is enough."),
        (math.ceil(50 / percent), "Both have the factor 2. What is left is n/(n-1)."),
    ]
    return Number.count(right, slips)


# Find the error: columns send less ----------------------------------------------------------------------------------


def narrowing_by_columns(e: int) -> Number:
    """Units of a matrix from e d to d columns, cut by columns: gather d forward, all-reduce e d backward."""
    slips = [
        (1.0, "That is the forward pass. What becomes of the input, which all ranks have read?"),
        (e + 2.0, "That is the matrix that widens, or this one by rows."),
        (e + 1.0, "The sum in the backward pass is an all-reduce: two halves."),
        (2.0 * e, "And the columns of the output are gathered."),
        (3.0, "The input has e times as many columns as the output, and so has its gradient."),
        (2.0 + 1.0 / e, "The unit is a gather of n x d numbers: the input is e times as wide."),
    ]
    return Number.of(2 * e + 1, "", slips, 1e-6)


def narrowing_by_rows(e: int) -> Number:
    """Units of the same matrix cut by rows: all-reduce d forward, gather e d backward."""
    slips = [
        (2.0, "That is the forward pass. Each rank has the gradient of its part of the input only."),
        (2.0 * e + 1, "That is the same matrix by columns."),
        (2.0 * e + 2, "In the backward pass nothing is summed: the parts of a gradient are gathered."),
        (e + 1.0, "The partial sums of the output are summed by an all-reduce: two halves."),
        (3.0, "The input has e times as many columns as the output, and so has its gradient."),
    ]
    return Number.of(e + 2, "", slips, 1e-6)


def pair_columns_rows(e: int) -> Number:
    """Units of the pair: one all-reduce of n x d each way."""
    slips = [
        (2.0, "That is the forward pass. The backward pass sums the gradient of the pair's input."),
        (1.0, "An all-reduce has two halves, and there is one in each direction."),
        (2.0 * e + 2, "Between the two nothing travels: the hidden columns stay where they are made."),
        (4.0 * e, "What is summed is narrow: n x d, at both ends."),
    ]
    return Number.of(4, "", slips, 1e-6)


def pair_columns_columns(e: int) -> Number:
    """Units of columns, then columns: gathers e + 1 forward, all-reduces 2 e + 2 backward."""
    slips = [
        (e + 1.0, "That is the forward pass: two gathers."),
        (2.0 * e + 2, "That is the backward pass: two all-reduces."),
        (3.0 * e, "And the output, and the gradient of the pair's input."),
        (6.0, "The hidden activation is e times as wide."),
    ]
    return Number.of(3 * e + 3, "", slips, 1e-6)


# By hand on three ranks ---------------------------------------------------------------------------------------------


def _pair(x: int, a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, c: int) -> tuple[list[float], list[float], int]:
    """Partial sums of the output, partial sums of the gradient of x by the output, and the output."""
    weights = [(a0, b0), (a1, b1), (a2, b2)]
    out = [max(0.0, x * a) * b for a, b in weights]
    back = [float(a * b) if x * a > 0 else 0.0 for a, b in weights]
    return out, back, int(sum(out)) + c


def y_out(x: int, a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, c: int) -> Number:
    """The output of the pair."""
    out, _, y = _pair(x, a0, a1, a2, b0, b1, b2, c)
    slips = [
        (y + 2 * c, "The bias came from every rank. It is added once, after the sum."),
        (y - c, "The bias is missing."),
        (sum(x * a * b for a, b in ((a0, b0), (a1, b1), (a2, b2))) + c, "The ReLU of a negative number is 0."),
        (out[0] + c, "That is rank 0 alone. An all-reduce sums all three."),
    ]
    return Number.of(y, "", slips, 1e-6)


def dx_whole(x: int, a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, c: int) -> Number:
    """The gradient of the loss y^2 / 2 by x."""
    _, back, y = _pair(x, a0, a1, a2, b0, b1, b2, c)
    slips = [
        (sum(back), "That is the gradient of y. The loss is half the square of y: times y."),
        (y * back[0], "That is what rank 0 knows. All three have read x."),
        (y * (a0 * b0 + a1 * b1 + a2 * b2), "Through a ReLU that is 0 no gradient comes back."),
        (3 * y * sum(back), "Rank 2 adds nothing, and nothing is summed twice: the gradient of y is alike on all."),
        ((y - c) * sum(back), "The bias is a part of y."),
        (y * sum(back) / 3, "The ranks' gradients are summed. There is no mean."),
    ]
    return Number.of(y * sum(back), "", slips, 1e-6)


def dx_of_rank_1(x: int, a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, c: int) -> Number:
    """What rank 1 takes for the gradient of x if the copy's all-reduce is missing."""
    _, back, y = _pair(x, a0, a1, a2, b0, b1, b2, c)
    slips = [
        (y * sum(back), "That is the right gradient. Without the sum rank 1 knows its own partial."),
        (y * back[0], "That is rank 0."),
        (x * a1 * b1 * back[1] + c * back[1], "The forward pass is complete: all ranks have the whole y."),
        (x * a1 * b1 * back[1], "The forward pass is complete: all ranks have the whole y."),
        (back[1], "That is the gradient of y. The loss is half the square of y: times y."),
    ]
    return Number.of(y * back[1], "", slips, 1e-6)


def dx_too_large(x: int, a0: int, a1: int, a2: int, b0: int, b1: int, b2: int, c: int) -> Number:
    """The gradient of x if both ends of the pair are summed in the backward pass."""
    _, back, y = _pair(x, a0, a1, a2, b0, b1, b2, c)
    slips = [
        (y * sum(back), "That is the right one. At the end of the pair three equal gradients are summed here."),
        (9 * y * sum(back), "The partial sums of x are summed once, and they are three different ones."),
        (3 * y * back[1], "At the beginning of the pair the partial sums are summed too."),
        (2 * y * sum(back), "There are three ranks."),
    ]
    return Number.of(3 * y * sum(back), "", slips, 1e-6)


# Heads that divide --------------------------------------------------------------------------------------------------

_HEAD, _MULTIPLE = 128, 128


def largest_degree(heads: int, kv_heads: int, ffn: int, vocab: int) -> Number:
    """The most ranks that divide heads, heads of keys and values, and the feed-forward width."""
    right = math.gcd(heads, kv_heads, ffn)
    slips = [
        (kv_heads, "Each rank would have one head of keys. Does the feed-forward width divide by that?"),
        (math.gcd(heads, ffn), "The heads of keys and values must divide too."),
        (heads, "The heads of keys and values, and the feed-forward width, must divide too."),
        (8, "Many nodes have eight GPUs, but what divides here?"),
    ]
    return Number.count(right, slips)


def columns_of_a_rank(heads: int, kv_heads: int, ffn: int, vocab: int) -> Number:
    """Columns of queries, keys and values on a rank, with the largest degree."""
    t = math.gcd(heads, kv_heads, ffn)
    slips = [
        (3 * heads // t * _HEAD, "That is for as many heads of keys and values as of queries."),
        (heads // t * _HEAD, "Those are the queries. Their keys and values come to them."),
        ((heads // t + kv_heads // t) * _HEAD, "Keys and values: two heads of them for each one of `kv_heads`."),
        ((heads // t + 2 * kv_heads) * _HEAD, "Keys and values are cut as well."),
        ((heads + 2 * kv_heads) * _HEAD, "Those are all columns. A rank has its part."),
        ((heads + 2 * kv_heads) // t, "That is heads. Each has 128 columns."),
    ]
    return Number.count((heads + 2 * kv_heads) // t * _HEAD, slips)


def largest_with_copies(heads: int, kv_heads: int, ffn: int, vocab: int) -> Number:
    """The same, if ranks may hold copies of a head of keys and values."""
    common = math.gcd(heads, ffn)
    degrees = [t for t in range(1, common + 1) if common % t == 0]
    right = max(t for t in degrees if kv_heads % t == 0 or t % kv_heads == 0)
    slips = [
        (common, "Some ranks would need two heads of keys and others one: that does not come out even."),
        (heads, "The feed-forward width must divide too."),
        (math.gcd(heads, kv_heads, ffn), "That is without copies."),
        (kv_heads, "Does the feed-forward width divide by that? And could there be copies?"),
    ]
    return Number.count(right, slips)


def rows_of_vocabulary(heads: int, kv_heads: int, ffn: int, vocab: int) -> Number:
    """Rows of the embedding on a rank, if the vocabulary is padded to a multiple of 128 for each rank."""
    t = math.gcd(heads, kv_heads, ffn)
    padded = math.ceil(vocab / (_MULTIPLE * t)) * _MULTIPLE
    slips = [
        (math.ceil(vocab / t), "That is not padded: every rank has a multiple of 128 rows."),
        (vocab / t, "Rows are whole, and every rank has a multiple of 128 of them."),
        (vocab // (_MULTIPLE * t) * _MULTIPLE, "Some symbols have no rank then. Pad, do not cut off."),
        (math.ceil(vocab / _MULTIPLE) * _MULTIPLE, "That is the padded vocabulary of one rank. Here it is cut."),
        (padded * t, "Those are the rows of all ranks."),
        (math.ceil(vocab / t / 64) * 64, "A multiple of 128, not of 64."),
    ]
    return Number.count(padded, slips)


# Find the error: one of four ----------------------------------------------------------------------------------------


def _seconds(b: int, t: int, bandwidth: float = INFINIBAND.bandwidth) -> float:
    """One all-reduce of the 175B model, without latency."""
    return cost.ring_all_reduce_bytes(cost.tensor_parallel_payload_bytes(b, 2048, 12288), t) / bandwidth


def one_all_reduce_ms(b: int, t: int) -> Number:
    """ms of one all-reduce over InfiniBand."""
    right = _seconds(b, t) / MS
    slips = [
        (right * t / (t - 1), "That takes the factor 2, the limit of very many ranks."),
        (right / 2, "That is one half of the ring: an all-reduce has two."),
        (right / 2 * t / (t - 1), "That is the activation over the link. An all-reduce sends 2 (t-1)/t of it."),
        (right * 8, "The link has 50 GB/s, bytes and not bits."),
        (right * (t - 1), "Ranks send at the same time: what counts is what one of them sends."),
    ]
    return Number.of(right, "ms", slips)


def as_the_book_adds(b: int, t: int) -> Number:
    """Seconds of one all-reduce a layer, for 96 layers."""
    right = 96 * _seconds(b, t)
    slips = [
        (4 * right, "That is what it should be. The textbook counts one all-reduce a layer."),
        (2 * right, "The textbook multiplies the time of one all-reduce by its 96 layers, and by nothing else."),
        (right / 96, "That is one all-reduce."),
    ]
    return Number.of(right, "s", slips)


def every_all_reduce(b: int, t: int) -> Number:
    """Seconds of all all-reduces of a step."""
    right = 4 * 96 * _seconds(b, t)
    slips = [
        (right / 4, "That is one all-reduce a layer. Attention and feed-forward have one each, in each pass."),
        (right / 2, "That is one pass, or one of the two pairs."),
        (right * t / (t - 1), "That takes the factor 2, the limit of very many ranks."),
    ]
    return Number.of(right, "s", slips)


def inside_a_node(b: int, t: int) -> Number:
    """Seconds of all all-reduces of a step over NVLink."""
    right = 4 * 96 * _seconds(b, t, NVLINK.bandwidth)
    slips = [
        (right / 2, "900 GB/s are both directions together. In a ring a rank sends in one of them with 450."),
        (right / 4, "A step has four all-reduces a layer."),
        (right * 9, "That is over InfiniBand."),
        (right / 8, "900 GB/s are both directions together, and a step has four all-reduces a layer."),
    ]
    return Number.of(right, "s", slips)


# The share of a step ------------------------------------------------------------------------------------------------


def _ratio(d: int, t: int, teraflops: int, bandwidth: float) -> float:
    """Time of the sums over time of computing, without latency and without the products that have no weights."""
    least = cost.least_hidden_size(t, teraflops * 1e12, NVLINK) * NVLINK.bandwidth / bandwidth
    return least / d


def _share(d: int, t: int, teraflops: int, bandwidth: float, other: float) -> Number:
    ratio, wrong = (_ratio(d, t, teraflops, link) for link in (bandwidth, other))
    right, many = 100 * ratio / (1 + ratio), ratio * t / (t - 1)
    slips = [
        (100 * ratio, "That is the sums over the computing. Asked is their part of the whole step."),
        (100 * wrong / (1 + wrong), "That is the other link."),
        (100 / (1 + ratio), "That is the part in which a rank computes."),
        (100 * (ratio / 4) / (1 + ratio / 4), "A layer has four all-reduces, two in each pass."),
        (
            100 * (ratio / 2) / (1 + ratio / 2),
            "Each all-reduce sends 2 (t-1)/t of its tensor, and a number has 2 bytes.",
        ),
        (100 * (ratio / t) / (1 + ratio / t), "A rank has a t-th of the operations, but its activations are whole."),
        (100 * many / (1 + many), "That takes the factor 2, the limit of very many ranks."),
    ]
    return Number.of(right, "%", slips)


def share_on_nvlink(d: int, t: int, teraflops: int) -> Number:
    """Percent of the step in all-reduces, inside a node."""
    return _share(d, t, teraflops, NVLINK.bandwidth, INFINIBAND.bandwidth)


def share_on_infiniband(d: int, t: int, teraflops: int) -> Number:
    """Percent of the step in all-reduces, across nodes."""
    return _share(d, t, teraflops, INFINIBAND.bandwidth, NVLINK.bandwidth)


def width_for_half(d: int, t: int, teraflops: int) -> Number:
    """The width with which sums and computing take the same time over InfiniBand."""
    right = cost.least_hidden_size(t, teraflops * 1e12, INFINIBAND)
    slips = [
        (right / 9, "That is over NVLink."),
        (right / 2, "Set the time of the sums equal to that of computing: half of the step is 1 to 1."),
        (right * 2, "That makes the sums half of the *computing*, a third of the step."),
        (right * t / (t - 1), "That takes the factor 2, the limit of very many ranks."),
        (right / t, "A rank has a t-th of the operations, but its activations are whole."),
    ]
    return Number.of(right, "", slips)


def what_makes_it_smaller() -> Several:
    """What makes the share of the sums smaller."""
    why = {
        "a": "the batch is in the operations and in the bytes. What is left when you divide?",
        "b": "operations grow with the square of the width. And the bytes?",
        "c": "with fewer ranks each has more to compute. What about what it sends?",
        "d": "faster computing makes one of the two times shorter. Which, and what is its part then?",
        "e": "the sums have the same numbers. How many bytes has each?",
        "f": "what does a layer more bring: operations, bytes, or both?",
    }
    return Several("bce", why)


# What is not split --------------------------------------------------------------------------------------------------


def _step(rest: int, send: float, t: int, split_rest: bool = False) -> float:
    """ms of a step that takes 100 ms on one GPU."""
    own = (rest if not split_rest else rest / t) + (100 - rest) / t
    return own + cost.ring_all_reduce_bytes(send, t)


def speedup(rest: int, send: int, t: int) -> Number:
    """How many times faster than one GPU."""
    slips = [
        (float(t), "Norms and sums do not become faster."),
        (100 / (rest + (100 - rest) / t), "The sums take time, too."),
        (100 / (100 / t + cost.ring_all_reduce_bytes(send, t)), "Norms are computed whole on every rank."),
        (100 / (rest + (100 - rest) / t + send), "A ring sends 2 (t-1)/t times the activations."),
        (100 / (rest + (100 - rest) / t + 2 * send), "That takes the factor 2, the limit of very many ranks."),
        (100 / _step(rest, send, t) / t, "That is the efficiency: the speedup over the ranks."),
        (_step(rest, send, t), "That is the step in ms."),
    ]
    return Number.of(100 / _step(rest, send, t), "times", slips)


def speedup_of_twice(rest: int, send: int, t: int) -> Number:
    """The same with twice as many ranks."""
    slips = [
        (200 / _step(rest, send, t), "Twice as many ranks are not twice as fast: three parts of the step stay."),
        (100 / _step(rest, send, t), "That is with t ranks."),
        (2.0 * t, "Norms and sums do not become faster."),
        (100 / (rest + (100 - rest) / (2 * t) + cost.ring_all_reduce_bytes(send, t)), "The ring's factor grows, too."),
        (100 / (rest + (100 - rest) / (2 * t)), "The sums take time, too."),
    ]
    return Number.of(100 / _step(rest, send, 2 * t), "times", slips, 0.004)


def speedup_at_most(rest: int, send: int, t: int) -> Number:
    """The limit of very many ranks."""
    slips = [
        (100 / rest, "That is Amdahl's limit without messages. The sums stay as well: what is their limit?"),
        (100 / (rest + send), "The ring's factor goes to 2."),
        (100 / (2 * send), "Norms stay whole on every rank."),
        (100 / _step(rest, send, t), "That is with t ranks."),
        (float(rest + 2 * send), "That is the step in ms, of 100."),
    ]
    return Number.of(100 / (rest + 2 * send), "times", slips)


def speedup_sequence(rest: int, send: int, t: int) -> Number:
    """With sequence parallelism: what was whole is split, and as many bytes are sent."""
    slips = [
        (100 / _step(rest, send, t), "That is without sequence parallelism. It splits the norms, too."),
        (float(t), "The sums take time, too: a reduce-scatter and an all-gather for each all-reduce."),
        (
            100 / (100 / t + 2 * cost.ring_all_reduce_bytes(send, t)),
            "A reduce-scatter and an all-gather are one all-reduce together: as many bytes as before.",
        ),
        (100 / (100 / t + cost.ring_all_gather_bytes(send, t)), "There are an all-gather *and* a reduce-scatter."),
    ]
    return Number.of(100 / _step(rest, send, t, split_rest=True), "times", slips)


# Activations of a layer ---------------------------------------------------------------------------------------------


def _kept(h: int, s: int, b: int, t: int, **options: object) -> float:
    return cost.tensor_parallel_activation_bytes(b, s, h, 1, h // 128, t, **options) / MB


def _kept_slips(h: int, s: int, b: int, t: int) -> dict[str, tuple[float, str]]:
    wide, square = b * s * h / MB, 5 * h // 128 * s / h
    return {
        "one": (_kept(h, s, b, 1), "That is one GPU, on which nothing is split."),
        "plain": (_kept(h, s, b, t), "That is without sequence parallelism."),
        "sequence": (
            _kept(h, s, b, t, sequence_parallel=True),
            "That is with everything split, which takes sequence parallelism.",
        ),
        "whole scores": (wide * (10 + 24 / t + square), "The scores of attention are split by heads."),
        "whole scores, cut": (wide * (34 / t + square), "The scores of attention are split by heads."),
        "no scores": (wide * (10 + 24 / t), "The scores of attention are missing."),
        "no scores, cut": (wide * 34 / t, "The scores of attention are missing."),
        "no scores on one": (wide * 34, "That is one GPU, on which nothing is split."),
        "copies": (wide * (10 + 24 / t), "With sequence parallelism the 10 are split as well."),
        "scores": (_kept(h, s, b, t, sequence_parallel=True), "The scores are computed again: they are not kept."),
    }


def kept_mb(h: int, s: int, b: int, t: int) -> Number:
    """MB of a layer's activations on a rank."""
    right, slips = _kept(h, s, b, t), _kept_slips(h, s, b, t)
    named = [slips[name] for name in ("one", "sequence", "whole scores", "no scores")]
    return Number.of(right, "MB", [*named, (2 * right, "The 10 and the 24 are bytes already.")])


def kept_sequence_mb(h: int, s: int, b: int, t: int) -> Number:
    """The same with sequence parallelism."""
    right, slips = _kept(h, s, b, t, sequence_parallel=True), _kept_slips(h, s, b, t)
    named = [slips[name] for name in ("one", "plain", "whole scores, cut", "no scores, cut")]
    return Number.of(right, "MB", [*named, (2 * right, "The 34 are bytes already.")])


def kept_selective_mb(h: int, s: int, b: int, t: int) -> Number:
    """With sequence parallelism, and the scores of attention computed again."""
    right = _kept(h, s, b, t, sequence_parallel=True, strategy="selective")
    slips = _kept_slips(h, s, b, t)
    named = [slips[name] for name in ("no scores on one", "copies", "scores")]
    return Number.of(right, "MB", [*named, (2 * right, "The 34 are bytes already.")])


def copies_percent(h: int, s: int, b: int, t: int) -> Number:
    """Percent of the first number that all ranks keep alike."""
    whole, kept = 10 * b * s * h / MB, _kept(h, s, b, t)
    slips = [
        (100 * (1 - whole / kept), "That is the part that is split."),
        (100 * whole / _kept(h, s, b, 1), "That is the part on one GPU. Of what a rank keeps it is more."),
        (100 * 10 / 34, "That leaves the scores of attention out, and the split."),
        (100 * 10 / (10 + 24 / t), "That leaves the scores of attention out."),
        (whole / kept, "In percent."),
    ]
    return Number.of(100 * whole / kept, "%", slips)


# Find the error: 50 GB ----------------------------------------------------------------------------------------------


def _acts(t: int, sequence: bool = False) -> float:
    big = cost.SHAPES["175B"]
    nbytes = cost.tensor_parallel_activation_bytes(
        1, big.sequence, big.hidden, big.layers, big.heads, t, sequence_parallel=sequence
    )
    return nbytes / GB


def _fewest(gpus: int, memory: int, sequence: bool, state: float | None = None) -> int:
    room = memory - (16 * 175 / gpus if state is None else state)
    return next((t for t in (1, 2, 4, 8, 16, 32) if _acts(t, sequence) <= room), 0)


def one_sequence_gb(gpus: int, memory: int, t: int) -> Number:
    """GB of activations of one sequence on a rank that shares no layer."""
    slips = [
        (50.0, "That is what the textbook says. What comes out of the formula?"),
        (_acts(1) / 96, "That is one layer."),
        (_acts(8), "That is with every layer split among eight ranks."),
        (96 * 34 * 2048 * 12288 / GB, "The scores of attention are missing."),
        (_acts(1) / gpus, "A sequence is read by one rank, as long as no layer is split."),
    ]
    return Number.of(_acts(1), "GB", slips)


def split_sequence_gb(gpus: int, memory: int, t: int) -> Number:
    """GB of activations on each of t ranks that share every layer."""
    slips = [
        (_acts(t, True), "That is with everything split, which takes sequence parallelism."),
        (_acts(1), "That is without any split."),
        (_acts(t) / 96, "That is one layer."),
        (96 * 2048 * 12288 * (10 + 24 / t) / GB, "The scores of attention are missing."),
    ]
    return Number.of(_acts(t), "GB", slips)


def fewest_ranks_plain(gpus: int, memory: int, t: int) -> Number:
    """The smallest degree with which one sequence fits, without sequence parallelism."""
    slips = [
        (_fewest(gpus, memory, True), "With sequence parallelism that is enough. Here the copies stay whole."),
        (_fewest(gpus, memory, False, 0.0), "The state needs its room, too."),
        (_fewest(gpus, memory, False) // 2, "With so many it is still too much."),
        (_fewest(gpus, memory, False) * 2, "Half as many are enough."),
    ]
    return Number.count(_fewest(gpus, memory, False), slips)


def fewest_ranks_sequence(gpus: int, memory: int, t: int) -> Number:
    """The same with sequence parallelism."""
    right = _fewest(gpus, memory, True)
    slips = [
        (_fewest(gpus, memory, False), "That is without sequence parallelism, which splits the copies as well."),
        (_fewest(gpus, memory, True, 0.0), "The state needs its room, too."),
        (right // 2, "With so many it is still too much."),
        (right * 2, "Half as many are enough."),
    ]
    return Number.count(right, slips)


def where_from() -> Choice:
    """Where the 50 GB come from."""
    why = {
        "a": "Then nothing would be wrong. Compare with your first number.",
        "b": "That would be smaller: only the input of each layer is kept. Compute it.",
        "d": "A whole microbatch of four would keep four times as much, not less.",
    }
    return Choice("c", why)
