"""Keys of chapter 8, loose synchrony. Bytes come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost.units import GB, MB
from labkit.grading.answers import Number, Several, Symbolic

# Who sets the pace ----------------------------------------------------------------------------------------------------

WINDOW = 600  # ms in which gradients are counted: a multiple of what the slow worker needs, whatever is drawn


def _slow(t: int, f: int) -> int:
    """Gradients of the slow worker."""
    return WINDOW // (f * t)


def bsp_count(N: int, t: int, f: int, s: int) -> Number:
    """Gradients that are applied under BSP."""
    right, fast = N * _slow(t, f), WINDOW // t
    slips = [
        (N * fast, "That is without the slow worker. Under BSP a step ends when its gradient is there."),
        ((N - 1) * fast + _slow(t, f), "That is when nobody waits. Under BSP all wait in each step."),
        (_slow(t, f), "Those are the steps. Each of them has a gradient of every worker."),
        ((N - 1) * _slow(t, f), "The slow worker brings gradients, too."),
    ]
    return Number.count(right, slips)


def asp_count(N: int, t: int, f: int, s: int) -> Number:
    """Gradients that are applied under ASP."""
    fast = WINDOW // t
    slips = [
        (N * fast, "One of the workers needs longer for each gradient."),
        ((N - 1) * fast, "The slow worker brings gradients, too."),
        (N * _slow(t, f), "That is BSP. Under ASP the others do not wait for the slow one."),
    ]
    return Number.count((N - 1) * fast + _slow(t, f), slips)


def ssp_count(N: int, t: int, f: int, s: int) -> Number:
    """Gradients that are applied under SSP: at the end a fast worker has finished s more than the slow one."""
    K, fast = _slow(t, f), WINDOW // t
    slips = [
        (N * (K + s), "The slow worker is not ahead of itself."),
        (N * K + s, "Each of the fast workers is ahead by s, not all of them together."),
        ((N - 1) * (K + s + 1) + K, "Nearly: a worker begins with a lead of s at the most. When the window ends, the "
         "gradient that the slow one's last update allows has not been computed yet."),
        ((N - 1) * fast + K, "That is ASP. Here the fast workers wait once they are s ahead."),
        (N * K, "That is BSP. Here the fast workers may be s ahead."),
        ((N - 1) * (K + s), "The slow worker brings gradients, too."),
    ]  # fmt: skip
    return Number.count((N - 1) * (K + s) + K, slips)


def nothing_gained(N: int, t: int, f: int, s: int) -> Number:
    """Seconds after which SSP has less than 1 % more gradients than BSP."""
    right = 100 * s * (N - 1) / N * f * t / 1000
    slips = [
        (right / f, "The slow worker sets the pace: a step takes f times t."),
        (right / 100, "That is when SSP has as many gradients again as BSP. You want a part in a hundred of it."),
        (100 * s * (N - 1) * f * t / 1000, "Compare with all gradients of BSP. Each step has N of them."),
        (right * N / (N - 1), "The slow worker is not ahead of itself: N - 1 workers are."),
        (right * 1000, "That is in milliseconds."),
    ]
    return Number.of(right, "s", slips, 0.02)


# The oldest gradients -------------------------------------------------------------------------------------------------


def _taus(N: int, f: int) -> tuple[float, float]:
    """Mean staleness of the slow worker's gradients, and of a fast worker's."""
    return float(f * (N - 1)), N - 2 + 1 / f


def tau_slow(N: int, f: int) -> Number:
    """Mean staleness of the slow worker's gradients."""
    slips = [
        (float(N - 1), "That is with equal workers. Here each of the others brings f gradients meanwhile."),
        (float(f * N), "Its own update is not one that came in between."),
        (float(f), "Each of the others brings so many meanwhile."),
        (float((f - 1) * (N - 1)), "Each of the others brings f gradients in that time, not f - 1."),
        (float(f * (N - 1) + 1), "Its own update is not one that came in between."),
    ]
    return Number.of(_taus(N, f)[0], "", slips)


def tau_fast(N: int, f: int) -> Number:
    """Mean staleness of a fast worker's gradients."""
    slips = [
        (float(N - 1), "That is with equal workers. The slow one does not bring a whole update in that time."),
        (float(N - 2), "The slow worker brings an update now and then, too: in one of f such times."),
        (N - 1 + 1 / f, "Its own update is not one that came in between: only N - 2 other fast ones are left."),
        (float(N - 2 + f), "In the time of one fast gradient the slow worker brings a part of an update, not f."),
    ]
    return Number.of(_taus(N, f)[1], "", slips, 0.005)


def tau_mean(N: int, f: int) -> Number:
    """Mean staleness of all gradients: N - 1, whoever is slow."""
    slow, fast = _taus(N, f)
    slips = [
        (((N - 1) * fast + slow) / N, "You counted each worker once. Count each gradient: a fast worker brings f times "
         "as many."),
        ((slow + fast) / 2, "There are more fast workers than slow ones, and each brings more gradients."),
        (float(N), "Its own update does not count."),
        (fast, "That is a fast worker. The slow one's gradients are few, but they are very old."),
    ]  # fmt: skip
    return Number.of(float(N - 1), "", slips, 0.005)


def _share(N: int, f: int, power: float) -> float:
    """Percent of all rates that belong to the slow worker, if a gradient's rate is (1 + tau)^-power."""
    slow, fast = _taus(N, f)
    own = (1 + slow) ** -power / f
    return 100 * own / ((N - 1) * (1 + fast) ** -power + own)


def slow_share(N: int, f: int) -> Number:
    """Percent of the gradients that are the slow worker's."""
    slips = [
        (100 / N, "That is its share of the workers, and under BSP of the gradients, too."),
        (100 / (N * f), "The others together bring (N - 1) f gradients, while it brings one."),
        (100 / (f * (N - 1)), "Compare with all gradients, its own included."),
        (_share(N, f, 0.5), "That is with the rule. Here gradients are only counted."),
    ]
    return Number.of(_share(N, f, 0), "%", slips)


def slow_share_by_root(N: int, f: int) -> Number:
    """The same in rates that are divided by sqrt(1 + tau)."""
    slow, fast = _taus(N, f)
    slips = [
        (_share(N, f, 0), "That is without the rule. Old gradients count for less now."),
        (_share(N, f, 1), "That divides by 1 + tau. The rule has its root."),
        (_share(N, f, 0) / math.sqrt(1 + slow), "The gradients of the fast workers are divided as well."),
        (100 * slow**-0.5 / f / ((N - 1) * fast**-0.5 + slow**-0.5 / f), "The rule divides by the root of 1 + tau."),
        (100 * (1 + slow) ** -0.5 / ((N - 1) * (1 + fast) ** -0.5 + (1 + slow) ** -0.5), "The slow worker brings one "
         "gradient where each of the others brings f."),
    ]  # fmt: skip
    return Number.of(_share(N, f, 0.5), "%", slips)


# Rounds that pay ------------------------------------------------------------------------------------------------------

BEGIN, STEPS, PART = 2_000, 20_000, 0.1  # steps that average each time; of all; of the time that may be messages
LINK = 1.25 * GB  # bytes per second


def _all_reduce(N: int, W: int) -> float:
    """Seconds of one average, by ring, without latencies."""
    return cost.ring_all_reduce_time(W * MB, N, 0, 1 / LINK)


def percent_messages(N: int, W: int, c: int, H: int) -> Number:
    """Percent of the time that goes into messages with an average in each step."""
    A = _all_reduce(N, W)
    slips = [
        (100 * A / (c / 1000), "That compares with the computing. Compare with the whole step."),
        (100 * A / 2 / (A / 2 + c / 1000), "An all-reduce sends 2 (N - 1) / N of the weights, and not once."),
        (100 * (c / 1000) / (A + c / 1000), "That is the part in which it computes."),
        (100 * A / H / (A / H + c / 1000), "That is with H steps in a round. Begin with an average in each step."),
        (100 * A * N / (A * N + c / 1000), "All ranks send at the same time: 2 (N - 1) / N of the weights each."),
    ]
    return Number.of(100 * A / (A + c / 1000), "%", slips)


def least_h(N: int, W: int, c: int, H: int) -> Number:
    """The smallest H with which messages take at most 10 % of the time."""
    A = _all_reduce(N, W)

    def enough(part: float) -> int:
        return math.ceil(A / (c / 1000) * (1 - part) / part - 1e-9)

    slips = [
        (math.ceil(A / (c / 1000) / PART - 1e-9), "Then messages take a tenth of the *computing*, which is less than a "
         "tenth of all time. A smaller H will do."),
        (math.ceil(A / (c / 1000) - 1e-9), "Then messages take half of the time."),
        (enough(PART) - 1, "With this H it is a little more than 10 %: round up."),
        (enough(1 - PART), "Upside down: then messages take 90 % of the time."),
    ]  # fmt: skip
    return Number.count(enough(PART), slips)


def gigabytes_sent(N: int, W: int, c: int, H: int) -> Number:
    """GB that a rank sends in all steps of post-local SGD."""
    numel = W * 1_000_000 // 4

    def sent(every: int, start: int, steps: int = STEPS) -> float:
        return cost.local_sgd_bytes_by_rank(numel, 4, N, steps, every, start)[0] / GB

    right = sent(H, BEGIN)
    slips = [
        (sent(H, 0), "In the first steps there is an average each time."),
        (sent(1, 0), "That is an average in each step to the end."),
        (sent(H, 0, STEPS - BEGIN), "You left out the first steps."),
        (sent(H, 0) + sent(1, 0, BEGIN), "The first steps are not made twice: so many fewer are left for the rounds."),
        (right / 2, "An all-reduce sends 2 (N - 1) / N of the weights: there and back."),
        (right * N / (N - 1), "In a ring a rank keeps its own part: 2 (N - 1) / N of the weights, and not 2."),
    ]
    return Number.of(right, "GB", slips)


def times_as_fast() -> Symbolic:
    """How much faster H steps a round are than one."""
    slips = [
        ("H", "That is as if computing took no time."),
        ("(c + A/H)/(c + A)", "Upside down: it should be above 1."),
        ("(c + A)/(H*c + A)", "A round with H steps does the work of H steps. Compare the time of *one* step."),
        ("(c + A)/c", "That is the limit for a very large H. One all-reduce in H steps is left."),
    ]
    return Symbolic("(c + A)/(c + A/H)", "c A H", slips)


def equal_to_averaged_gradients() -> Several:
    """When the average of weights is what averaged gradients had given."""
    why = {
        "a": "write down the mean of x - rate * g over the ranks, where x is the same on all of them.",
        "b": "AdamW divides by the root of its own mean of squares. Is the mean of quotients the quotient of means?",
        "c": "a rank whose gradient is too long is cut by itself, before the average. Averaged gradients may be short.",
        "d": "the velocity is a sum of gradients, and so is the step. What is the mean of sums?",
        "e": "there the gradient of a rank is A x minus a constant of its own. What is the mean of A x over ranks that "
        "have drifted apart?",
    }
    return Several("ade", why)


# A star, and a number that is not the mean ----------------------------------------------------------------------------


def agreed(N: int, a: int) -> Number:
    """What all ranks of a star come to, if each takes the plain mean of itself and its neighbours."""
    weight = N / (3 * N - 2)
    slips = [
        (a / N, "That is the mean. The columns of this matrix do not add up to 1, so the mean moves."),
        (a / 2, "The hub has half of all edges, but each rank also hears itself."),
        (a / (3 * N - 2), "That is what a rank with one weight of its own would count. How many hear the hub?"),
        (float(a), "The hub hears the others, too, and they have 0."),
        (0.0, "Nothing is lost: each takes a mean, and the hub's number is in all of them."),
        (a * (N - 1) / (3 * N - 2), "Nearly: the hub also hears itself."),
        (a / 2 * (1 + 1 / N), "Repeat it until nothing changes any more, not only for one or two rounds."),
    ]
    return Number.of(a * weight, "", slips)


def leaf_keeps(N: int, a: int) -> Number:
    """The weight that a leaf gives to itself, by the Metropolis rule."""
    slips = [
        (0.5, "That was before. An edge gets 1 / (1 + the *larger* degree), and the hub's is large."),
        (1 / N, "That is the weight of its edge. The rest is for itself."),
        (1 - 1 / (N - 1), "The hub has N - 1 neighbours. Add 1 before you divide."),
        (1 - 1 / (N + 1), "The hub has N - 1 neighbours, and N with itself."),
    ]
    return Number.of(1 - 1 / N, "", slips, 0.002)


def _rounds(rate: float, part: float = 0.01) -> int:
    return math.ceil(math.log(part) / math.log(rate) - 1e-9)


def star_rounds(N: int, a: int) -> Number:
    """Rounds after which differences are surely down to 1 %, on the star with Metropolis weights."""
    right = _rounds(1 - 1 / N)
    slips = [
        (2, "After two rounds everybody has heard of everybody, but the hub's number has only begun to spread."),
        (right - 1, "It is a little more than 1 % then: round up."),
        (_rounds(1 - 1 / N, 0.1), "That is 10 %."),
        (_rounds(1 - 1 / N, 0.001), "That is 0.1 %."),
        (math.ceil(0.99 * N), "Each round takes away a part of what is *left*, so it is a power and not a product."),
        (_rounds(1 / N), "The mixing rate is what is left after a round, 1 - 1/N here."),
    ]
    return Number.count(right, slips)


def ring_rounds(N: int, a: int) -> Number:
    """The same on a ring."""
    rate = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / N)
    right = _rounds(rate)
    slips = [
        (_rounds(1 - 1 / N), "That is the star. A ring has another mixing rate."),
        (_rounds(1 / 3 + 2 / 3 * math.cos(math.pi / N)), "The angle is a whole turn over N, which is 2 pi / N."),
        (N // 2, "After so many rounds the news is on the other side, but as a small part only."),
        (right - 1, "It is a little more than 1 % then: round up."),
        (_rounds(rate, 0.1), "That is 10 %."),
        (_rounds(rate, 0.001), "That is 0.1 %."),
    ]
    return Number.count(right, slips)


# Thin, and thinner ----------------------------------------------------------------------------------------------------


def _power(n: int, m: int, r: int, N: int) -> int:
    return cost.power_sgd_bytes_by_rank([(n, m)], r, N)[0]


def power_megabytes(n: int, m: int, r: int, N: int) -> Number:
    """MB that a rank sends for one matrix with PowerSGD."""
    right = _power(n, m, r, N) / MB
    payload = 4 * r * (n + m) / MB
    slips = [
        (payload, "That is P and Q once. A ring all-reduce sends 2 (N - 1) / N of each."),
        (right / 2, "An all-reduce is a reduce-scatter and an all-gather, (N - 1) / N each."),
        (2 * payload, "A rank keeps its own part of the ring: 2 (N - 1) / N, and not 2."),
        (right * n / (n + m), "That is P alone. Q travels as well."),
        (right / 4, "A number in float32 has 4 bytes."),
        (4 * n * m * 2 * (N - 1) / N / MB, "That is the whole gradient."),
    ]
    return Number.of(right, "MB", slips)


def if_gathered(n: int, m: int, r: int, N: int) -> Number:
    """Times as many bytes, if P and Q of each rank were gathered by all."""
    slips = [
        (float(N), "In a sum the factors go around nearly twice: 2 (N - 1) / N against N - 1."),
        (float(N - 1), "That is how many payloads are gathered. What does an all-reduce send of one?"),
        (2.0, "In an all-gather every rank needs what all the others have."),
        (2 / N, "Upside down."),
    ]
    right = cost.gathered_payload_bytes(4 * r * (n + m), N) / _power(n, m, r, N)
    return Number.of(right, "", slips)


def same_k(n: int, m: int, r: int, N: int) -> Number:
    """How many numbers of the matrix top-k may send for the same bytes."""
    right = r * (n + m) / N
    slips = [
        (2 * right, "Each number travels with its place, 8 bytes together."),
        (right / 2, "An all-reduce sends 2 (N - 1) / N of the factors."),
        (right * N, "That is without the gathering: a payload of top-k leaves a rank N - 1 times."),
        (
            float(r * (n + m)) / 2,
            "That is the same payload. But top-k's payload is gathered, and PowerSGD's is summed.",
        ),
        (100 * right / (n * m), "That is in percent of the matrix. How many numbers are it?"),
    ]
    return Number.of(right, "", slips)


def vote_megabytes(n: int, m: int, r: int, N: int) -> Number:
    """MB that a rank sends for the matrix by majority vote."""
    right = cost.majority_vote_bytes_by_rank(n * m, N)[0] / MB
    slips = [
        (cost.gathered_payload_bytes(n * m // 8, N) / MB, "That gathers all votes everywhere. Here each rank counts "
         "one part."),
        (right / 2, "The votes go to who counts, and then the results go to everybody."),
        (n * m / 8 / MB, "That is one bit for each number, once. How often does a bit travel?"),
        (8 * right, "A vote is one bit, and eight of them are a byte."),
    ]  # fmt: skip
    return Number.of(right, "MB", slips)


def largest_rank(n: int, m: int, r: int, N: int) -> Number:
    """The largest rank with which PowerSGD sends fewer bytes than the vote."""
    votes = cost.majority_vote_bytes_by_rank(n * m, N)[0]
    right = max(k for k in range(1, min(n, m)) if _power(n, m, k, N) < votes)
    slips = [
        (right + 1, "With so many it sends as much, or more."),
        (right - 1, "One more still sends less."),
        (n * m // (n + m), "That is where the factors have as many numbers as the matrix. A vote is one bit of 32."),
        (n * m // (4 * (n + m)), "A vote is one *bit*, not one byte."),
        (n * m // (32 * n), "That is P alone. Q travels as well."),
    ]
    return Number.count(right, slips)
