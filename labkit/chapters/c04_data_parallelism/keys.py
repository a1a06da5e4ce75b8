"""Keys of chapter 4, data parallelism. Numbers come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost.units import GB, MS, US
from labkit.grading.answers import Choice, Number, Several, Symbolic


def right_gradient(b0: int, b1: int, b2: int, g0: int, g1: int, g2: int) -> Number:
    """The gradient of the mean over all samples, from the local means of three ranks."""
    b, g = (b0, b1, b2), (g0, g1, g2)
    slips = [
        (sum(g) / 3, "That is the plain average of the ranks: it counts a sample of a small batch more than others."),
        (sum(x * y for x, y in zip(b, g, strict=True)), "That is the sum over all samples. The loss is a mean."),
        (sum(x * y for x, y in zip(b, g, strict=True)) / 3, "Divide by the number of samples, not of ranks."),
    ]
    return Number(sum(x * y for x, y in zip(b, g, strict=True)) / sum(b), "", slips=slips)


def factor(b0: int, b1: int, b2: int, g0: int, g1: int, g2: int) -> Number:
    """What rank 0 multiplies its loss with, so that the plain average of three gradients is the right one."""
    share = b0 / (b0 + b1 + b2)
    slips = [
        (share, "That would be right if the gradients were summed. Here the sum is divided by 3 afterwards."),
        (1 / (3 * share), "Upside down: a rank with more samples counts more."),
        (share / 3, "The average divides by 3 already: you have to take that back, not to do it twice."),
    ]
    return Number(3 * share, "", slips=slips)


def global_batch(N: int, b: int, k: int, D: int, P: int) -> Number:
    """Samples that go into one update."""
    slips = [
        (N * b, "That is what all ranks read in one pass. An update waits for all passes."),
        (b * k, "That is one rank's part."),
        (b * k / N, "The local batch is what one rank reads, not what all share."),
    ]
    return Number(N * b * k, "", 1e-9, slips)


def updates(N: int, b: int, k: int, D: int, P: int) -> Number:
    """Whole updates in an epoch of D samples."""
    slips = [
        (D // (N * b), "That is the number of passes. Some of them only accumulate."),
        (D // (b * k), "The samples are shared: an update takes those of all ranks."),
        (math.ceil(D / (N * b * k)), "The last one would not be whole."),
        (D / (N * b * k), "Count whole updates."),
    ]
    return Number(D // (N * b * k), "", 1e-9, [slip for slip in slips if slip[0] != D // (N * b * k)])


def passes_elsewhere(N: int, b: int, k: int, D: int, P: int) -> Number:
    """Accumulation steps that give the same global batch on N / P of the ranks."""
    slips = [
        (k, "Then the global batch would shrink with the ranks."),
        (k / P, "Fewer ranks need more passes, not fewer."),
    ]
    return Number(k * P, "", 1e-9, slips)


def gigabytes_per_rank(billions: float, N: int) -> Number:
    """GB of training state on each rank of N that are data parallel."""
    state = cost.state_bytes(billions * 1e9) / GB
    slips = [
        (state / N, "Data parallelism cuts the batch. The state is copied to every rank, not shared (chapter 5)."),
        (2 * billions, "Those are the parameters in 16 bits. What else does a step of Adam need?"),
        (4 * billions, "Parameters and gradients. Adam's master copy and its two moments are missing."),
        (12 * billions, "That is the optimizer's part. Parameters and gradients are there as well."),
    ]
    return Number(state, "GB", slips=slips)


def same_everywhere() -> Several:
    """What all ranks hold alike, when the update begins."""
    why = {
        "a": "do all ranks begin with the same parameters, and change them alike?",
        "b": "the moments follow from the gradients that the optimizer sees. Which are those?",
        "c": "each rank has its own samples, and so its own gradients, until they are averaged.",
        "d": "what does an all-reduce leave on every rank?",
        "e": "activations belong to samples.",
        "f": "if two ranks dropped the same units, would that be needed for equal parameters?",
        "g": "a learning rate that differs would let the parameters drift apart.",
    }
    return Several("abdg", why)


def messages_one_by_one(L: int, M: float, N: int, B: float, alpha_us: float) -> Number:
    """Messages that a rank sends when each of L tensors has a ring all-reduce to itself."""
    each = cost.ring_all_reduce_rounds(N)
    slips = [
        (L, "That is the number of all-reduces. Each is a message a round."),
        (L * each // 2, "That is one phase of each ring. There are two."),
        (L * each * N, "That is what all ranks send together."),
        (L * 2 * N, "Nearly: a phase has a round less than there are ranks."),
    ]
    return Number(L * each, "", 1e-9, slips)


def messages_in_buckets(L: int, M: float, N: int, B: float, alpha_us: float) -> Number:
    """Messages that a rank sends when the gradient travels in buckets of B MB."""
    each, buckets = cost.ring_all_reduce_rounds(N), math.ceil(M / B)
    slips = [
        (M / B * each, "The last bucket is not full, and still it travels."),
        (M // B * each, "The last bucket is not full, and still it travels."),
        (buckets, "That is the number of buckets. Each is a message a round."),
        (each, "That is a single flat tensor."),
        (buckets * each // 2, "That is one phase of each ring. There are two."),
    ]
    right = buckets * each
    return Number(right, "", 1e-9, [slip for slip in slips if slip[0] != right])


def megabytes_sent(L: int, M: float, N: int, B: float, alpha_us: float) -> Number:
    """MB that a rank sends in a step, with buckets."""
    slips = [
        (M, "That is the gradient. A ring sends nearly twice as much."),
        (2 * M, "A rank leaves out one chunk in each phase."),
        (cost.ring_all_reduce_bytes(M, N) / 2, "That is one phase of the two."),
        (cost.ring_all_reduce_bytes(B, N), "That is one bucket."),
    ]
    return Number(cost.ring_all_reduce_bytes(M, N), "MB", slips=slips)


def saved_ms(L: int, M: float, N: int, B: float, alpha_us: float) -> Number:
    """Milliseconds of latency that buckets save."""
    each, buckets = cost.ring_all_reduce_rounds(N), math.ceil(M / B)
    ms = each * alpha_us * US / MS
    slips = [
        ((L - buckets) * alpha_us * US / MS, "That is one latency for each all-reduce. A ring pays it every round."),
        (L * ms, "That is what single tensors pay. What do the buckets still pay?"),
        (buckets * ms, "That is what the buckets still pay."),
    ]
    return Number((L - buckets) * ms, "ms", slips=slips)


def ends_at() -> Symbolic:
    """When the last of B equal buckets is averaged."""
    slips = [
        ("T + B*c", "That is without overlap: all messages after the backward pass."),
        ("T + c", "That holds while a bucket travels faster than the next one is computed. And if it does not?"),
        ("T/B + B*c", "That holds if the messages never wait for a gradient. And if they do?"),
        ("max(T, B*c)", "The first bucket cannot travel before it is there, and the last one still has to."),
        ("max(T, B*c) + c", "Begin with the first bucket: until when do no messages travel at all?"),
        ("T + max(0, B*c - T)", "The first bucket cannot travel before it is there, and the last one still has to."),
    ]
    return Symbolic("max(T + c, T/B + B*c)", "T B c", slips)


READY = (10, 30, 45, 60)  # ms after the beginning of the backward pass


def exposed_ms(first: int, others: int) -> Number:
    """What is left of four all-reduces when the backward pass is over. first, others: ms that they take."""
    takes, free = (first, others, others, others), 0
    for ready, long in zip(READY, takes, strict=True):
        free = max(free, ready) + long
    slips = [
        (sum(takes), "Nothing is hidden then. The first all-reduce begins long before the backward pass ends."),
        (others, "Only if the bucket before it is through when the last one is ready. Go through them one by one."),
        (max(0, sum(takes) - READY[-1]), "Messages cannot begin before the first bucket is ready."),
        (READY[-1] - free, "Exposed is what is longer than the backward pass, as a positive number."),
        (free, "That is when the last bucket is averaged. Take away the time of the backward pass."),
    ]
    right = free - READY[-1]
    return Number(right, "ms", slips=[slip for slip in slips if slip[0] != right])


SMALL_COMPUTE, SMALL_MESSAGES, LARGE_COMPUTE, LARGE_STATED = 50.0, 25.0, 2400.0, 180.0  # ms, as the textbook has them


def scaled_ms(billions: float) -> Number:
    """ms of the all-reduce of a model of so many billion parameters on the same links."""
    slips = [
        (LARGE_STATED, "That is the textbook's number for 70 billion parameters. Does it follow from its first line?"),
        (
            SMALL_MESSAGES * LARGE_COMPUTE / SMALL_COMPUTE,
            "The messages grow with the gradient, not with the computing.",
        ),
    ]
    return Number(SMALL_MESSAGES * billions, "ms", slips=slips)


def share_percent(billions: float) -> Number:
    """Percent of a step that messages take, when nothing is hidden and computing scales with the parameters."""
    compute = LARGE_COMPUTE * billions / 70
    messages = SMALL_MESSAGES * billions
    slips = [
        (100 * messages / compute, "That is messages divided by computing. The textbook's 33 percent is of the step."),
        (100 * LARGE_STATED / (LARGE_STATED + LARGE_COMPUTE), "That is the textbook's share, from its 180 ms."),
        (100 * compute / (compute + messages), "That is the share of computing."),
    ]
    return Number(100 * messages / (compute + messages), "%", slips=slips)


def times_faster() -> Number:
    """How much faster the links of the large model are, if both lines of the textbook were measured."""
    slips = [
        (LARGE_STATED / SMALL_MESSAGES, "So much longer it takes. And it moves 70 times as much."),
        (70.0, "So much more it moves. And it takes 7.2 times as long."),
        (LARGE_STATED / SMALL_MESSAGES / 70, "Upside down."),
    ]
    return Number(70 * SMALL_MESSAGES / LARGE_STATED, "times", slips=slips)


PIECE_MS, SYNC_MS = (
    1800.0,
    cost.textbook.ring_at(cost.textbook.GPT2_GRADIENT, 32, cost.textbook.TEN_GIGABIT).seconds / MS,
)


def messages_percent(k: int, percent: int) -> Number:
    """Percent of the time that an update with k pieces spends on messages, nothing hidden."""
    slips = [
        (100 * SYNC_MS / (k * PIECE_MS), "That is messages divided by computing. Divide by the time of the update."),
        (100 * SYNC_MS / (SYNC_MS + PIECE_MS), "That is without accumulation: one piece."),
        (100 * SYNC_MS / (SYNC_MS + PIECE_MS) / k, "Only the messages are shared by the pieces, not the whole step."),
        (100 * k * PIECE_MS / (k * PIECE_MS + SYNC_MS), "That is the share of computing."),
    ]
    return Number(100 * SYNC_MS / (k * PIECE_MS + SYNC_MS), "%", slips=slips)


def fewest_pieces(k: int, percent: int) -> Number:
    """The smallest number of pieces for which messages take at most `percent` of the time."""
    share = percent / 100
    least = SYNC_MS * (1 - share) / share / PIECE_MS
    slips = [
        (math.floor(least), "With so many it is still a little more."),
        (math.ceil(SYNC_MS / share / PIECE_MS), "That compares messages with computing. Messages are in the step too."),
        (least, "Pieces are whole: round up."),
    ]
    return Number(math.ceil(least), "", 1e-9, [slip for slip in slips if slip[0] != math.ceil(least)])


def what_it_costs() -> Several:
    """What accumulation costs."""
    why = {
        "a": "pieces are added up in one buffer, one after the other.",
        "b": "when may the buffer of the gradients be freed or reused?",
        "c": "how many updates do the same samples give?",
        "d": "a piece's activations are freed by its own backward pass.",
        "e": "the pieces of an update are summed before anybody sends anything.",
    }
    return Several("bc", why)


def slow_steps(N: int, percent: float, times: float) -> Number:
    """Percent of steps in which at least one of N ranks is slow."""
    p = percent / 100
    slips = [
        (100 * N * p, "That is the mean number of slow ranks in a step. The chance of at least one is below 100 %."),
        (percent, "That is one rank alone. The step is slow if any rank is."),
        (100 * (1 - p) ** N, "That is the chance that nobody is slow."),
    ]
    return Number(100 * (1 - (1 - p) ** N), "%", slips=slips)


def mean_step(N: int, percent: float, times: float) -> Number:
    """The mean time of a synchronous step, in the time of a step without slow ranks."""
    p = percent / 100
    any_slow = 1 - (1 - p) ** N
    slips = [
        (1 + p * (times - 1), "That is the mean of one rank. A synchronous step takes the time of its slowest."),
        (1 + N * p * (times - 1), "Two slow ranks at once cost no more than one."),
        (times, "That is a step with a slow rank. Some steps have none."),
        (any_slow * times, "Steps without a slow rank take time as well."),
    ]
    return Number(1 + any_slow * (times - 1), "times", slips=slips)


def half_the_ranks() -> Choice:
    """What becomes of the steps with a slow rank, on half the ranks."""
    why = {
        "a": "Each rank that is not there cannot be the slow one.",
        "b": "Nearly so while slow ranks are rare. Where most steps have one, half the ranks change less.",
        "d": "A rank is as often slow as before.",
    }
    return Choice("c", why)
