"""Keys of chapter 16, alignment. Numbers come from labkit.cost.alignment; each slip is one that people make."""

from __future__ import annotations

from functools import cache
from math import ceil

from labkit import cost
from labkit.cost.units import GB
from labkit.grading.answers import Number, Symbolic

# Four models in memory ------------------------------------------------------------------------------------------------

GPU_GB = 80


def ppo_gb(P: int, R: int, b: int, free: int) -> Number:
    """GB of policy, reference, reward model and critic; frozen weights have b bytes each."""
    slips = [
        (16.0 * (P + R), "Those are the two models that train. The frozen ones have weights, too."),
        (16.0 * P + b * (P + 2 * R), "The critic is trained as well, so it has gradients and an optimizer."),
        (16.0 * 2 * (P + R), "Two of the four models never train: they have neither gradients nor Adam's states."),
        ((2.0 + b) * (P + R), "Those are weights alone. A trained model has 16 bytes for each parameter."),
        (16.0 * (P + R) + b * P, "You left out the reward model."),
        (16.0 * (P + R) + b * R, "You left out the reference model."),
    ]
    return Number.of(_all_four(P, R, b), "GB", slips, 0.001)


def _all_four(P: int, R: int, b: int) -> float:
    return cost.aligned_models_bytes([P * 1e9, R * 1e9], []) / GB + cost.frozen_bytes((P + R) * 1e9, b) / GB


def dpo_less_percent(P: int, R: int, b: int, free: int) -> Number:
    """By how many percent DPO, with a policy and a reference, holds less than PPO."""
    ppo, dpo = _all_four(P, R, b), _all_four(P, 0, b)
    slips = [
        (100 * dpo / ppo, "That is what DPO holds, in percent of PPO. By how much is it less?"),
        (100 * (ppo / dpo - 1), "That is by how much PPO holds more. Divide by what PPO holds."),
        (100 * (1 - 16 * P / ppo), "DPO has a frozen reference, too: its loss compares the policy with it."),
        (50.0, "DPO has two models in place of four, but the two that go are not as large as the two that stay."),
    ]
    return Number.of(100 * (1 - dpo / ppo), "%", slips)


def least_gpus(P: int, R: int, b: int, free: int) -> Number:
    """The fewest GPUs of 80 GB that hold all four, evenly cut, with `free` percent of each left over."""
    total, each = _all_four(P, R, b), GPU_GB * (1 - free / 100)
    slips = [
        (ceil(total / GPU_GB), "That fills every GPU. Some of it must stay free for activations and caches."),
        (int(total // each), "One GPU less than needed: round up."),
        (ceil(total * (1 + free / 100) / GPU_GB), "What stays free is a part of the GPU, not of the models. Divide by "
         "what is left of 80 GB."),
        (ceil(_all_four(P, 0, b) / each), "That is enough for policy and reference. There are four models."),
    ]  # fmt: skip
    return Number.count(ceil(total / each), slips)


def gpus_of_four_pools(P: int, R: int, b: int, free: int) -> Number:
    """The same, if each of the four models has GPUs of its own."""
    each = GPU_GB * (1 - free / 100)
    pools = [16.0 * P, 1.0 * b * P, 1.0 * b * R, 16.0 * R]
    slips = [
        (ceil(sum(pools) / each), "That is what all of them need together. No GPU has parts of two models here, so "
         "round up for each model by itself."),
        (sum(ceil(x / GPU_GB) for x in pools), "Some of each GPU must stay free."),
        (sum(int(x // each) for x in pools), "Round up in each pool."),
        (4 * ceil(max(pools) / each), "The pools need not be equally large."),
    ]  # fmt: skip
    return Number.count(sum(ceil(x / each) for x in pools), slips)


# The cache of a rollout -----------------------------------------------------------------------------------------------

LAYERS, QUERIES, HEADS, HEAD = 80, 64, 8, 128  # of Llama 2 70B: heads of queries, of keys and values, and their width


def cache_gb(n: int, B: int, t: int, p: int) -> Number:
    """GB of the keys and values of B sequences of n tokens, in 16 bits, with grouped queries."""
    right = cost.kv_cache_bytes(LAYERS, HEADS, HEAD, n, B) / GB
    slips = [
        (right / 2, "There are keys *and* values."),
        (2 * right, "A number has 2 bytes in 16 bits."),
        (right * QUERIES / HEADS, "That has keys and values for each head of queries. Eight queries share one."),
        (right / HEADS, "A layer has 8 heads of keys and values, each 128 wide."),
        (right / B, "That is one sequence."),
        (right / LAYERS, "That is one layer."),
    ]
    return Number.of(right, "GB", slips, 0.005)


def gpu_gb(n: int, B: int, t: int, p: int) -> Number:
    """The same for each GPU of tensor parallelism t and pipeline parallelism p."""
    right = cost.kv_cache_bytes_per_gpu(LAYERS, HEADS, HEAD, n, B, t, p) / GB
    slips = [
        (right * p, "A stage keeps the cache of its own layers only."),
        (right * t, "A GPU keeps the cache of its own heads only."),
        (right * t * p, "That is the cache of all GPUs together."),
        (right / 2, "There are keys *and* values."),
    ]
    return Number.of(right, "GB", slips, 0.005)


def wide_gpu_gb(n: int, B: int, t: int, p: int) -> Number:
    """The same with tensor parallelism 16 and no pipeline, so that there are more GPUs than heads of keys."""
    right = cost.kv_cache_bytes_per_gpu(LAYERS, HEADS, HEAD, n, B, 2 * HEADS, 1) / GB
    slips = [
        (right / 2, "That cuts a head in two. A GPU multiplies its queries with whole keys, so it has a whole head."),
        (right * HEADS, "Every GPU has one head of keys and values, and not all of them."),
        (right * 2, "Two heads would be on each GPU with a degree of 4."),
    ]
    return Number.of(right, "GB", slips, 0.005)


def most_sequences(n: int, B: int, t: int, p: int) -> Number:
    """How many sequences of n tokens fit beside 140 GB of weights on t p GPUs of 80 GB."""
    room = GPU_GB * GB - 140 * GB / (t * p)
    each = cost.kv_cache_bytes_per_gpu(LAYERS, HEADS, HEAD, n, 1, t, p)
    whole = cost.kv_cache_bytes(LAYERS, HEADS, HEAD, n)
    slips = [
        (int(GPU_GB * GB // each), "The weights need room, too."),
        (int((GPU_GB * GB - 140 * GB) // each), "A GPU has only its part of the weights."),
        (int(room // whole), "A GPU has only its part of the cache of a sequence."),
        (int(room // (whole * QUERIES / HEADS / (t * p))), "That is with keys and values for each head of queries."),
        (int(room // each) + 1, "That one no longer fits: round down."),
    ]
    return Number.count(int(room // each), slips)


# What decoding waits for ----------------------------------------------------------------------------------------------

WEIGHTS, WIDTH, KV_WIDTH = 70e9, QUERIES * HEAD, HEADS * HEAD


def balance(F: int, W: float, n: int, G: int) -> Number:
    """Operations a byte of the accelerator: F teraflops, W terabytes a second."""
    slips = [
        (W / F, "Turn it around: operations for each byte."),
        (2 * F / W, "An operation is an operation here: the multiply and the add of a weight count as two later on."),
        (F / W / 2, "These are operations for each *byte*, and a number of 16 bits has two of them."),
    ]
    return Number.of(F / W, "", slips)


def batch_in_eight_bits(F: int, W: float, n: int, G: int) -> Number:
    """Sequences from which decoding is bound by computing; empty contexts, weights of one byte."""
    right = cost.compute_bound_batch(WEIGHTS, 0, LAYERS, WIDTH, KV_WIDTH, 1, F / W)
    slips = [
        (F / W, "That is for weights of 2 bytes. With one byte, reading takes half as long."),
        (2 * F / W, "With fewer bytes to read, fewer sequences are enough."),
        (F / W / 4, "A weight is multiplied *and* added: 2 operations for each sequence."),
    ]
    return Number.of(right, "", slips)


def batch_with_context(F: int, W: float, n: int, G: int) -> Number:
    """The same with contexts of n tokens, everything in 16 bits."""
    b = F / W
    right = cost.compute_bound_batch(WEIGHTS, n, LAYERS, WIDTH, KV_WIDTH, 2, b)
    read = cost.kv_cache_bytes(LAYERS, HEADS, HEAD, n)
    slips = [
        (b, "That is without the cache. Every sequence more has keys and values of its own to be read."),
        (b * 2 * WEIGHTS / (2 * WEIGHTS - b * read), "You left out the operations of attention: 4 for each layer, "
         "token of the context and number of a query."),
        (b * 2 * WEIGHTS / (2 * WEIGHTS + 4 * LAYERS * n * WIDTH), "You left out the bytes of the cache."),
        (cost.compute_bound_batch(WEIGHTS, n // 2, LAYERS, WIDTH, KV_WIDTH, 2, b), "Keys *and* values are read, and "
         "multiplied with."),
    ]  # fmt: skip
    return Number.of(right, "", slips)


def longest_context(F: int, W: float, n: int, G: int) -> Number:
    """Tokens of the context from which on no batch is large enough."""
    b = F / W
    right = 2 * WEIGHTS / (4 * LAYERS * (b * KV_WIDTH - WIDTH))
    slips = [
        (2 * WEIGHTS / (4 * LAYERS * b * KV_WIDTH), "You left out the operations of attention."),
        (2 * right, "A token of the context has keys *and* values, of 2 bytes each number."),
        (right / 2, "A weight stands for 2 operations, and a token of the context has 2 times 2 bytes for each layer "
         "and number: keys and values, of 16 bits."),
    ]  # fmt: skip
    return Number.of(right, "", slips)


def tokens_a_second(F: int, W: float, n: int, G: int) -> Number:
    """Tokens a second of one sequence on G GPUs, with an empty context and no time for messages."""
    right = 1 / cost.decoding_seconds(WEIGHTS, 1, 0, LAYERS, WIDTH, KV_WIDTH, G, 2, F * 1e12, W * 1e12)
    slips = [
        (G * F * 1e12 / (2 * WEIGHTS), "That is what the GPUs could compute. They wait for their memory."),
        (right / G, "Each GPU reads its own part of the weights, all at once."),
        (2 * right, "A weight has 2 bytes."),
        (1000 / right, "That is the time of a token in milliseconds."),
    ]
    return Number.of(right, "", slips)


# Two pools that wait --------------------------------------------------------------------------------------------------

LIMIT = "(G + T)/(sqrt(G) + sqrt(T))^2"


def best_part() -> Symbolic:
    """The part of the GPUs with which two pools that wait for each other are fastest."""
    slips = [
        ("G/(G + T)", "With that split both phases take equally long. This is best if they overlap, but here one waits "
         "for the other, and the *sum* of both times counts."),
        ("1/2", "Only if both phases have equally much work."),
        ("sqrt(T)/(sqrt(G) + sqrt(T))", "That is the part that trains."),
        ("sqrt(G)/sqrt(T)", "That is the ratio of both pools, g / t. What part of all is g?"),
        ("sqrt(G/T)", "That is the ratio of both pools, g / t. What part of all is g?"),
        ("G^2/(G^2 + T^2)", "The derivative of G/x is -G/x^2, so x is not quadratic in G."),
    ]  # fmt: skip
    return Symbolic("sqrt(G)/(sqrt(G) + sqrt(T))", "G T", slips)


def best_utilization() -> Symbolic:
    """The utilization with that split."""
    slips = [
        ("1/2", "That is with a split by G / T, and also for equal phases. With the best split it is more."),
        ("1/(sqrt(G) + sqrt(T))^2", "Put in the work: it is G + T, and the GPUs are there for N times the step."),
        ("(sqrt(G) + sqrt(T))^2/(G + T)", "Turn it around: utilization is at most 1."),
        ("sqrt(G*T)/(G + T)", "Put the split into G/x + T/(1 - x), and look at the sum again."),
    ]
    return Symbolic(LIMIT, "G T", slips)


def utilization_if_split_by_work() -> Symbolic:
    """The utilization of pools that are split as G to T, and wait for each other."""
    slips = [
        ("1", "That is what they reach if they overlap. Here one is idle while the other works."),
        ("G/(G + T)", "While one pool works the other waits. Both phases take (G + T)/N with this split."),
        (LIMIT, "That is the best split. This one is G to T."),
        ("2", "Utilization is at most 1."),
    ]
    return Symbolic("1/2", "G T", slips)


def longest_swap() -> Symbolic:
    """Seconds that a swap may take for colocated models to be no slower than the best pools that wait."""
    slips = [
        ("sqrt(G*T)/N", "Expand the square: it has the mixed term twice."),
        ("2*sqrt(G*T)", "That is in GPU-seconds. All N GPUs swap at once."),
        ("(sqrt(G) + sqrt(T))^2/N", "That is the whole step of the pools. What colocated models work, they work as "
         "well."),
        ("(G + T)/N", "That is what colocated models work in a step. How much longer do the pools take?"),
        ("(G + T - 2*sqrt(G*T))/N", "Subtract the colocated step from that of the pools, and look at what cancels."),
    ]  # fmt: skip
    return Symbolic("2*sqrt(G*T)/N", "G T N", slips)


def generators(g: int, N: int) -> Number:
    """GPUs of N that should generate, if generating is g percent of the work and the pools wait."""
    right = cost.best_generators(g, 100 - g, N, False)
    slips = [
        (cost.best_generators(g, 100 - g, N, True), "That is by the shares of the work, so that both pools take "
         "equally long. They do not overlap here."),
        (N - right, "That is the pool that trains."),
        (N // 2, "That is half of them. More work should get more GPUs."),
    ]  # fmt: skip
    return Number.count(right, slips)


# A mix of lengths -----------------------------------------------------------------------------------------------------

ROOM, LENGTHS = 2048, (1200, 900, 300)


def _mix(a: int, b: int, c: int) -> list[int]:
    return [length for length, times in zip(LENGTHS, (a, b, c), strict=True) for _ in range(times)]


@cache
def _rows(a: int, b: int, c: int) -> int:
    """The fewest rows that really hold so many sequences of each length."""
    if not a + b + c:
        return 0
    best = a + b + c
    for x in range(min(a, ROOM // LENGTHS[0]), -1, -1):
        for y in range(min(b, (ROOM - x * LENGTHS[0]) // LENGTHS[1]), -1, -1):
            z = min(c, (ROOM - x * LENGTHS[0] - y * LENGTHS[1]) // LENGTHS[2])
            if x + y + z and (x or not a):  # the first row has one of the longest that are left
                best = min(best, 1 + _rows(a - x, b - y, c - z))
    return best


def padded_waste_percent(a: int, b: int, c: int, P: int) -> Number:
    """The part of all positions that is padding, with rows as long as the longest sequence."""
    lengths = _mix(a, b, c)
    right = 100 * cost.padding_waste(lengths)
    slips = [
        (100 - right, "That is the part that is not padding."),
        (100 * cost.padding_waste(lengths, room=ROOM), "That has rows as long as the model's context. They need to be "
         "no longer than the longest sequence."),
        (100 * (1 / (1 - right / 100) - 1), "That is padding in percent of the tokens. Divide by all positions."),
        (100 * (1 - sum(LENGTHS) / 3 / max(LENGTHS)), "Weight the lengths: there are more short sequences."),
    ]  # fmt: skip
    return Number.of(right, "%", slips)


def bound_of_rows(a: int, b: int, c: int, P: int) -> Number:
    """Rows that no packing goes below: all tokens over the room of a row."""
    lengths = _mix(a, b, c)
    slips = [
        (sum(lengths) // ROOM, "What does not fill a row needs one, too: round up."),
        (ceil(sum(lengths) / max(LENGTHS)), "A row has room for 2,048 tokens."),
        (_rows(a, b, c), "That is what whole sequences need. The bound counts tokens only, as if they could be cut."),
    ]
    return Number.count(cost.fewest_rows(lengths, ROOM), slips)


def rows_of_whole_sequences(a: int, b: int, c: int, P: int) -> Number:
    """The fewest rows, if no sequence is cut."""
    one_kind = sum(ceil(times / (ROOM // length)) for times, length in zip((a, b, c), LENGTHS, strict=True))
    slips = [
        (cost.fewest_rows(_mix(a, b, c), ROOM), "That is the bound. A sequence of 1,200 and one of 900 do not fit into "
         "one row, so some room stays empty."),
        (one_kind, "That has only one length in each row. Short ones fit beside a long one."),
        (ceil((a + b) / 2) + max(0, ceil((c - 2 * a) / 6)), "Two sequences of 900 fit into a row, but two of 1,200, "
         "or one of each, do not."),
        (a + b, "Two sequences of 900 fit into one row."),
        (a + ceil(b / 2), "The short ones do not all fit beside the others."),
    ]  # fmt: skip
    return Number.count(_rows(a, b, c), slips)


def packed_waste_percent(a: int, b: int, c: int, P: int) -> Number:
    """The part of all positions that is padding after that packing."""
    lengths = _mix(a, b, c)
    right = 100 * cost.padding_waste(lengths, _rows(a, b, c), ROOM)
    slips = [
        (100 - right, "That is the part that is not padding."),
        (100 * (1 - sum(lengths) / (_rows(a, b, c) * max(LENGTHS))), "A packed row has 2,048 positions."),
        (100 * cost.padding_waste(lengths, cost.fewest_rows(lengths, ROOM), ROOM), "That is with the rows of the "
         "bound, which whole sequences do not reach."),
        (100 * cost.padding_waste(lengths), "That is before packing."),
    ]  # fmt: skip
    return Number.of(right, "%", slips)


def half_is_attention(a: int, b: int, c: int, P: int) -> Number:
    """The length of a sequence at which attention takes half of the operations of its training."""
    right = P * 1e9 / (LAYERS * WIDTH)
    slips = [
        (2 * right, "Causal attention multiplies half of all pairs, with 4 operations for each number, forward."),
        (right / 2, "Half of all pairs, those before a token, are multiplied."),
        (right * LAYERS, "Every layer has its attention."),
        (6 * right, "Backward takes twice as much as forward for attention, too."),
    ]
    return Number.of(right, "", slips)
