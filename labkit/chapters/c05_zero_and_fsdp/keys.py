"""Keys of chapter 5, ZeRO and FSDP. Numbers come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost.units import GB, MS, US
from labkit.grading.answers import Choice, Number, Several, Symbolic

# State of a rank ----------------------------------------------------------------------------------------------------


def _state(billions: float, N: int, stage: int) -> Number:
    at = [cost.zero_state_bytes(billions * 1e9, N, s) / GB for s in cost.zero.STAGES]
    parts = cost.zero_state_parts(billions * 1e9, N, stage)
    slips = [
        (at[0], "That is plain data parallelism: nothing is cut."),
        *((at[s], f"That is what stage {s} leaves.") for s in (1, 2, 3) if s != stage),
        (parts.optimizer / GB, "That is the optimizer's part. What else does a rank hold?"),
        ((at[0] - (parts.total / GB)), "That is what is saved. What is left?"),
    ]
    if stage == 1:
        slips.append(
            ((8 / N + 8) * billions, "Adam's part has 12 bytes a parameter: the master copy is the optimizer's.")
        )
    return Number.of(at[stage], "GB", slips)


def gb_stage_1(billions: float, N: int) -> Number:
    """GB of state on a rank with ZeRO-1."""
    return _state(billions, N, 1)


def gb_stage_2(billions: float, N: int) -> Number:
    """GB of state on a rank with ZeRO-2."""
    return _state(billions, N, 2)


def gb_stage_3(billions: float, N: int) -> Number:
    """GB of state on a rank with ZeRO-3."""
    return _state(billions, N, 3)


# "4x" and "8x" ------------------------------------------------------------------------------------------------------


def times_less_1(N: int, percent: int) -> Number:
    """How many times less state ZeRO-1 leaves on a rank."""
    slips = [
        (cost.zero_saving_limit(1), "That is the limit of many ranks. 12/N is still there."),
        (float(N), "Only the optimizer's state is cut."),
        (12 / (12 / N), "Only the optimizer's state is cut."),
        (1 / cost.zero_saving(N, 1), "Upside down: how many times less?"),
        (cost.zero_saving(N, 2), "That is stage 2."),
    ]
    return Number.of(cost.zero_saving(N, 1), "times", slips)


def times_less_2(N: int, percent: int) -> Number:
    """How many times less state ZeRO-2 leaves on a rank."""
    slips = [
        (cost.zero_saving_limit(2), "That is the limit of many ranks. 14/N is still there."),
        (float(N), "The parameters are not cut in stage 2."),
        (1 / cost.zero_saving(N, 2), "Upside down: how many times less?"),
        (cost.zero_saving(N, 1), "That is stage 1."),
    ]
    return Number.of(cost.zero_saving(N, 2), "times", slips)


def ranks_for_most(N: int, percent: int) -> Number:
    """The fewest ranks with which ZeRO-2 saves `percent` of its limit: 2 (2 + 14/n) <= 2 * 2 / share."""
    share = percent / 100
    exact = 7 * share / (1 - share)  # of 16 / (2 + 14/n) >= 8 share
    right = math.ceil(exact - 1e-9)
    slips = [
        (3 * share / (1 - share), "That is stage 1, of whose 16 bytes 12 are cut."),
        (14 * share / (1 - share), "Set 16 / (2 + 14/n) to that part of 8, and solve for n once more."),
        (math.floor(exact), "With so many it is still a little less."),
        (7 / (1 - share), "Nearly: that many ranks save a little more than is asked for."),
    ]
    return Number(right, "", 1e-9, [slip for slip in slips if slip[0] != right])


# Bytes of a step ----------------------------------------------------------------------------------------------------


def _sent(gigabytes: float, N: int, stage: int) -> Number:
    at = [cost.zero_bytes_per_step(gigabytes * 1e9 / 2, N, s) / GB for s in cost.zero.STAGES]
    half = cost.ring_all_gather_bytes(gigabytes, N)
    collectives = {
        0: "an all-reduce",
        2: "a reduce-scatter and an all-gather",
        3: "two all-gathers and a reduce-scatter",
    }
    factor = 3 if stage == 3 else 2
    slips = [
        (half, f"That is one collective of a half ring. Here there are {factor} halves: {collectives[stage]}."),
        (factor * gigabytes, "That is the limit of many ranks: a rank does not send its own part, (N-1)/N."),
        (factor * gigabytes / N, "A ring sends (N-1)/N of a tensor, not 1/N."),
        (at[3], "That is stage 3. Which gather falls away?"),
        (at[0], "That is without the second gather. What does the backward pass need, once forward has freed it?"),
        (half * N * factor, "That is what all ranks send together."),
        (gigabytes, "That is the size of the parameters."),
    ]
    return Number.of(at[stage], "GB", slips)


def sent_ddp(gigabytes: float, N: int) -> Number:
    """GB that a rank sends in a step of plain data parallelism."""
    return _sent(gigabytes, N, 0)


def sent_stage_2(gigabytes: float, N: int) -> Number:
    """GB that a rank sends in a step of ZeRO-2."""
    return _sent(gigabytes, N, 2)


def sent_stage_3(gigabytes: float, N: int) -> Number:
    """GB that a rank sends in a step of ZeRO-3."""
    return _sent(gigabytes, N, 3)


def sent_accumulating() -> Symbolic:
    """Bytes of a ZeRO-3 update of k passes; gradients are reduce-scattered in the last one only."""
    slips = [
        ("3*k*(N-1)/N*M", "Then gradients would be sent in every pass. Here they wait for the last one."),
        ("3*(N-1)/N*M", "That is one pass. Parameters are freed, and each pass gathers them again."),
        ("(k+2)*(N-1)/N*M", "Each pass gathers twice: for forward and for backward."),
        ("(k+1)*(N-1)/N*M", "Each pass gathers twice: for forward and for backward."),
        ("(2*k+1)*M", "That is the limit of many ranks. A rank does not send its own part."),
    ]
    return Symbolic("(2*k+1)*(N-1)/N*M", "k N M", slips)


# Find the error: ZeRO-1 in words ------------------------------------------------------------------------------------


def as_described(billions: float, N: int) -> Number:
    """GB a rank sends in ZeRO-1 by an all-reduce and a broadcast of each rank's stretch."""
    M = 2 * billions
    half = cost.ring_all_gather_bytes(M, N)
    slips = [
        (2 * half, "That is the all-reduce. The new stretches still have to reach everybody."),
        (half, "That is the broadcast of the stretches. The all-reduce comes before it."),
        (4 * half, "The second part brings new parameters, but nothing is summed: it is one half."),
        (3 * M, "That is the limit of many ranks."),
        (6 * half, "Parameters and gradients have 2 bytes each in 16 bits."),
    ]
    return Number.of(cost.zero.zero1_by_all_reduce_bytes(billions * 1e9, N) / GB, "GB", slips)


def as_it_should_be(billions: float, N: int) -> Number:
    """GB a rank sends in ZeRO-1 with a reduce-scatter."""
    M = 2 * billions
    half = cost.ring_all_gather_bytes(M, N)
    slips = [
        (3 * half, "That is what the textbook's words come to."),
        (half, "That is one half. Gradients go one way, new parameters the other."),
        (2 * M, "That is the limit of many ranks."),
        (4 * half, "Parameters and gradients have 2 bytes each in 16 bits."),
    ]
    return Number.of(cost.zero_bytes_per_step(billions * 1e9, N, 1) / GB, "GB", slips)


def what_is_wrong() -> Choice:
    """Why "None (same as DDP)" does not fit the description."""
    why = {
        "a": "Stretches of all ranks together are as large as the model, whatever N is.",
        "c": "Each rank needs the sum of its own stretch only. What is the rest of the all-reduce for?",
        "d": "The state is never sent: it stays where its stretch is.",
    }
    return Choice("b", why)


# The largest model --------------------------------------------------------------------------------------------------


def _largest(memory: int, rest: int, N: int, stage: int) -> Number:
    room = memory - rest
    each = [cost.zero_state_bytes(1, N, s) for s in cost.zero.STAGES]
    slips = [
        (memory / each[stage], "The activations need their room too."),
        *((room / each[s], f"That is what fits in stage {s}.") for s in (0, 1, 2, 3) if s != stage),
        (room * each[stage], "Divide the room by the bytes of a parameter."),
        (room / 2, "That is room for the parameters in 16 bits, and for nothing else of the state."),
    ]
    return Number.of(room / each[stage], "", slips)


def largest_ddp(memory: int, rest: int, N: int) -> Number:
    """Billions of parameters, plain data parallelism."""
    return _largest(memory, rest, N, 0)


def largest_1(memory: int, rest: int, N: int) -> Number:
    """Billions of parameters, ZeRO-1."""
    return _largest(memory, rest, N, 1)


def largest_3(memory: int, rest: int, N: int) -> Number:
    """Billions of parameters, ZeRO-3."""
    return _largest(memory, rest, N, 3)


# 7B on 80 GB --------------------------------------------------------------------------------------------------------


def short_of(billions: int, rest: int) -> Number:
    """GB that are missing on an 80 GB GPU with plain data parallelism."""
    state = cost.state_bytes(billions * 1e9) / GB
    memory = cost.GPU_MEMORY / GB
    slips = [
        (state, "That is the training state. How much more is it than there is?"),
        (state - memory, "The activations need room as well."),
        (state + rest, "That is what is needed. How much of it is missing?"),
        (2 * billions + rest - memory, "Gradients, master copy and the two moments are state too."),
    ]
    return Number.of(state + rest - memory, "GB", slips)


def fewest_ranks_1(billions: int, rest: int) -> Number:
    """The fewest ranks with which ZeRO-1 fits on GPUs of 80 GB."""
    room = cost.GPU_MEMORY / GB - rest
    exact = 12 * billions / (room - 4 * billions)
    right = math.ceil(exact)
    slips = [
        (math.floor(exact), "With so many it is still a little too much."),
        (math.ceil(16 * billions / room), "That is if all 16 bytes were cut: stage 3."),
        (math.ceil(12 * billions / (cost.GPU_MEMORY / GB - 4 * billions)), "The activations need room as well."),
        (exact, "Ranks are whole: round up."),
    ]
    return Number(right, "", 1e-9, [slip for slip in slips if slip[0] != right])


def what_helps() -> Several:
    """What makes state on a rank smaller when nothing else changes."""
    why = {
        "a": "what does data parallelism do to the state?",
        "b": "what does each of N ranks hold of Adam's state then?",
        "c": "activations are no state. Which of the two does the batch change?",
        "d": "which part of the 16 bytes stays whole in stage 2, and not in stage 3?",
        "e": "how is the state cut, if groups of k ranks hold a copy each?",
        "f": "gradients that are added up need a place of their own, in every pass.",
    }
    return Several("bde", why)


# Units of FSDP ------------------------------------------------------------------------------------------------------


def _units(u0: int, u1: int, u2: int, u3: int) -> list[int]:
    return [u0, u1, u2, u3]


def gathered_alone(u0: int, u1: int, u2: int, u3: int, N: int) -> Number:
    """MB of whole parameters at the peak, nothing fetched ahead. Units in millions of parameters, 16 bits."""
    units = _units(u0, u1, u2, u3)
    slips = [
        (2 * sum(units), "That is the whole model. One unit is gathered at a time."),
        (sum(units) / 2, "The peak is that of the largest unit, not of a mean one."),
        (float(max(units)), "In 16 bits a parameter has 2 bytes."),
        (2 * max(units) / N, "That is a stretch of it. It is gathered to be computed with."),
        (cost.gathered_bytes(units, 2, 1), "That is with one fetched ahead."),
    ]
    return Number.of(cost.gathered_bytes(units, 2, 0), "MB", slips)


def gathered_ahead(u0: int, u1: int, u2: int, u3: int, N: int) -> Number:
    """MB of whole parameters at the peak, one unit fetched ahead."""
    units = _units(u0, u1, u2, u3)
    slips = [
        (2 * 2 * max(units), "The next unit is there as well, and it need not be as large."),
        (2 * sum(sorted(units)[-2:]), "Only units that follow one another are there together."),
        (2 * max(units), "That is without fetching ahead."),
        (2 * sum(units), "That is the whole model."),
        (cost.gathered_bytes(units, 2, 1) / 2, "In 16 bits a parameter has 2 bytes."),
    ]
    return Number.of(cost.gathered_bytes(units, 2, 1), "MB", slips)


def peak_backward(u0: int, u1: int, u2: int, u3: int, N: int) -> Number:
    """MB at the peak of the backward pass: state, units gathered, and the largest unit's whole gradient."""
    units = _units(u0, u1, u2, u3)
    state = cost.zero_state_bytes(sum(units), N, 3)
    gathered, gradient = cost.gathered_bytes(units, 2, 1), cost.gradient_unit_bytes(units, 2)
    slips = [
        (state + gathered, "The whole gradient of a unit is there too, until it is reduce-scattered."),
        (gathered + gradient, "The state that lasts, 16 bytes a parameter, is missing: 1/N of it is here."),
        (16 * sum(units) + gathered + gradient, "The state is cut: 1/N of it is here."),
        (state, "That is what lasts. What is there for a moment?"),
        (2 * sum(units) / N + gathered + gradient, "Stretches of gradients and of Adam's state last too."),
    ]
    return Number.of(state + gathered + gradient, "MB", slips)


# Messages against units ---------------------------------------------------------------------------------------------


def messages_of_layers(L: int, P: int, N: int, alpha_us: int, room: int) -> Number:
    """Messages a rank sends in a step, each of L layers a unit."""
    slips = [
        (3 * L, "That is the number of collectives. Each is a message a round."),
        (2 * L * (N - 1), "Parameters are gathered twice: three collectives a unit."),
        (3 * L * N, "Nearly: a ring has a round less than there are ranks."),
        (3 * L * (N - 1) * N, "That is what all ranks send together."),
        (L * (N - 1), "That is one of three collectives a unit."),
    ]
    return Number(3 * L * (N - 1), "", 1e-9, slips)


def layers_in_a_unit(L: int, P: int, N: int, alpha_us: int, room: int) -> Number:
    """Most layers of P MB in a unit, so that two gathered units and a gradient fit into `room` MB."""
    right = room // (3 * P)
    slips = [
        (room // P, "That is one unit. Two are gathered, and a whole gradient is there as well."),
        (room // (2 * P), "The whole gradient of a unit is there as well."),
        (room / (3 * P), "Layers are whole: round down."),
        (math.ceil(room / (3 * P)), "That is a little too much."),
    ]
    return Number(right, "", 1e-9, [slip for slip in slips if slip[0] != right])


def saved_ms(L: int, P: int, N: int, alpha_us: int, room: int) -> Number:
    """ms of latency that the larger units save in a step."""
    each = 3 * (N - 1) * alpha_us * US / MS
    units = math.ceil(L / (room // (3 * P)))
    slips = [
        (units * each, "That is what the larger units still pay."),
        (L * each, "That is what units of a layer pay. What do the larger ones still pay?"),
        ((L - units) * 3 * alpha_us * US / MS, "A collective pays the latency in each of its rounds."),
        ((L - units) * each * 2 / 3, "Three collectives a unit: two gathers and a reduce-scatter."),
    ]
    return Number.of((L - units) * each, "ms", slips)


def unit_of_everything() -> Choice:
    """What FSDP with one unit, the whole model, is like."""
    why = {
        "a": "The stretches last. But what is gathered for forward and backward?",
        "b": "Two gathers and a reduce-scatter of everything: do the bytes depend on the cut?",
        "d": "What can be computed before the first unit is there?",
    }
    return Choice("c", why)


# Hybrid -------------------------------------------------------------------------------------------------------------


def _hybrid(gigabytes: int, k: int, m: int) -> cost.hybrid_shard.Sent:
    return cost.hybrid_shard.hybrid_bytes_per_step(gigabytes * 1e9 / 2, k, m)


def sent_inside(gigabytes: int, k: int, m: int) -> Number:
    """GB a rank sends inside its node."""
    slips = [
        (3 * gigabytes * (1 - 1 / (k * m)), "Gathering runs inside a node: k ranks, not all."),
        (2 * gigabytes * (1 - 1 / k), "Two gathers and a reduce-scatter."),
        (3 * gigabytes, "A rank does not send its own part."),
        (_hybrid(gigabytes, k, m).across / GB, "That is across nodes."),
    ]
    return Number.of(_hybrid(gigabytes, k, m).inside / GB, "GB", slips)


def sent_across(gigabytes: int, k: int, m: int) -> Number:
    """GB a rank sends to its peers in other nodes."""
    slips = [
        (2 * gigabytes * (1 - 1 / m), "A rank all-reduces its own stretch only: 1/k of the gradient."),
        (gigabytes * (1 - 1 / m) / k, "An all-reduce has two halves."),
        (2 * gigabytes * (1 - 1 / (k * m)) / k, "Its peers are one rank of each node: m of them."),
        (2 * gigabytes / k, "A rank does not send its own part: (m-1)/m."),
        (3 * gigabytes * (1 - 1 / m) / k, "Parameters are not gathered across nodes."),
    ]
    return Number.of(_hybrid(gigabytes, k, m).across / GB, "GB", slips)


def leaves_a_node(gigabytes: int, k: int, m: int) -> Number:
    """How many times fewer GB leave a node than with everything sharded over all ranks."""
    full, hybrid = (
        cost.hybrid_shard.node_egress_bytes(gigabytes * 1e9 / 2, k, m, strategy)
        for strategy in ("full_shard", "hybrid")
    )
    slips = [
        (hybrid / full, "Upside down."),
        (full / (hybrid / k), "That compares a node with one rank. All k ranks of a node send across."),
        (1.5 * m / (m - 1), "The ring over all ranks leaves out 1/(k m), not nothing."),
        (float(k), "Sharding inside a node does not divide what leaves it by k: k ranks send their stretches."),
    ]
    return Number.of(full / hybrid, "times", slips)


def times_the_state(gigabytes: int, k: int, m: int) -> Number:
    """How many times more state a rank holds than with everything sharded over all ranks."""
    slips = [
        (float(k), "Each of k ranks holds 1/k, in place of 1/(k m)."),
        (float(k * m), "That is plain data parallelism."),
        (1.0, "Each node holds a copy of its own."),
    ]
    return Number(float(m), "times", slips=[slip for slip in slips if slip[0] != m])
