"""Keys of chapter 14, low precision. Formats come from labkit.optim.precision; each slip is one that people make."""

from __future__ import annotations

from math import ceil, floor, log2

from labkit import cost
from labkit.cost.units import GB, MB, US
from labkit.grading.answers import Number, Several
from labkit.optim.precision import E4M3, E5M2, Format

# A format of your own -------------------------------------------------------------------------------------------------


def _format(e: int, m: int, specials: str = "ieee") -> Format:
    return Format("", e, m, specials)


def largest(e: int, m: int) -> Number:
    """The largest number, if the largest exponent is kept for infinities and NaN."""
    bias = _format(e, m).bias
    slips = [
        (_format(e, m, "none").max, "That has the largest exponent, all ones, and it is taken by infinities and NaN."),
        (2.0**bias, "That is the power of two alone. The mantissa is all ones there."),
        (2.0 ** (bias + 1), "Nearly: the mantissa ends one step before the next power of two."),
        (_format(e, m).max / 2, "The largest exponent that is left is 2^e - 2. What is it without the bias?"),
    ]
    return Number.of(_format(e, m).max, "", slips, 0.001)


def smallest(e: int, m: int) -> Number:
    """The smallest number above 0."""
    one = _format(e, m)
    slips = [
        (one.smallest_normal, "That is the smallest normal number. The subnormal ones reach further down."),
        (one.smallest / 2, "An exponent of 0 stands for the same power of two as an exponent of 1, 2^(1 - bias)."),
        (one.smallest_normal / 2, "With an exponent of 0 there is no leading 1."),
        (2 * one.smallest, "The mantissa has m bits, so its smallest fraction is 2^-m."),
    ]
    return Number.of(one.smallest, "", slips, 0.001)


def how_many(e: int, m: int) -> Number:
    """How many different finite numbers there are; 0 counts once."""
    codes = 2 ** (1 + e + m)
    taken = 2 ** (1 + m)
    slips = [
        (codes, "That is all codes. Some of them are infinities and NaN."),
        (codes - 1, "That is all codes, with 0 counted once. Some of them are infinities and NaN."),
        (codes - taken, "Two codes mean 0: with a plus and with a minus."),
        ((codes - taken) // 2, "That is one sign."),
        (codes - taken - 2, "Only one code is too many: 0 with a minus is the same number as 0."),
    ]
    return Number.count(codes - taken - 1, slips)


def largest_with_one_nan(e: int, m: int) -> Number:
    """The largest number, if only the last code of each sign is a NaN."""
    slips = [
        (_format(e, m, "none").max, "That is the code that is the NaN. Take the one below it."),
        (_format(e, m).max, "Now the largest exponent has numbers as well."),
        (_format(e, m, "nan").max / 2, "Now the largest exponent is 2^e - 1. What is it without the bias?"),
    ]
    return Number.of(_format(e, m, "nan").max, "", slips, 0.001)


def whole_numbers(e: int, m: int) -> Number:
    """The largest n such that 0, 1, ..., n are all numbers of the format."""
    slips = [
        (2**m, "The leading 1 is not stored, so there is one bit more than the mantissa has."),
        (2 ** (m + 1) - 1, "The next one is a power of two, and so it is a number of the format as well."),
        (2 ** (m + 1) + 1, "That is the first one that is missing."),
        (2 ** (m + 2), "Before that the step is 2 already, and every other whole number is missing."),
    ]
    return Number.count(2 ** (m + 1), slips)


# What eight bits are worth --------------------------------------------------------------------------------------------


def held_gb(P: int, B: int, a: int, c: int) -> Number:
    """GB: weights in 8 bits, gradients in BF16, master weights, and Adam's two states in 8 bits by blocks."""
    state = 1 + 4 / B
    slips = [
        (P * (1 + 2 + 4 + 2), "You left out the scales of the blocks."),
        (P * (1 + 2 + 4 + state), "Adam keeps two numbers for each weight."),
        (P * (1 + 2 + 2 * state), "You left out the master weights."),
        (P * (1 + 2 + 4 + 8), "That has Adam's states in 32 bits."),
        (P * (1 + 1 + 4 + 2 * state), "The gradients are BF16, so they have 2 bytes."),
        (P * (2 + 2 + 4 + 2 * state), "The weights that are computed with have one byte."),
        (16.0 * P, "That is training in BF16, with everything of the optimizer in 32 bits."),
    ]
    return Number.of(P * (1 + 2 + 4 + 2 * state), "GB", slips, 0.001)


def step_percent(P: int, B: int, a: int, c: int) -> Number:
    """How long a step takes, in percent of what it took: products and messages take half of their time."""
    right = 100 - a / 2 - c / 2
    slips = [
        (50.0, "Only the products and the messages take half of their time."),
        (100 - a / 2, "The messages have half of the bytes as well."),
        (100 - c / 2, "The products take half of their time as well."),
        (100.0 - a - c, "Products and messages still take half of their time."),
        (a / 2 + c / 2, "That is by how much it is shorter, or only a part of what is left."),
    ]
    return Number.of(right, "%", slips)


def times_as_many(P: int, B: int, a: int, c: int) -> Number:
    """How many times as many steps an hour has."""
    left = 1 - (a + c) / 200
    slips = [
        (2.0, "Only the products and the messages become twice as fast."),
        (1 + (a + c) / 200, "A step is shorter by that much. How many shorter steps fit into the same hour?"),
        (left, "That is the length of a step. Turn it around."),
        (1 / (1 - a / 200), "That is the products alone. The messages have half of the bytes as well."),
    ]
    return Number.of(1 / left, "", slips)


def times_at_most(P: int, B: int, a: int, c: int) -> Number:
    """The same, if the products took no time at all."""
    slips = [
        (1 / (1 - a / 100), "That has the messages in BF16. They stay in eight bits."),
        (1 / (1 - (a + c) / 100), "The messages still take half of their time."),
        (1 / (1 - (a + c) / 200), "That has products that are twice as fast. Now they take no time."),
        (100 / a, "The products are gone. What is left of a step?"),
    ]
    return Number.of(1 / (1 - a / 100 - c / 200), "", slips)


def percent_needed(P: int, B: int, a: int, c: int) -> Number:
    """The percentage that products must have taken, for half as many steps again; messages as given."""
    right = 100 * 2 / 3 - c
    slips = [
        (100 * 2 / 3, "That is without the messages. They give a part of the gain."),
        (100 - c, "That is a step that is half as long. It has to be two thirds as long."),
        (50.0, "If an hour has 1.5 times as many steps, a step is 1/1.5 as long: not half."),
        (100.0 / 3 - c, "Products lose half of their time, so they must have taken twice what is to be saved."),
        (100 * 2 / 3 - c / 2, "The messages lose half of their time, so that is c/2 of what is saved, and products "
         "lose half of theirs, too."),
    ]  # fmt: skip
    return Number.of(right, "%", slips, 0.005)


# A window for the scale -----------------------------------------------------------------------------------------------


def _highest(a: int, g: int, format: Format) -> int:
    """The largest power of two with which `g` times the amax is not above the largest number."""
    return floor(log2(format.max / (a * 1e-6 * g)))


def _lowest(a: int, r: float, format: Format) -> int:
    """The smallest power of two with which the amax over `r` thousand is a normal number."""
    return ceil(log2(format.smallest_normal * 1e3 * r / (a * 1e-6)))


def highest_power(a: int, r: int, g: int) -> Number:
    """The exponent of the largest scale of E4M3 with which nothing saturates in the next step either."""
    right = _highest(a, g, E4M3)
    slips = [
        (_highest(a, 1, E4M3), "That fits today. In the next step the tensor may have grown."),
        (right + 1, "With this scale the largest number of the next step may be above 448."),
        (right - 1, "There is room for one power of two more."),
        (_highest(a, g, E5M2), "57,344 is the largest number of E5M2."),
        (-right, "That makes the tensor smaller. Its numbers are small already."),
    ]
    return Number.count(right, slips)


def lowest_power(a: int, r: int, g: int) -> Number:
    """The exponent of the smallest scale of E4M3 with which the smallest number that matters keeps all digits."""
    right = _lowest(a, r, E4M3)
    slips = [
        (right - 1, "With this scale that number is below 2^-6, where digits are lost."),
        (right + 1, "One power of two less is enough."),
        (right - 3, "With this one it is above 0, but subnormal. It should keep all digits."),
        (_lowest(a, r, E5M2), "2^-14 is the smallest normal number of E5M2."),
        (-right, "That makes the tensor smaller. Its numbers are small already."),
    ]
    return Number.count(right, slips)


def powers_of_e5m2(a: int, r: int, g: int) -> Number:
    """How many powers of two would do the same in E5M2."""
    right = _highest(a, g, E5M2) - _lowest(a, r, E5M2) + 1
    slips = [
        (right - 1, "Count both ends."),
        (_highest(a, g, E4M3) - _lowest(a, r, E4M3) + 1, "That is E4M3."),
        (_highest(a, 1, E5M2) - _lowest(a, r, E5M2) + 1, "In the next step the tensor may have grown."),
        (right + 2, "That has subnormal numbers. The smallest number that matters should keep all digits."),
        (right + 1, "One too many. The smallest one needs to be rounded up, and the largest one down."),
    ]
    return Number.count(right, slips)


def off_percent(a: int, r: int, g: int) -> Number:
    """By how much a number 16 times below the smallest that matters may be off, with the highest scale of E4M3."""
    there = a * 1e-6 / (r * 1e3 * 16) * 2.0 ** _highest(a, g, E4M3)
    right = 100 * E4M3.smallest / 2 / there
    slips = [
        (2 * right, "It is rounded to the nearest one, so it is off by half a step at most."),
        (100 * E4M3.epsilon / 2, "That is the bound for normal numbers. This one is subnormal, and steps no longer "
         "shrink with the number."),
        (100 * E4M3.smallest_normal / 2 / there, "The steps of subnormal numbers are 2^-9, and not 2^-6."),
        (right / 16, "That is the smallest number that matters. This one is 16 times smaller."),
    ]  # fmt: skip
    return Number.of(right, "%", slips)


# Where a sum stands still ---------------------------------------------------------------------------------------------


def stands_at(p: int, t: int, L: int, d: int, k: int) -> Number:
    """The size at which a sum of terms `t` no longer moves, with p significant bits."""
    up = ceil(log2(t))
    slips = [
        (2**p, "That is where terms of 1 are lost. These are larger."),
        (2 ** (p - 1), "There even a term of 1 is a whole step."),
        (t * 2**p, "A step only doubles at powers of two."),
        (2 ** (p + up - 1), "There half a step is less than the term, so the sum still moves."),
        (2 ** (p + up + 1), "It never gets there: half a step was larger than the term before."),
    ]
    return Number.count(2 ** (p + up), slips)


def lost_percent(p: int, t: int, L: int, d: int, k: int) -> Number:
    """Percent of a sum of L thousand ones that are missing."""
    ones = 1000 * L
    slips = [
        (100 * 2**p / ones, "That is what the sum has. What is missing?"),
        (100 * (1 - 2 ** (p - 1) / ones), "The leading 1 is one of the p bits, so the sum reaches 2^p."),
        (100 * (1 - 2 ** (p + 1) / ones), "At 2^p a one is half a step, and a tie goes to the even neighbour."),
    ]
    return Number.of(100 * (1 - 2**p / ones), "%", slips, 0.002)


def largest_chunk(p: int, t: int, L: int, d: int, k: int) -> Number:
    """The most terms of a partial sum, if the smallest is 2^d below the largest and shall not be lost."""
    slips = [
        (2**p, "That is if all terms are alike. The last one may be smaller than those before it."),
        (2 ** (p - d + 1), "There the sum of large terms is so large that a small one is half a step of it."),
        (2 ** (p - d) + 1, "Then the sum has come to 2^p of the smallest terms, and the next small one is lost."),
        (2 ** (p - d) - 1, "One more is possible: only what comes *before* the last term must stay below."),
        (2 ** (p - d - 1), "Twice as many are possible."),
        (2**d, "That is how many times larger the large terms are."),
    ]
    return Number.count(2 ** (p - d), slips)


def updates_until(p: int, t: int, L: int, d: int, k: int) -> Number:
    """Updates of k / 10,000 to a master weight of 1 until its BF16 copy has another value."""
    u = k * 1e-4
    right = floor(2.0**-8 / u) + 1
    slips = [
        (floor(2.0**-7 / u) + 1, "The copy is rounded to the nearest number, so half a step is enough."),
        (floor(2.0**-9 / u) + 1, "Above 1 the step of BF16 is 2^-7. Below 1 it is 2^-8."),
        (right - 1, "There the master is not past the middle yet."),
        (right + 1, "It happens one update earlier."),
    ]
    return Number.count(right, slips)


def what_helps() -> Several:
    """What makes a BF16 weight follow updates of less than half a step."""
    why = {
        "a": "the expectation of the rounded weight is the exact one, so in the long run it moves.",
        "b": "gradients are divided by the scale again before the optimizer sees them. How large is the update then?",
        "c": "what is not applied yet is kept, until it is large enough to be seen.",
        "d": "the update itself is not too small for the format. What is too small beside what?",
        "e": "what is remembered of the rounding, in the next step?",
    }
    return Several("ac", why)


# Bytes against rounds -------------------------------------------------------------------------------------------------


def _sent(N: int, n: int, each: float) -> float:
    """Bytes that a rank sends for an all-reduce of n million numbers of `each` bytes."""
    return cost.ring_all_reduce_bytes(n * 1e6 * each, N)


def _seconds(N: int, n: int, each: float, us: float, G: float) -> float:
    return cost.ring_all_reduce_time(n * 1e6 * each, N, us * US, 1 / (G * GB))


def sent_in_bf16(N: int, n: int, B: int, us: int, G: int, k: int) -> Number:
    """MB that a rank sends."""
    right = _sent(N, n, 2) / MB
    slips = [
        (right / 2, "That is one of two halves: the parts come together, and then the sums go to everyone."),
        (2 * right, "BF16 has 2 bytes."),
        (2.0 * 2 * n, "A rank keeps one of its N parts."),
        (2.0 * n * (N - 1), "Only part r of a tensor goes to rank r."),
    ]
    return Number.of(right, "MB", slips, 0.005)


def sent_in_fp8(N: int, n: int, B: int, us: int, G: int, k: int) -> Number:
    """MB that a rank sends, with a scale of 4 bytes for each block."""
    each = 1 + 4 / B
    right = _sent(N, n, each) / MB
    slips = [
        (_sent(N, n, 1) / MB, "You left out the scales."),
        (right / 2, "That is one of two halves: the parts come together, and then the sums go to everyone."),
        (_sent(N, n, 1 + 1 / B) / MB, "A scale has 4 bytes here."),
        (2.0 * n * each, "A rank keeps one of its N parts."),
        (_sent(N, n, 1 + 4 * B) / MB, "There is one scale for B numbers, and not B scales for one."),
    ]
    return Number.of(right, "MB", slips, 0.005)


def times_faster(N: int, n: int, B: int, us: int, G: int, k: int) -> Number:
    """How many times as long BF16 takes, if packing were free."""
    narrow = 1 + 4 / B
    times = (_seconds(N, n, each, us, G) for each in (2, narrow))
    bytes_only = 2 / narrow
    once = [us * US + _seconds(N, n, each, 0, G) for each in (2, narrow)]
    right = next(times) / next(times)
    slips = [
        (2.0, "Neither the scales nor the latencies become less."),
        (bytes_only, "That is the bytes. Each of the rounds also has its latency, with 16 bits as with 8."),
        (once[0] / once[1], "Each of the 2 (N - 1) rounds has its latency."),
        (1 / right, "Turn it around: how many times as long does BF16 take?"),
    ]
    return Number.of(right, "", slips, 0.002)


def even_bandwidth(N: int, n: int, B: int, us: int, G: int, k: int) -> Number:
    """GB/s at which both take equally long, if packing and unpacking cost k microseconds for a million numbers."""
    saved = _sent(N, n, 2) - _sent(N, n, 1 + 4 / B)
    right = saved / (n * k * US) / GB
    slips = [
        (_sent(N, n, 1) / (n * k * US) / GB, "You left out the scales."),
        (_sent(N, n, 2) / (n * k * US) / GB, "That compares packing with all bytes. Which of them are saved?"),
        (right / 2, "The saving is in both halves of the all-reduce."),
        (right / n, "Packing takes longer for more numbers, too."),
        (right * N / (N - 1), "A rank keeps one of its N parts."),
    ]
    return Number.of(right, "GB/s", slips)
