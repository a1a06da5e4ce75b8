"""Keys of chapter 6, scaling efficiency. Numbers come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost.units import GB, MS, US
from labkit.grading.answers import Choice, Number, Several, Symbolic


def weak_percent(N: int, compute_ms: float, messages_ms: float) -> Number:
    """Efficiency when every GPU keeps its batch."""
    weak = 100 * cost.weak_efficiency(compute_ms, compute_ms + messages_ms)
    slips = [
        (weak / N, "N GPUs did N batches in that time, and one GPU did one. Compare times of the same work."),
        (100 - weak, "That is the share of the messages."),
        (100 * (1 - messages_ms / compute_ms), "Divide by the time of the step that you have, not of the ideal one."),
    ]
    return Number.of(weak, "%", slips)


def strong_percent(N: int, compute_ms: float, messages_ms: float) -> Number:
    """Efficiency when the batch of one GPU is cut among N."""
    step = compute_ms / N + messages_ms
    slips = [
        (100 * compute_ms / step, "That is the speedup, in percent. Divide it by the number of GPUs."),
        (
            100 * compute_ms / (compute_ms + messages_ms),
            "Is that still the batch of every GPU? Or do your messages shrink with N? The gradient keeps its size.",
        ),
        (100 * messages_ms / step, "That is the share of the messages."),
    ]
    return Number.of(100 * cost.strong_efficiency(compute_ms, step, N), "%", slips)


def what_went_wrong() -> Choice:
    """Why T_1 / (N T_N) does not give the textbook's own 99.4 percent."""
    why = {
        "a": "For a job of which the work stays the same, it is right.",
        "c": "Then nothing would be lost, whatever the messages take.",
        "d": "The example has one node. Efficiency is asked of GPUs here.",
    }
    return Choice("b", why)


def share_there(s_percent: float, N: int, f_percent: float) -> Number:
    """Percent of a step on N devices that is the undivided part."""
    s = s_percent / 100
    slips = [
        (s_percent, "That is its share on ONE device. The rest has become N times shorter."),
        (100 * N * s, "The step on N devices is not an N-th: the undivided part is in it."),
        (100 * s / ((1 - s) / N), "That is the undivided part over the divided one. Take its share of the step."),
        (100 * (1 - s) / N / (s + (1 - s) / N), "That is the share of the part that is divided."),
    ]
    return Number.of(100 * s / (s + (1 - s) / N), "%", slips)


def half_at() -> Symbolic:
    """The number of devices at which Amdahl's law has an efficiency of one half."""
    slips = [
        ("1/s", "That is the ceiling of the speedup. At so many devices the efficiency is a little above one half."),
        ("1/(2*s)", "There the speedup is not yet half of its ceiling. You need the speedup that is half of N."),
        ("1/s - 1", "Nearly: look at the sign of the 1."),
        ("2/s", "Write efficiency as speedup divided by N, and set it to one half."),
    ]
    return Symbolic("1 + 1/s", "s", slips)


def ceiling(s_percent: float, N: int, f_percent: float) -> Number:
    """The highest speedup over one device, if f of a step on N devices is a part that one device has as well."""
    f = f_percent / 100
    slips = [
        (1 / f, "That takes a part of the DIVIDED step for a part of the time on one device, as the textbook does."),
        (
            cost.communication_ceiling(f, N),
            "That is right for messages, which one device has not. Here one device has the part as well.",
        ),
        (f + N * (1 - f), "So much faster than one device are N already. What if there were no end of devices?"),
        (100 / s_percent, "That is the ceiling of the first part's program."),
    ]
    return Number.of(1 + N * (1 - f) / f, "", slips)


def best_size() -> Symbolic:
    """The N for which A / N + c log2 N is smallest."""
    slips = [
        ("A/c", "The derivative of log2 is not 1 / N: log2 N is ln N divided by ln 2."),
        ("A/(c*log(2))", "Upside down with ln 2. The derivative of log2 N is 1 / (N ln 2)."),
        ("sqrt(A/c)", "That is for a cost that grows like N, a ring's latencies. This one grows like log2 N."),
        ("A/(2*c)", "That says whether one more doubling pays. The formula asks for any number of ranks."),
    ]
    return Symbolic("A*log(2)/c", "A c", slips)


def best_power(compute_ms: float, alpha_us: float) -> Number:
    """The power of two with the shortest step."""
    a, c = compute_ms * MS, alpha_us * US
    best = min((2**k for k in range(30)), key=lambda n: a / n + c * math.log2(n))
    slips = [
        (best // 2, "With twice as many it is shorter still. Compare both."),
        (best * 2, "With half as many it is shorter. Compare both."),
        (round(a * math.log(2) / c), "Recursive doubling wants a power of two: compare the two beside that number."),
        (round(math.sqrt(a / (2 * c))), "That is the best size of a ring."),
    ]
    return Number.of(best, "", slips, 1e-9)


def stalled_percent(base_ms: float, stall_ms: float, percent: float, delay_ms: float) -> Number:
    """Percent of the steps on twice as many GPUs in which somebody stalls."""
    p = percent / 100
    slips = [
        (2 * percent, "Some steps would have had a stall in both halves. They are one step each."),
        (percent, "Twice as many can stall."),
        (100 * p * p, "That is the share of steps with a stall in both halves."),
        (100 * (1 - p) ** 2, "That is the share of steps without any stall."),
    ]
    return Number.of(100 * (1 - (1 - p) ** 2), "%", slips)


def times_the_wait(base_ms: float, stall_ms: float, percent: float, delay_ms: float) -> Number:
    """The mean wait on twice as many GPUs over that on as many as now."""
    p = percent / 100
    now, then = base_ms + p * stall_ms, base_ms + (1 - (1 - p) ** 2) * stall_ms
    slips = [
        (2.0, "That would be linear. In some steps both halves stall, and then the second stall costs nothing."),
        (1 + p, "That is more than twice for a small p? Write both waits down, as part of the steps times the stall."),
        (then / now, "That is the ratio of the steps. The base is not waiting."),
        (math.sqrt(2), "That would be noise that averages out. Nobody averages here: all wait for the slowest."),
    ]
    return Number.of(2 - p, "times", slips)


def longer_ms(base_ms: float, stall_ms: float, percent: float, delay_ms: float) -> Number:
    """How much longer the step is on 2,048 than on 1,024 ranks with exponential delays."""
    noise = cost.Exponential(0, delay_ms)
    slips = [
        (delay_ms, "That would be one more term of 1. The terms from 1/1025 to 1/2048 add up to less."),
        (noise.expected_maximum(1024), "That is the whole wait on 1,024 ranks. What does doubling add?"),
        (noise.expected_maximum(2048), "That is the whole wait on 2,048 ranks. What does doubling add?"),
        (delay_ms / 2048, "That is the last one of 1,024 terms."),
        (0.0, "The slowest of more ranks is slower."),
    ]
    return Number.of(noise.expected_maximum(2048) - noise.expected_maximum(1024), "ms", slips)


def useful_gpus(mfu: float, efficiency: float, times: float, N: int) -> Number:
    """GPUs at their full promise that do as much as N."""
    goodput = cost.goodput(mfu / 100, efficiency / 100)
    slips = [
        (mfu / 100 * N, "The team of the textbook thought so. Not all of the fleet's time is computing."),
        (efficiency / 100 * N, "So many perfectly scaling GPUs. And a GPU that computes does not reach its promise."),
        (goodput * mfu / 100 * N, "One of the two losses is counted twice."),
    ]
    return Number.of(cost.equivalent_ranks(goodput, N), "", slips)


def new_efficiency(mfu: float, efficiency: float, times: float, N: int) -> Number:
    """Percent, after kernels became `times` times faster and messages did not."""
    ratio = 100 / efficiency - 1
    slips = [
        (efficiency, "Independent factors? The messages weigh more beside shorter computing."),
        (efficiency / times, "Only the computing changes, and it is a part of the step. Go through the ratio."),
        (100 / (1 + ratio / times), "Upside down: faster kernels make the ratio larger."),
    ]
    return Number.of(100 / (1 + times * ratio), "%", slips)


def gain(mfu: float, efficiency: float, times: float, N: int) -> Number:
    """Goodput afterwards over goodput before."""
    ratio = 100 / efficiency - 1
    right = times * (1 + ratio) / (1 + times * ratio)
    slips = [
        (times, "That is the gain of one GPU. The fleet also waits for its messages, as long as before."),
        (right / times, "That is what became of the efficiency. The MFU of a GPU has risen."),
        (1 / right, "Upside down: afterwards over before."),
    ]
    return Number.of(right, "times", slips)


NODE = 8  # GPUs of a node


def joules_ring(gigabytes: float, nodes: int) -> Number:
    """All bytes of a ring over all GPUs, node after node."""
    hop = cost.ring_all_reduce_bytes(gigabytes * GB, NODE * nodes)
    inside, across = (
        cost.movement_joules(1, pj) for pj in (cost.energy.NVLINK_PICOJOULES, cost.energy.INFINIBAND_PICOJOULES)
    )
    hops = NODE * nodes
    right = ((hops - nodes) * inside + nodes * across) * hop
    slips = [
        (right / 8, "A byte has 8 bits."),
        (hops * hop * across, "Only the last GPU of a node sends to another node. The others send inside."),
        (hops * hop * inside, "From node to node the ring takes the other wire."),
        (right / hops, "That is the share of one GPU. Ask for all of them."),
        (hop * (inside + across), "That is one hop of each kind. How many are there?"),
    ]
    return Number.of(right, "J", slips)


def joules_two_levels(gigabytes: float, nodes: int) -> Number:
    """All bytes of a two-level all-reduce."""
    inside, across = (
        cost.movement_joules(1, pj) for pj in (cost.energy.NVLINK_PICOJOULES, cost.energy.INFINIBAND_PICOJOULES)
    )
    m = gigabytes * GB
    in_nodes = nodes * NODE * cost.ring_all_reduce_bytes(m, NODE) * inside
    between = nodes * NODE * cost.ring_all_reduce_bytes(m / NODE, nodes) * across
    slips = [
        ((in_nodes + between) / 8, "A byte has 8 bits."),
        (in_nodes + NODE * between, "Each GPU sends only an eighth of the gradient to the other nodes."),
        (in_nodes, "Those are the bytes inside the nodes. Some travel between them."),
        (between, "Those are the bytes between the nodes. Most travel inside."),
        (in_nodes / 2 + between, "Inside there are two phases: a reduce-scatter before, and an all-gather after."),
        ((in_nodes + between) / (NODE * nodes), "That is the share of one GPU. Ask for all of them."),
    ]
    return Number.of(in_nodes + between, "J", slips)


def what_saves() -> Several:
    """What lowers the joules that the messages of one epoch take."""
    why = {
        "a": "hidden bytes travel all the same.",
        "b": "do fewer, larger messages have fewer bytes?",
        "c": "how many bits does a number of the gradient have then?",
        "d": "how many exchanges has the epoch then?",
        "e": "compare your two numbers.",
        "f": "it is over in half of the time. What does a bit cost?",
    }
    return Several("cde", why)


def _by_two(growth: str, t16: float, more: float, error: float) -> cost.ScalingFit:
    return cost.fit_scaling([cost.Measured(16, t16, error), cost.Measured(64, t16 + more, error)], "weak", growth)


def by_bytes(t16: float, more: float, error: float) -> Number:
    """ms on 1,024 GPUs if communication grows like 2 (N - 1) / N; to 0.1 percent, since 64 GPUs are close to it.

    t16: ms of a step on 16 GPUs. more: ms that 64 take beyond that. error: standard error of both, in ms.
    """
    slips = [
        (t16 + more, "The bytes still grow a little, from 63/64 to 1023/1024."),
        (_by_two("messages", t16, more, error).seconds(1024), "That is the law of messages, 2 (N - 1)."),
        (t16 + 3 * more, "That grows like log N: as much with each factor of 4."),
    ]
    return Number.of(_by_two("bytes", t16, more, error).seconds(1024), "ms", slips, 0.001)


def by_messages(t16: float, more: float, error: float) -> Number:
    """ms on 1,024 GPUs if communication grows like 2 (N - 1)."""
    fit = _by_two("messages", t16, more, error)
    slips = [
        (_by_two("bytes", t16, more, error).seconds(1024), "That is the law of bytes, 2 (N - 1) / N."),
        (t16 + 3 * more, "That grows like log N: as much with each factor of 4. Latencies of a ring grow like N."),
        (16 * (t16 + more), "Not all of the step grows with N. What do you get at 1 rank?"),
        (fit.communication * 2 * 1023, "That is the communication alone. A rank computes as well."),
    ]
    return Number.of(fit.seconds(1024), "ms", slips)


def error_ms(t16: float, more: float, error: float) -> Number:
    """One standard error of `by_messages`."""
    far = (1024 - 16) / (64 - 16)
    slips = [
        (error, "That is the error of one measured size. You go 21 times as far as the two lie apart."),
        (math.sqrt(2) * error, "That is the error of the difference of the two. It is stretched as well."),
        (math.sqrt(2) * far * error, "Nearly: the first size does not count 21 times, but 20 times, with a minus."),
        (far * error, "The first size has an error as well."),
        ((2 * far - 1) * error, "Independent errors add up as squares."),
        (math.sqrt(2 * far - 1) * error, "Square the weights, not only the errors."),
    ]
    return Number.of(_by_two("messages", t16, more, error).error(1024), "ms", slips)


def a_percent(compute_ds: float, messages: float, percent: float) -> Number:
    """Efficiency of configuration A, nothing hidden. compute_ds: tenths of a second."""
    c = compute_ds / 10
    slips = [
        (100 * c / (c + messages / 4), "That hides three quarters, as the textbook does here and not in B."),
        (100 * c / messages, "That is the ratio of the two. Efficiency is computing over the whole step."),
        (100 * messages / (c + messages), "That is the share of the messages."),
        (100 * c / (c + messages / 8), "That is configuration B."),
    ]
    return Number.of(100 * cost.weak_efficiency(c, c + messages), "%", slips)


def b_percent(compute_ds: float, messages: float, percent: float) -> Number:
    """Efficiency of configuration B, with `percent` of its messages hidden."""
    c, m = compute_ds / 10, messages / 8
    slips = [
        (100 * c / (c + m), "That hides nothing."),
        (100 * c / (c + m * percent / 100), "What is hidden is gone. What is left?"),
        (100 * c / (c + messages * (1 - percent / 100)), "That is A's gradient. In B each GPU has an eighth of it."),
    ]
    return Number.of(100 * cost.weak_efficiency(c, c + m * (1 - percent / 100)), "%", slips)


def a_at_best(compute_ds: float, messages: float, percent: float) -> Number:
    """Efficiency of A when it hides as much as its backward pass can."""
    c = compute_ds / 10
    slips = [
        (100 * c / (c + messages / 4), "Three quarters of the messages are far longer than the backward pass."),
        (100 * c / messages, "That hides them behind all of the computing. In the forward pass there is no gradient."),
        (100 * c / (c + messages), "That hides nothing."),
        (100 * c / (c + messages - c / 3), "The backward pass is two thirds of the computing, not one."),
    ]
    return Number.of(100 * cost.weak_efficiency(c, c + messages - 2 * c / 3), "%", slips)
