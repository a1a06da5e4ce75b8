"""Keys of chapter 11, context parallelism. Numbers come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost.units import GB, MB
from labkit.grading.answers import Number, Several

WIDTH, HEADS = 128, 64  # of a head, and heads of queries, where a question does not draw them

# Around the ring and back -------------------------------------------------------------------------------------------


def _ring(N: int, tokens: int, g: int, passes: str = "forward") -> float:
    """MB that a rank sends in one layer."""
    return cost.ring_attention_bytes_by_rank([tokens // N] * N, g, WIDTH, passes=passes)[0] / MB


def forward_mb(N: int, tokens: int, g: int) -> Number:
    """MB that a rank sends in the forward pass."""
    right = _ring(N, tokens, g)
    block = right / (N - 1)
    slips = [
        (N * block, "That is a message in every round. In the last round nobody needs another block."),
        (block, "That is one block. In how many rounds does a rank pass one on?"),
        (right / 2, "That is half of it: the values travel beside the keys, and each number has 2 bytes."),
        (right * N, "That sends the whole text in each round. A block is one rank's share of it."),
        (right * HEADS / g, "That counts the heads of queries. Queries stay where they are."),
    ]
    return Number.of(right, "MB", slips)


def backward_mb(N: int, tokens: int, g: int) -> Number:
    """MB that a rank sends in the backward pass."""
    right, ahead = _ring(N, tokens, g, "backward"), _ring(N, tokens, g)
    block = ahead / (N - 1)
    slips = [
        (ahead, "That is the keys and values, which go around once more. Their gradients travel behind them."),
        (2 * ahead, "The gradients are sums in 32 bits, and they go one step further than the blocks: home."),
        (3 * ahead, "The gradients make N steps and not N - 1. After the last round they are one step from home."),
        (ahead + N * block, "The gradients are sums in 32 bits, so they take twice the bytes of their block."),
        (3 * N * block, "In the last round only the gradients travel on. Nobody needs the keys any more."),
        (right + ahead, "That is both passes together."),
        (2 * N * block, "Those are the gradients. The keys and values go around once more, too."),
    ]
    return Number.of(right, "MB", slips)


def all_gather_mb(N: int, tokens: int, g: int) -> Number:
    """MB that a rank sends in an all-gather of keys and values by ring."""
    right = _ring(N, tokens, g)
    slips = [
        (right * N / (N - 1), "That is the whole text. A rank never has to be sent what it holds itself."),
        (2 * right, "That is an all-reduce. Here nothing is summed."),
        (right / (N - 1), "That is one block. A rank passes on its own block, and then those that come."),
        (right * N, "That sends the whole text in each round. What travels in a round is one rank's part."),
    ]
    return Number.of(right, "MB", slips)


def times_held(N: int, tokens: int, g: int) -> Number:
    """Bytes of keys and values on a rank after an all-gather, over those of the ring."""
    slips = [
        (float(N), "In the ring a second block arrives while a rank reads the first one."),
        (1.0, "They send the same. But how much of the text's keys does a rank hold at one time?"),
        (2 / N, "Upside down."),
        (float(N - 1), "A rank holds its own block, too, and in the ring it holds two at a time."),
    ]
    return Number.of(N / 2, "times", slips)


# The shortest block --------------------------------------------------------------------------------------------------


def _hidden(tflops: int, both: int, g: int) -> float:
    return cost.ring_attention_tokens_to_hide(tflops * 1e12, both / 2 * GB, heads=HEADS, kv_heads=g)


def tokens_each(tflops: int, both: int, g: int, N: int) -> Number:
    """Tokens on each rank from which the forward transfer is hidden."""
    right = _hidden(tflops, both, g)
    slips = [
        (right / 2, "That is half of it. Does the mask leave half of the pairs? Do keys AND values travel? And a "
         "block leaves on one direction of the link only."),
        (right * 2, "That is twice as much. There are two products, queries with keys and weights with values."),
        (right / 4, "That is a quarter. The mask leaves half of the pairs, and a block leaves on one direction only."),
        (right * HEADS / g, "That is with as many heads of keys as of queries. Fewer heads travel here."),
        (right * g / HEADS, "The heads of keys are counted twice: all heads of queries compute."),
        (right * N, "That is the whole text. How many tokens does one rank need?"),
    ]  # fmt: skip
    return Number.of(right, "", slips)


def tokens_of_text(tflops: int, both: int, g: int, N: int) -> Number:
    """Tokens of the whole text then."""
    each = _hidden(tflops, both, g)
    slips = [
        (each, "That is one rank's part of the text."),
        (each * N * N, "Each rank needs its tokens once, however many ranks there are."),
        (each / N, "The condition is for each rank: with more ranks the text must be longer."),
        (each * N / 2, "In the zigzag layout a rank has two chunks, and both of them belong to its tokens."),
    ]
    return Number.of(each * N, "", slips)


def tokens_backward(tflops: int, both: int, g: int, N: int) -> Number:
    """Tokens on each rank from which the backward transfer is hidden."""
    each = _hidden(tflops, both, g)
    slips = [
        (each, "Both grow in the backward pass, but not alike: 2.5 times the work. And how many times the bytes?"),
        (3 * each, "The work grows as well: five products in place of two."),
        (2.5 * each, "More work makes it easier to hide the transfer. The bytes make it harder."),
        (2 / 2.5 * each, "The gradients are sums in 32 bits: 2 + 4 bytes for each number, and not 2 + 2."),
        (1 / 2.5 * each, "The gradients of a block travel behind it: 2 + 4 bytes for each number."),
        (
            2 * each,
            "The gradients have 4 bytes for each number beside the block's 2. And the work is not twice as much.",
        ),
        (2.5 / 3 * each, "Upside down: three times the bytes, and 2.5 times the work."),
    ]
    return Number.of(3 / 2.5 * each, "", slips)  # 2 + 4 bytes over 2, and five products over two


def what_shortens() -> Several:
    """What makes the shortest block shorter."""
    why = {
        "a": "the link's time for a byte is in the formula. What becomes of it?",
        "b": "the width is in the work and in the bytes of a block. Does it stay in the quotient?",
        "c": "without the mask a round has twice as many pairs for the same bytes.",
        "d": "what does a rank compute and send in one round? Is the number of ranks in it?",
        "e": "only keys and values travel, and all heads of queries compute.",
        "f": "the same work then takes less time, and the message takes as long as before.",
    }
    return Several("ace", why)


# Who waits -----------------------------------------------------------------------------------------------------------


def _slowest(N: int, t: int, layout: str) -> float:
    """Time of the ring in pairs, when messages take none."""
    return cost.ring_attention_seconds(N, N * t, layout, 1.0, 0.0)


def _even(N: int, t: int) -> float:
    return N * t * (N * t + 1) / 2 / N


def busiest_percent(N: int, t: int) -> Number:
    """Percent of all pairs that the last rank has, contiguous."""
    right = 100 / N * cost.causal_balance(N, N * t, "contiguous")
    slips = [
        (100 / N, "That is an even share. The last rank has the latest queries, which read nearly everything."),
        (200 / N, "That is the limit for very many ranks. The earlier ones of its queries read a little less."),
        (100 * (t + 1) / (N * (N * t + 1)), "That is the first rank."),
        (100.0, "The other ranks have queries, too."),
        (right * N, "Compare with the pairs of all ranks, and not with an even share."),
    ]
    return Number.of(right, "%", slips)


def idle_percent(N: int, t: int) -> Number:
    """Percent of the time in which rank 0 has nothing to compute, contiguous."""
    busy = t * (t + 1) / 2 / _slowest(N, t, "contiguous")
    slips = [
        (100 * busy, "That is the part in which it computes."),
        (100 * (N - 1) / N, "It works in one round of N. But that round has the triangle only: half of the pairs."),
        (50.0, "Half of all pairs are masked, but they are not shared out evenly."),
    ]
    return Number.of(100 * (1 - busy), "%", slips)


def striped_times(N: int, t: int) -> Number:
    """Time of the striped layout over that of even shares."""
    right = _slowest(N, t, "striped") / _even(N, t)
    slips = [
        (1.0, "Sums are nearly even, but in every round some rank reads keys that lie behind its queries: t more."),
        ((t + 1) / t, "That compares with half of all pairs of a round. What is an even share of the triangle?"),
        ((t + 1) / (t - 1), "That compares the slowest rank of a round with the fastest one. Compare with the mean."),
        (_slowest(N, t, "contiguous") / _even(N, t), "That is the contiguous layout."),
    ]
    return Number.of(right, "times", slips, 0.001)


def zigzag_faster(N: int, t: int) -> Number:
    """How many times faster zigzag is than contiguous."""
    right = _slowest(N, t, "contiguous") / _slowest(N, t, "zigzag")
    slips = [
        (2.0, "That is the limit for very many ranks."),
        (float(N), "Only if the last rank did all of the work. The others do some of it as well."),
        (1 / right, "Upside down."),
        (2.0 * N - 1, "That compares the last rank with the first one. With zigzag every rank has an even share."),
        (_slowest(N, t, "contiguous") / _slowest(N, t, "striped"), "That is striped. Zigzag is even in every round."),
    ]  # fmt: skip
    return Number.of(right, "times", slips, 0.004)


# Positions or heads --------------------------------------------------------------------------------------------------


def _ulysses(h: int, g: int, N: int, tokens: int) -> float:
    return cost.ulysses_bytes_by_rank([tokens // N] * N, h, g, WIDTH, passes="forward")[0] / MB


def ulysses_mb(h: int, g: int, N: int, tokens: int) -> Number:
    """MB that a rank sends in the forward pass with Ulysses."""
    right = _ulysses(h, g, N, tokens)
    slips = [
        (right * N / (N - 1), "A rank keeps what belongs to its own heads: (N - 1)/N of its part leaves it."),
        (right * (h + 2 * g) / (2 * h + 2 * g), "The results travel back as well, and have as many heads as queries."),
        (right * 4 * h / (2 * h + 2 * g), "Keys and values have fewer heads than queries."),
        (right * N, "That is the whole text. A rank gives away a part of its own tokens."),
        (right * 2 * g / (2 * h + 2 * g), "Those are keys and values. Queries and results travel, too."),
        (right / 2, "Each number has 2 bytes."),
    ]
    return Number.of(right, "MB", slips)


def ring_mb(h: int, g: int, N: int, tokens: int) -> Number:
    """MB that a rank sends in the forward pass with the ring."""
    right = _ring(N, tokens, g)
    slips = [
        (right * N / (N - 1), "That is a message in every round. The last round sends nothing."),
        (right / 2, "The values travel beside the keys, and each number has 2 bytes."),
        (right * h / g, "In the ring queries stay. What travels has g heads."),
        (right * (h + g) / g, "In the ring queries and results stay. Keys and values travel."),
        (right / (N - 1), "That is one block. A rank passes one on N - 1 times."),
    ]
    return Number.of(right, "MB", slips)


def fewest_ranks(h: int, g: int, N: int, tokens: int) -> Number:
    """The fewest ranks, a power of two, with which Ulysses sends less."""
    right = 2
    while _ulysses(h, g, right, tokens) >= _ring(right, tokens, g):
        right *= 2
    slips = [
        (right // 2, "With so many the ring still sends less, or as much. Compare (2 h + 2 g)/N with 2 g."),
        (right * 2, "It takes fewer."),
        (h // g + 2, "A power of two is asked for, as it must divide the heads."),
        (h, "That is the most that are possible. It takes fewer."),
        (g, "That is the most without copies of keys. Compare (2 h + 2 g)/N with 2 g."),
    ]
    return Number.count(right, slips)


def most_ranks(h: int, g: int, N: int, tokens: int) -> Number:
    """The most ranks that Ulysses alone can use."""
    slips = [
        (g, "With more ranks than heads of keys, several ranks get a copy of the same head. What can not be copied?"),
        (h * g, "A rank needs at least one whole head of queries."),
        (h + 2 * g, "Keys and values go where the queries are that read them."),
        (h // g, "That is how many heads of queries share one of keys."),
    ]
    return Number.count(h, slips)


# What is divided -----------------------------------------------------------------------------------------------------

LAYERS, HIDDEN, VOCABULARY, PARAMETERS = 32, 4096, 128_256, 8e9
SHARING = 8  # ranks to a text


def _texts(k: int) -> tuple[float, float, float]:
    """GB of the layers' inputs, of one layer computed again, and of the logits, for a whole text."""
    tokens = 1024 * k
    inputs = cost.kept_activation_bytes(1, tokens, HIDDEN, LAYERS, HIDDEN // WIDTH, "full") / GB
    layer = cost.kept_activation_bytes(1, tokens, HIDDEN, 1, HIDDEN // WIDTH, "selective") / GB
    return inputs, layer, 4 * tokens * VOCABULARY / GB


def _state(gpus: int) -> float:
    return cost.zero_state_bytes(PARAMETERS, gpus, 3) / GB


def logits_gb(k: int, gpus: int) -> Number:
    """GB of the logits of a whole text."""
    right = _texts(k)[2]
    slips = [
        (right * 1000 / 1024, "A thousand tokens count as 1,024 here."),
        (right / 2, "In 32 bits a number has 4 bytes."),
        (right * HIDDEN / VOCABULARY, "The logits have one number for each word of the vocabulary at every position."),
        (right / SHARING, "That is a rank's part. The whole text is asked for."),
    ]
    return Number.of(right, "GB", slips)


def one_rank_gb(k: int, gpus: int) -> Number:
    """GB on a rank, when 8 ranks share a text."""
    inputs, layer, logits = _texts(k)
    state, text = _state(gpus), inputs + layer + logits
    slips = [
        (state + text, "That is with the whole text on one rank. What of it is divided by the 8 ranks?"),
        ((state + text) / SHARING, "The state is sharded over all GPUs already. Sharing a text divides nothing of it."),
        (state + (inputs + layer) / SHARING, "The logits have a row for each position. They are the largest part."),
        (state + (inputs + layer) / SHARING + logits, "Each rank computes the logits of its own positions only."),
        (state + (inputs + logits) / SHARING, "The layer that is computed again needs room as well."),
        (text / SHARING, "The training state needs room, too."),
        (16 * PARAMETERS / GB + text / SHARING, "The state is sharded over all GPUs."),
        (state + (inputs + LAYERS * layer + logits) / SHARING, "One layer is computed again at a time."),
    ]  # fmt: skip
    return Number.of(state + text / SHARING, "GB", slips)


def fewest_to_fit(k: int, gpus: int) -> Number:
    """The fewest ranks to a text, a power of two, with which everything fits."""
    text, right = sum(_texts(k)), 1
    while _state(gpus) + text / right > cost.GPU_MEMORY / GB:
        right *= 2
    slips = [
        (right // 2, "Then it does not fit. Have you counted the logits? They are the largest part."),
        (right * 2, "It fits with fewer."),
        (math.ceil(text / (cost.GPU_MEMORY / GB - _state(gpus))), "A power of two is asked for."),
    ]
    return Number.count(right, slips)


def what_is_divided() -> Several:
    """What gets less on a rank when more ranks share a text."""
    why = {
        "a": "all ranks of a text have the same weights. Over which GPUs is their state sharded, before and after?",
        "b": "a layer keeps a row for each position. How many positions has a rank?",
        "c": "the logits have a row for each position. How many positions has a rank?",
        "d": "is the gradient of a weight shorter, if fewer tokens were read?",
        "e": "a rank of the ring holds two blocks, and a block is one rank's part of the text.",
    }
    return Several("bce", why)
