"""Keys of chapter 10, pipeline parallelism. Numbers come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit import cost
from labkit.cost.shapes import SHAPES
from labkit.cost.units import GB
from labkit.grading.answers import Choice, Number, Several


def _held(schedule: str, p: int, m: int, v: int = 1) -> list[int]:
    """By rank: the most activations in flight, those included that wait for their weight gradient."""
    return [mark.total for mark in cost.in_flight_by_rank(schedule, p, m, v)]


# The bubble of a step -----------------------------------------------------------------------------------------------


def bubble_alone(p: int, m: int) -> Number:
    """Percent of a step in which a rank is idle, with one microbatch."""
    slips = [
        (100 / p, "That is the part in which a rank works."),
        (100 * (p - 1), "That compares idle time with work. What part of the whole step is it?"),
        (100 * cost.bubble_fraction(p, m), "That is with all your microbatches. Here the batch is not cut."),
        (0.0, "One rank works at a time. What do the others do meanwhile?"),
    ]
    return Number.of(100 * cost.bubble_fraction(p, 1), "%", slips)


def bubble_cut(p: int, m: int) -> Number:
    """Percent of a step in which a rank is idle, with m microbatches."""
    slips = [
        (100 * (p - 1) / m, "That compares idle time with work. The step is both together: m + p - 1 slots."),
        (100 * (p - 1) / (m + p), "Nearly: count the slots of a step again. The last rank begins in slot p - 1."),
        (100 * m / (m + p - 1), "That is the part in which a rank works."),
        (100 * p / (m + p - 1), "A rank waits for p - 1 others, not for p."),
    ]
    return Number.of(100 * cost.bubble_fraction(p, m), "%", slips)


def speedup(p: int, m: int) -> Number:
    """How many times faster than one device."""
    right = p * (1 - cost.bubble_fraction(p, m))
    slips = [
        (float(p), "That would be without a bubble."),
        (float(m), "That is the number of microbatches."),
        (1 / (1 - cost.bubble_fraction(p, m)), "That is how much longer the step is than without a bubble."),
        (p / (1 + cost.bubble_fraction(p, m)), "The bubble is a part of the step: what is left is 1 - b of it."),
    ]
    return Number.of(right, "times", slips)


# Find the error: more microbatches, more memory ---------------------------------------------------------------------


def bubble_now(p: int, percent: int) -> Number:
    """Percent of bubble with 32 microbatches."""
    slips = [
        (100 * (p - 1) / 32, "That compares idle time with work."),
        (100 * (p - 1) / (32 + p), "Nearly: a step has m + p - 1 slots."),
        (100 * 32 / (31 + p), "That is the part in which a rank works."),
    ]
    return Number.of(100 * cost.bubble_fraction(p, 32), "%", slips)


def microbatches_for(p: int, percent: int) -> Number:
    """The fewest microbatches with a bubble of at most `percent`."""
    right = cost.microbatches_for(p, percent / 100)
    exact = (p - 1) * (100 - percent) / percent
    slips = [
        (math.ceil((p - 1) * 100 / percent), "That solves (p - 1)/m: idle time over work. The step is both together."),
        (math.floor(exact), "With so many it is still a little more."),
        (math.ceil(p * (100 - percent) / percent), "A rank waits for p - 1 others."),
        (exact, "Microbatches are whole: round up."),
        (math.ceil(32 * 100 * cost.bubble_fraction(p, 32) / percent), "The bubble is not in proportion to 1/m: solve."),
    ]
    return Number.count(right, slips)


def times_gpipe(p: int, percent: int) -> Number:
    """How many times more activations rank 0 holds with GPipe, with those microbatches instead of 32."""
    m = cost.microbatches_for(p, percent / 100)
    slips = [
        (1.0, "That is 1F1B. GPipe runs all forwards before the first backward."),
        (m / p, "That compares GPipe with 1F1B. Here it is GPipe with more microbatches and with fewer."),
        (32 / m, "Upside down."),
        (float(m), "That is the number of microbatches. How many were there before?"),
    ]
    return Number.of(m / 32, "times", slips)


def times_1f1b(p: int, percent: int) -> Number:
    """The same with 1F1B."""
    m = cost.microbatches_for(p, percent / 100)
    slips = [
        (m / 32, "That is GPipe. What does 1F1B hold when there are more microbatches than stages?"),
        (float(p), "That is how many rank 0 holds. How many did it hold before?"),
        (p / 32, "That compares 1F1B with GPipe."),
    ]
    return Number.of(1.0, "times", slips)


# Find the error: at most `warmup` activations -----------------------------------------------------------------------


def as_the_comment_says(p: int, r: int, few: int) -> Number:
    """The comment's number for rank r."""
    slips = [
        (p - r, "That is what the rank really holds. What does the comment say?"),
        (r, "Count the ranks behind this one: they decide."),
        (p, "The last rank has no warmup at all."),
    ]
    return Number.count(p - r - 1, slips)


def really_held(p: int, r: int, few: int) -> Number:
    """Activations in flight on rank r at the most."""
    slips = [
        (p - r - 1, "That is after the warmup. What comes next: a forward or a backward?"),
        (p, "That is rank 0."),
        (r + 1, "The other way round: early ranks wait longest for their gradients."),
        (p - r + 1, "One too many: after the first forward of the steady state comes a backward."),
    ]
    return Number.count(_held("one_f_one_b", p, 2 * p)[r], slips)


def held_of_few(p: int, r: int, few: int) -> Number:
    """The same with few microbatches."""
    slips = [
        (p - r, "There are fewer microbatches than that."),
        (p - r - 1, "There are fewer microbatches than that."),
        (few - 1, "All of them go forward before the first gradient is back."),
    ]
    return Number.count(_held("one_f_one_b", p, few)[r], slips)


def why_one_more() -> Choice:
    """Where the comment is wrong."""
    why = {
        "a": "With the loop as it is the first gradient comes back just when it is needed. Count on the last rank.",
        "c": "The last rank holds one, the first one most.",
        "d": "It frees them, as early as it can. When is the first one freed?",
    }
    return Choice("b", why)


# Gigabytes in flight ------------------------------------------------------------------------------------------------

GPT3 = SHAPES["175B"]


def _stage_bytes(p: int, b: int, strategy: str = "all") -> float:
    """Bytes that a stage of 175B keeps for one microbatch."""
    return cost.kept_activation_bytes(b, GPT3.sequence, GPT3.hidden, GPT3.layers // p, GPT3.heads, strategy)


def one_in_flight(p: int, m: int, b: int) -> Number:
    """GB that a stage keeps for one microbatch."""
    right = _stage_bytes(p, b) / GB
    wide = b * GPT3.sequence * GPT3.hidden
    slips = [
        (right * p, "That is the whole model. A stage has 1/p of its layers."),
        (right * p / GPT3.layers, "That is one layer. How many does a stage have?"),
        (34 * wide * GPT3.layers / p / GB, "The scores of attention are kept too: 5 a s/h is not small here."),
        (right / b, "A microbatch has b sequences."),
        (right * m, "That is all microbatches."),
    ]
    return Number.of(right, "GB", slips)


def first_rank_1f1b(p: int, m: int, b: int) -> Number:
    """GB of activations on rank 0 at the most, with 1F1B."""
    each = _stage_bytes(p, b) / GB
    slips = [
        (each * (p - 1), "That is after the warmup. A forward follows before the first backward."),
        (each * m, "That is GPipe."),
        (each, "That is one microbatch. How many are in flight on rank 0?"),
        (each * p * p, "A stage has 1/p of the layers."),
    ]
    return Number.of(each * _held("one_f_one_b", p, m)[0], "GB", slips)


def first_rank_gpipe(p: int, m: int, b: int) -> Number:
    """GB of activations on rank 0 at the most, with GPipe."""
    each = _stage_bytes(p, b) / GB
    slips = [
        (each * p, "That is 1F1B."),
        (each * m * p, "A stage has 1/p of the layers."),
        (each * (m - 1), "The first backward begins after the last forward."),
    ]
    return Number.of(each * _held("gpipe", p, m)[0], "GB", slips)


def first_rank_checkpointed(p: int, m: int, b: int) -> Number:
    """GB on rank 0 with 1F1B, every layer keeping its input only, and one layer computed again."""
    kept = p * _stage_bytes(p, b, "full") / GB
    layer = cost.activation_bytes(b, GPT3.sequence, GPT3.hidden, 1, GPT3.heads) / GB
    slips = [
        (kept, "The layer that is computed again has all its activations too, for a while."),
        (kept / p + layer, "There are as many microbatches in flight as before."),
        (kept + layer * GPT3.layers / p, "One layer is computed again at a time, not the whole stage."),
        (m * kept / p + layer, "That is GPipe."),
        (kept / 2 + layer, "In 16 bits a value has 2 bytes: 2 s b h a layer."),
    ]
    return Number.of(kept + layer, "GB", slips)


# Find the error: O(mp) to O(p) --------------------------------------------------------------------------------------


def all_stages_gpipe(p: int, m: int) -> Number:
    """Activations in flight on all ranks together, GPipe."""
    slips = [
        (m, "That is one rank."),
        (p * (p + 1) // 2, "That is 1F1B."),
        (m * (p + 1) // 2, "With GPipe every rank holds all microbatches, the last one too."),
    ]
    return Number.count(sum(_held("gpipe", p, m)), slips)


def all_stages_1f1b(p: int, m: int) -> Number:
    """Activations in flight on all ranks together, 1F1B, each rank at its own worst."""
    slips = [
        (p, "That is rank 0. The others hold p - 1, p - 2, ..."),
        (p * p, "Only rank 0 holds p. The others hold p - 1, p - 2, ..."),
        (p * (p - 1) // 2, "A rank holds one more than its warmup has forwards."),
        (m * p, "That is GPipe."),
    ]
    return Number.count(sum(_held("one_f_one_b", p, m)), slips)


def times_less_of_the_claim(p: int, m: int) -> Number:
    """How many times less the claim promises: m p over p."""
    slips = [(m / p, "That is what rank 0 saves. Divide mp by p."), (1 / m, "Upside down.")]
    return Number.of(float(m), "times", slips)


def times_less_of_rank_0(p: int, m: int) -> Number:
    """How many times less rank 0 really holds."""
    slips = [
        (float(m), "That is what the claim promises. How many does rank 0 hold with each schedule?"),
        (p / m, "Upside down."),
        (2 * m / (p + 1), "That is all ranks together."),
    ]
    return Number.of(m / p, "times", slips)


# The model cut into more stages than ranks --------------------------------------------------------------------------


def bubble_of_ideal(p: int, rounds: int, v: int) -> Number:
    """Percent: idle time of the interleaved schedule over the time of its work."""
    m = p * rounds
    slips = [
        (100 * (p - 1) / m, "That is without interleaving. A smaller stage fills the pipeline sooner."),
        (100 * (p - 1) / (v * m + p - 1), "That is the part of the whole step. Here it is over the work alone."),
        (100 * (v * p - 1) / m, "There are v p stages, but only p ranks to be waited for, each a v-th as long."),
        (100 * v * (p - 1) / m, "More stages a rank make the bubble smaller: each takes a v-th of the time."),
    ]
    return Number.of(100 * cost.interleaved_bubble(p, m, v), "%", slips)


def bubble_of_step(p: int, rounds: int, v: int) -> Number:
    """Percent of the interleaved step in which a rank is idle."""
    m = p * rounds
    over = cost.interleaved_bubble(p, m, v)
    slips = [
        (100 * over, "That is idle time over work. The step is both together."),
        (100 * cost.bubble_fraction(p, m), "That is without interleaving."),
        (100 * cost.bubble_fraction(p, m) / v, "Nearly: idle time is a v-th, and the step is shorter, too."),
        (100 * cost.bubble_fraction(v * p, m), "There are v p stages, but each takes a v-th of the time."),
    ]
    return Number.of(100 * over / (1 + over), "%", slips)


def messages_of_all(p: int, rounds: int, v: int) -> Number:
    """Messages of all ranks in a step."""
    m = p * rounds
    slips = [
        (m * (v * p - 1), "Gradients come back over the same boundaries."),
        (2 * m * (p - 1), "That is without interleaving: the model has v p stages now."),
        (2 * m * v * p, "The last stage sends no activation, and the first one no gradient."),
        (2 * m * v * (p - 1), "From the last rank back to the first one there is a message, too."),
        (2 * (v * p - 1), "That is one microbatch."),
    ]
    return Number.count(sum(cost.pipeline_messages_by_rank(p, m, v)), slips)


def times_more_memory(p: int, rounds: int, v: int) -> Number:
    """How many times more activations rank 0 holds than with 1F1B, a chunk counting a v-th."""
    held = _held("interleaved", p, p * rounds, v)[0]
    slips = [
        (float(v), "Each activation is of a chunk: a v-th of the rank's layers."),
        (held / p, "Each activation is of a chunk: a v-th of the rank's layers."),
        (
            1.0,
            "The warmup is longer: (v - 1) p + 2 (p - 1) forwards of a chunk, and one more before the first backward.",
        ),
        ((held - 1) / (v * p), "After the warmup one more forward comes before the first backward."),
    ]
    return Number.of(held / v / p, "times", slips)


# A backward pass in two halves --------------------------------------------------------------------------------------


def idle_1f1b(F: int, B: int, W: int, p: int) -> Number:
    """ms in which a rank is idle, 1F1B."""
    slips = [
        ((p - 1) * (F + B), "A whole backward pass is B + W."),
        (p * (F + B + W), "A rank waits for p - 1 others."),
        ((p - 1) * (F + B - W), "That is ZB-H1."),
        (F + B + W, "That is one slot. There are p - 1 of them."),
    ]
    return Number.of(cost.pipeline_idle_seconds("one_f_one_b", p, 2 * p, F, B, W), "ms", slips)


def idle_h1(F: int, B: int, W: int, p: int) -> Number:
    """ms, ZB-H1."""
    slips = [
        ((p - 1) * (F + B + W), "That is 1F1B, where nobody fills a gap with W."),
        ((p - 1) * (F + B), "The gap is shorter by B + W becoming B, and one W more of each slot fills what is left."),
        ((p - 1) * (F + B - 2 * W), "That is ZB-H2, which holds more activations."),
        ((p - 1) * (F + B + W) - W, "Each of the p - 1 slots gets shorter."),
    ]
    return Number.of(cost.pipeline_idle_seconds("zb_h1", p, 2 * p, F, B, W), "ms", slips)


def idle_h2(F: int, B: int, W: int, p: int) -> Number:
    """ms, ZB-H2."""
    slips = [
        (0.0, "Only if F + B = 2 W. What is left with your numbers?"),
        ((p - 1) * (F + B - W), "That is ZB-H1."),
        ((p - 1) * (F + B + W), "That is 1F1B."),
        ((p - 1) * (F - W), "B does not cancel."),
    ]
    return Number.of(cost.pipeline_idle_seconds("zb_h2", p, 2 * p, F, B, W), "ms", slips)


def times_the_activations(F: int, B: int, W: int, p: int) -> Number:
    """How many times more activations rank 0 holds with ZB-H2 than with 1F1B."""
    slips = [
        (2.0, "Nearly: 2p - 1 microbatches, not 2p."),
        (1.0, "That is ZB-H1."),
        (float(2 * p - 1), "So many it holds. How many times those of 1F1B is it?"),
        (p / (2 * p - 1), "Upside down."),
    ]
    m = 4 * p
    held = [_held(name, p, m)[0] for name in ("zb_h2", "one_f_one_b")]
    return Number.of(held[0] / held[1], "times", slips)


# Find the error: near zero ------------------------------------------------------------------------------------------

CASE = (4, 8)  # the stages and microbatches of the textbook's example


def _units(h: int, s: int) -> tuple[float, float, float]:
    """F, B and W of a layer, in flops a token over h (Qi et al. 2023, table 1)."""
    return 24 * h + 4 * s, 24 * h + 8 * s, 24 * h


def weight_share(h: int, s: int) -> Number:
    """W over F."""
    F, B, W = _units(h, s)
    slips = [
        (1.0, "Attention has products without weights: F has 4 s more."),
        (W / B, "That is W over B."),
        (F / W, "Upside down."),
        (W / (F + B + W), "That is its part of the whole. Divide by F."),
    ]
    return Number.of(W / F, "", slips, 0.002)


def _idle(h: int, s: int, schedule: str) -> float:
    """Percent of the textbook's step in which a rank is idle."""
    p, m = CASE
    units = _units(h, s)
    idle = cost.pipeline_idle_seconds(schedule, p, 2 * p, *units)
    return 100 * idle / (m * sum(units) + idle)


def _percent(h: int, s: int, schedule: str) -> Number:
    (p, m), (F, B, W) = CASE, _units(h, s)
    others = {"one_f_one_b": "1F1B", "zb_h1": "ZB-H1", "zb_h2": "ZB-H2"}
    right = _idle(h, s, schedule)
    slips = [
        (0.0, "Only if F + B - 2 W were 0. Attention is in F and in B, and not in W."),
        (
            100 * cost.pipeline_idle_seconds(schedule, p, 2 * p, F, B, W) / (m * (F + B + W)),
            "That is idle time over work alone.",
        ),
        (right / (p - 1), "That is one slot of p - 1."),
        *((_idle(h, s, other), f"That is {word}.") for other, word in others.items() if other != schedule),
    ]
    return Number.of(right, "%", [slip for slip in slips if abs(slip[0] - right) > 0.05 * right])


def percent_h1(h: int, s: int) -> Number:
    """Percent of the step, ZB-H1."""
    return _percent(h, s, "zb_h1")


def percent_h2(h: int, s: int) -> Number:
    """Percent of the step, ZB-H2."""
    return _percent(h, s, "zb_h2")


def what_near_zero_takes() -> Several:
    """What is true of "near zero"."""
    why = {
        "a": "which schedule gets there with the activations of 1F1B on its first rank?",
        "b": "how many activations does ZB-H2 hold on every rank?",
        "c": "which part of the backward pass has attention's own products, and which has not?",
        "d": "the formula of the bubble counts slots of F + B + W. What is W good for in it?",
        "e": "a W needs an activation and a gradient. Until when are they held?",
    }
    return Several("bce", why)


# Find the error: times (1 + b) --------------------------------------------------------------------------------------


def as_projected(p: int, m: int, percent: int) -> Number:
    """MFU in percent, if the time is multiplied by 1 + b."""
    b = cost.bubble_fraction(p, m)
    slips = [
        (percent * (1 - b), "That is what it should be. What does the projection do?"),
        (percent * (1 + b), "The time gets longer, so the MFU gets smaller."),
        (percent * b, "That is the part that is lost."),
    ]
    return Number.of(percent / (1 + b), "%", slips)


def as_it_is(p: int, m: int, percent: int) -> Number:
    """MFU in percent, with the bubble as a part of the step."""
    b = cost.bubble_fraction(p, m)
    slips = [
        (percent / (1 + b), "That is the projection. b is a part of the step, not of the work."),
        (percent * b, "That is the part that is lost."),
        (percent / (1 - b), "The step is longer, so the MFU gets smaller."),
    ]
    return Number.of(percent * (1 - b), "%", slips)


def enough_microbatches(p: int, m: int, percent: int) -> Number:
    """The fewest microbatches with which the projected MFU is reached."""
    b = cost.bubble_fraction(p, m)
    right = math.ceil((p - 1) / b - 1e-9)  # m'/(m' + p - 1) >= 1/(1 + b)
    slips = [
        (right - 1, "With so many it is still a little less."),
        (m, "With these it is the other number."),
        (right + p - 1, "That is the number of slots. How many microbatches are in them?"),
        (math.ceil((p - 1) * (1 - b) / b), "That solves 1 - b' = 1 - b. Set m'/(m' + p - 1) to 1/(1 + b)."),
    ]
    return Number.count(right, slips)


# Stages that are not equal ------------------------------------------------------------------------------------------

RANKS = 4  # of the unequal pipeline


def _step(stages: Sequence[float], m: int) -> float:
    """A step of GPipe whose stages take these times forward and twice as long backward: both ways the first microbatch
    goes through all stages, and the others follow at the pace of the slowest."""
    return 3 * (sum(stages) + (m - 1) * max(stages))


def step_of_equal_counts(layers: int, head: int, m: int) -> Number:
    """Step, in times of a layer, if every stage has as many layers and the last one the head too."""
    each = layers // RANKS
    stages = [each] * (RANKS - 1) + [each + head]
    slips = [
        (3 * (m + RANKS - 1) * each, "The head belongs to the last stage, and everybody waits for it."),
        (3 * (m + RANKS - 1) * (each + head), "Only the last stage is so slow: the way through the others is shorter."),
        (3 * (m + RANKS - 1) * (layers + head) / RANKS, "That is if the work were cut evenly."),
        (_step(stages, m) / 3, "That is the forward half. Backward takes twice as long."),
        (2 * _step(stages, m) / 3, "That is the backward half."),
        (3 * (each * RANKS + head + m * (each + head)), "The first microbatch is in the way through the pipeline."),
    ]
    return Number.of(_step(stages, m), "", slips)


def best_cut(layers: int, head: int) -> list[int]:
    """Times of the stages of the cut whose slowest stage is fastest; the head is with the last one."""
    cuts = []
    for last in range(layers + 1):
        rest = [len(range(i, layers - last, RANKS - 1)) for i in range(RANKS - 1)]
        cuts.append([*rest, last + head])
    return min(cuts, key=max)


def slowest_stage(layers: int, head: int, m: int) -> Number:
    """Time of the slowest stage of the best cut, in times of a layer."""
    mean = (layers + head) / RANKS
    slips = [
        (layers // RANKS + head, "That is the cut above. Give the last stage fewer layers."),
        (mean, "Layers are whole: some stage has a little more than the mean."),
        (math.floor(mean), "Then the stages together have less than all the work."),
        (layers // RANKS, "The head is work, too."),
    ]
    return Number.count(max(best_cut(layers, head)), slips)


def step_of_best_cut(layers: int, head: int, m: int) -> Number:
    """Step of the best cut."""
    stages = best_cut(layers, head)
    even = [layers / RANKS] * (RANKS - 1) + [layers / RANKS + head]
    slips = [
        (_step(even, m), "That is the cut above."),
        (3 * m * max(stages), "The way of the first microbatch through all stages comes before."),
        (_step(stages, m) / 3, "That is the forward half. Backward takes twice as long."),
        (3 * (m + RANKS - 1) * (layers // RANKS), "The head is work, too."),
    ]
    return Number.of(_step(stages, m), "", slips, 0.005)


# How deep? ----------------------------------------------------------------------------------------------------------

FLEET = 64  # GPUs of the question


def fewest_stages(billions: int, gigabytes: int, batch: int) -> Number:
    """The fewest stages, a power of two, that fit on 80 GB."""
    room = cost.GPU_MEMORY / GB - gigabytes
    right = 1
    while cost.state_bytes(billions * 1e9) / GB / right > room:
        right *= 2
    without = 1
    while cost.state_bytes(billions * 1e9) / GB / without > cost.GPU_MEMORY / GB:
        without *= 2
    slips = [
        (
            math.ceil(cost.state_bytes(billions * 1e9) / GB / room),
            "A power of two is asked for: it must divide the GPUs.",
        ),
        (without, "The activations of rank 0 need room as well."),
        (right // 2, "Then it does not fit: 16 bytes a parameter, and the activations."),
        (2 * right, "It fits with fewer."),
        (FLEET, "It fits with fewer."),
    ]
    return Number.count(right, slips)


def _depth(billions: int, gigabytes: int, batch: int) -> tuple[int, int]:
    """Fewest stages, and the microbatches that each pipeline gets."""
    p = int(fewest_stages(billions, gigabytes, batch).answer)
    return p, batch * p // FLEET


def bubble_shallow(billions: int, gigabytes: int, batch: int) -> Number:
    """Percent of bubble with the fewest stages."""
    p, m = _depth(billions, gigabytes, batch)
    slips = [
        (100 * cost.bubble_fraction(p, batch), "The pipelines share the batch: each gets a part of its samples."),
        (100 * (p - 1) / m, "That compares idle time with work."),
        (100 * cost.bubble_fraction(p, max(1, batch // FLEET)), "There are as many pipelines as p goes into the GPUs."),
        (100 * m / (m + p - 1), "That is the part in which a rank works."),
    ]
    return Number.of(100 * cost.bubble_fraction(p, m), "%", slips)


def bubble_deep(billions: int, gigabytes: int, batch: int) -> Number:
    """The same with four times as many stages."""
    p, m = _depth(billions, gigabytes, batch)
    slips = [
        (100 * cost.bubble_fraction(4 * p, m), "There are fewer pipelines then, and each gets more of the batch."),
        (100 * cost.bubble_fraction(p, m), "That is with the fewest stages."),
        (100 * cost.bubble_fraction(4 * p, batch), "The pipelines share the batch."),
        (100 * (4 * p - 1) / (4 * m), "That compares idle time with work."),
    ]
    return Number.of(100 * cost.bubble_fraction(4 * p, 4 * m), "%", slips, 0.005)


def what_depth_changes() -> Several:
    """What gets less on a GPU with more stages, with GPUs and batch given."""
    why = {
        "a": "16 bytes a parameter, and a stage has 1/p of them.",
        "b": "rank 0 holds p microbatches of 1/p of the layers. Multiply.",
        "c": "the gradients that a rank must average are those of its own stage.",
        "d": "p boundaries and m p / N microbatches: does an activation cross fewer boundaries?",
        "e": "p - 1 and m grow together. Compare your two numbers.",
    }
    return Several("ac", why)
