"""Keys of chapter 3, collectives. Numbers come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

from labkit import cost
from labkit.cost import slow_sync, textbook
from labkit.cost.units import GB, MB, MS, US
from labkit.grading.answers import Choice, Number, Symbolic


def ring_megabytes(N: int, M: float) -> Number:
    """MB that each rank of a ring all-reduce of M MB sends."""
    slips = [
        (2 * M, "That is the limit for very many ranks. In each phase a rank leaves out one chunk of N."),
        ((N - 1) / N * M, "That is one phase of the two."),
        ((N - 1) * M, "That is what rank 0 sends when everything goes through it. No rank of a ring is special."),
        (
            2 * (N - 1) * M,
            "You counted a whole tensor in every round, or all ranks together. A round carries one chunk.",
        ),
        (2 * M / N, "That is one round of each phase."),
    ]
    return Number(cost.ring_all_reduce_bytes(M, N), "MB", slips=slips)


PAYLOAD = textbook.tensor_parallel_payload_bytes(4, 2048, 4096)


def megabytes_sent(t: int) -> Number:
    """MB that each of t GPUs really sends for the textbook's payload."""
    slips = [
        (2 * PAYLOAD / MB, "That is the number to be corrected: its factor is 2, for infinitely many GPUs."),
        ((t - 1) / t * PAYLOAD / MB, "That is one phase: a reduce-scatter."),
        (PAYLOAD / MB, "That is the payload itself."),
    ]
    return Number(cost.ring_all_reduce_bytes(PAYLOAD, t) / MB, "MB", slips=slips)


def too_high(t: int) -> Number:
    """By how many percent the stated number is too high."""
    right, stated = cost.ring_all_reduce_bytes(PAYLOAD, t), 2 * PAYLOAD
    slips = [
        (100 * (1 - right / stated), "You divided by the stated number. Divide by the right one."),
        (100 * stated / right, "That is the stated number as a percentage of the right one. Take 100 away."),
    ]
    return Number(100 * (stated / right - 1), "%", slips=slips)


def ring_time() -> Symbolic:
    """The alpha-beta time of a ring all-reduce."""
    slips = [
        ("2*(N-1)/N*M*beta", "That is the term of the bytes. Which one does the chapter leave out?"),
        ("2*alpha + 2*(N-1)/N*M*beta", "You pay one latency a phase. It is one for every round of it."),
        ("(N-1)*alpha + (N-1)/N*M*beta", "That is one phase: a reduce-scatter."),
        ("2*(N-1)*alpha + 2*M*beta", "The bytes are not quite 2 M: a rank leaves out a chunk in each phase."),
        ("2*(N-1)*(alpha + M*beta)", "A round carries one chunk, not the whole tensor."),
        ("2*log2(N)*alpha + 2*(N-1)/N*M*beta", "Those are the rounds of halving and doubling. A ring has more."),
        ("2*N*alpha + 2*(N-1)/N*M*beta", "Nearly: how many rounds does a phase have with two ranks?"),
    ]
    return Symbolic("2*(N-1)*alpha + 2*(N-1)/N*M*beta", "N M alpha beta", slips)


def latency_share(N: int, alpha_us: float, M: float, GB_per_second: float) -> Number:
    """Percent of that time that latencies take."""
    beta = 1 / (GB_per_second * GB)
    whole = cost.ring_all_reduce_time(M * MB, N, alpha_us * US, beta)
    transfer = cost.ring_all_reduce_time(M * MB, N, 0, beta)
    latency, few = whole - transfer, 2 * alpha_us * US
    slips = [
        (100 * latency / transfer, "That is latency divided by the time of the bytes. Divide by the whole time."),
        (100 * few / (few + transfer), "You paid the latency twice. A ring pays it in every round."),
        (100 * transfer / whole, "That is the share of the bytes."),
    ]
    return Number(100 * latency / whole, "%", slips=slips)


def gigabytes(ms: float) -> Number:
    """GB of the tensor that one flat ring of the case file reduces in `ms`."""
    right = slow_sync.message_bytes(ms * MS) / GB
    slips = [
        (2 * right, "A ring sends nearly twice the tensor: a reduce-scatter, then an all-gather."),
        (8 * right, "Bits and bytes: 200 Gb/s are 25 GB/s. And one flat ring leaves a node by one port, not by eight."),
        (ms * MS * slow_sync.NVLINK_BOTH_DIRECTIONS / GB, "That is NVLink, one way and once. The slowest link counts."),
    ]
    return Number(right, "GB", slips=slips)


def what_follows() -> Choice:
    """What a time without a size says."""
    why = {
        "a": "For the size that you have just computed, a flat ring takes exactly this time.",
        "b": "It fits a flat ring of one size, and a hierarchical all-reduce of a larger one.",
        "c": "Congestion explains a gap to an expected time, and without a size nothing can be expected.",
    }
    return Choice("d", why)


def out_holds(N: int) -> Number:
    """An entry of `out` when the reduce-scatter sums what is summed already."""
    once = sum(range(N))
    slips = [
        (once, "That is the sum after the first call. The second call sums it over all ranks again."),
        (N * sum(range(1, N + 1)), "Ranks count from 0."),
        (once / N, "A reduce-scatter cuts the tensor into parts. The numbers are summed, not divided."),
    ]
    return Number(N * once, "", 1e-9, slips)


def meant(N: int) -> Number:
    """An entry of `out` after the reduce-scatter alone."""
    slips = [(sum(range(1, N + 1)), "Ranks count from 0."), (N, "Rank r brings the number r, not 1.")]
    return Number(sum(range(N)), "", 1e-9, slips)


def times_the_bytes(N: int) -> Number:
    """The bytes of both calls, in those of the reduce-scatter."""
    alone = cost.ring_reduce_scatter_bytes(1, N)
    slips = [
        (2, "That is the all-reduce alone. The reduce-scatter comes on top."),
        (1, "Two calls cannot send as much as one of them."),
    ]
    return Number((cost.ring_all_reduce_bytes(1, N) + alone) / alone, "times", 1e-9, slips)


def crossover() -> Symbolic:
    """The size at which recursive doubling and a ring take the same time."""
    slips = [
        ("alpha/beta * (2*(N-1) - log2(N)) / (log2(N) - 2)", "The bytes of the ring are a little less than 2 M."),
        (
            "alpha/beta * ((N-1) - log2(N)) / (log2(N) - (N-1)/N)",
            "The ring has two phases of N-1 rounds each, recursive doubling has one of log2 N: partners exchange.",
        ),
        ("beta/alpha * (2*(N-1) - log2(N)) / (log2(N) - 2*(N-1)/N)", "Units: alpha/beta is a number of bytes."),
        ("alpha/beta * (log2(N) - 2*(N-1)) / (log2(N) - 2*(N-1)/N)", "Your size is negative: a sign was lost."),
    ]
    return Symbolic("alpha/beta * (2*(N-1) - log2(N)) / (log2(N) - 2*(N-1)/N)", "N alpha beta", slips)
