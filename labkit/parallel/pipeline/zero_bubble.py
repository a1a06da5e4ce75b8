"""Zero-bubble schedules: the backward is cut in two, and the half that nobody waits for fills the gaps.

F, B and W are the seconds of a forward, of the gradient of the input, and of the gradients of the weights, the same on
all ranks; messages take no time; p is the ranks, m the microbatches. Activations are counted from a microbatch's
forward to the end of its W.

Idle time is counted inside a rank's own span, from its first instruction to the end of its last, as the authors do
(`Timeline.idle_inside`). A rank that need not wait for the others at the end of a step begins the next one at once,
and then nothing else is lost. In one step seen alone ranks also wait for their turn at its beginning, or for the last
rank at its end, so the step is never shorter than m (F + B + W) + (p - 1) F.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, product

from labkit.parallel.pipeline.instructions import Forward, InputGradient, Instruction, WeightGradient
from labkit.parallel.pipeline.schedule import Schedule
from labkit.parallel.pipeline.schedules import by_turns, counts


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1 (Qi et al. 2023): the order of 1F1B, and rank r puts each W off until r more input gradients are done.

    As many activations as 1F1B has on its first rank, min(m, p), on each rank. Idle inside rank r's span:
    (p - 1 - r) (F + B - W), if m >= p and W <= F, and only then. With fewer microbatches rank 0 is idle for
    (p - 1) (F + B) - (m - 1) W. The step: m (F + B + W) + (p - 1) max(F, F + B - W).
    """
    counts(stages=stages, microbatches=microbatches)
    ranks = _lagging(microbatches, [(stages - 1 - rank, rank) for rank in range(stages)])
    return Schedule(ranks, microbatches, name="zb_h1")


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2 (Qi et al. 2023): twice the forwards before the first backward, and each W put off twice as long.

    Activations: min(m, 2p - 1) on each rank. Idle inside rank r's span: (p - 1 - r) (F + B - 2W), if m >= 2p - 1,
    W <= F and 2W <= F + B, and only then: nothing if all three take the same time. The step:
    m (F + B + W) + (p - 1) max(F, F + B - 2W). With B = W that is no less than ZB-H1's: what is won, only the
    next step sees.
    """
    counts(stages=stages, microbatches=microbatches)
    ranks = _lagging(microbatches, [(2 * (stages - 1 - rank), 2 * rank) for rank in range(stages)])
    return Schedule(ranks, microbatches, name="zb_h2")


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V (Qi et al. 2023): two chunks on each rank, and the model goes down the ranks and comes back up.

    Rank 0 has the first stage and the last, so that no backward has far to come. If F, B and W take the same time and
    m >= 2p - 1, no rank is idle inside its span, as in ZB-H2, with the memory of ZB-H1: 2p activations of half
    a rank's layers (with fewer microbatches min(2m, m + 1 + r, 2p) on rank r). The order is that of PyTorch's
    ScheduleZBVZeroBubble.
    """
    counts(stages=stages, microbatches=microbatches)
    ranks = [_v(stages, max(microbatches, 2 * stages - 1), rank) for rank in range(stages)]
    kept = [[step for step in rank if step.microbatch < microbatches] for rank in ranks]
    return Schedule(kept, microbatches, chunks=2, placement="v", name="zb_v")


def v_half(stages: int, microbatches: int) -> Schedule:
    """V-Half (Qi et al. 2024, "Pipeline parallelism with controllable memory"): ZB-V with about half its memory.

    In 6 units of time, F = B = W = 1 each, a rank begins one microbatch: two forwards, two input gradients and two
    weight gradients, one of each for either chunk. All ranks repeat this block, and only its offsets differ: a
    forward of the first chunk comes to the next rank 2 units later, one of the second chunk 1 later, and so back. A
    microbatch lives for as long as these offsets say, and that decides the memory: 2 floor(p/2) + 2 activations of
    half a rank's layers on each rank (never more than 2m), where ZB-V has 2p and V-Min of the same paper about 2p/3.
    What it costs: on 2 ranks or more, with m >= p/2 + 2 microbatches, the step takes 6m + floor((7p - 8) / 2) of
    these units. 1F1B has 6m + 6 (p - 1).
    """
    counts(stages=stages, microbatches=microbatches)
    ranks = [_repeated(microbatches, _half_offsets(stages, rank)) for rank in range(stages)]
    return Schedule(ranks, microbatches, chunks=2, placement="v", name="v_half")


def _half_offsets(stages: int, rank: int) -> dict[Instruction, int]:
    """When a rank does the first microbatch. No two are the same modulo 6, or blocks would collide."""
    down, turn, back = (4, 1, 5) if stages % 2 == 0 else (2, 1, 1)  # pauses at the last rank, the first, the last
    last, to_last = stages - 1, stages - 1 - rank
    up = 2 * last + down  # the forward of the second chunk begins on the last rank
    again = up + last + turn  # its input gradient, on rank 0
    return {
        Forward(0, 0): 2 * rank,
        Forward(0, 1): up + to_last,
        InputGradient(0, 1): again + 2 * rank,
        InputGradient(0, 0): again + 2 * last + back + to_last,
    }


def _repeated(microbatches: int, offsets: dict[Instruction, int]) -> list[Instruction]:
    """The block once every 6 units; each W in the first unit after its B that no block uses."""
    taken = {offset % 6 for offset in offsets.values()}
    at = {offset + 6 * k: type(first)(k, first.chunk) for first, offset in offsets.items() for k in range(microbatches)}
    for when, step in sorted(at.items()):
        if type(step) is InputGradient:
            free = next(u for u in count(when + 1) if u % 6 not in taken and u not in at)
            at[free] = WeightGradient(step.microbatch, step.chunk)
    return [step for _, step in sorted(at.items())]


def _v(stages: int, microbatches: int, rank: int) -> list[Instruction]:
    """What a rank does with at least 2 * stages - 1 microbatches."""
    steps: list[Instruction] = []
    done: dict[tuple[type[Instruction], int], int] = dict.fromkeys(
        product((Forward, InputGradient, WeightGradient), (0, 1)), 0
    )

    def do(kind: type[Instruction], chunk: int) -> None:
        steps.append(kind(done[kind, chunk], chunk))
        done[kind, chunk] += 1

    def back(chunk: int) -> None:
        do(InputGradient, chunk)
        do(WeightGradient, chunk)

    for _ in range(2 * (stages - rank) - 1):
        do(Forward, 0)
    for _ in range(rank):  # the first microbatches are on their way back
        do(Forward, 1)
        do(Forward, 0)
    for _ in range(stages - rank):
        do(Forward, 1)
        back(1)
    while done[Forward, 1] < microbatches:
        if done[Forward, 0] < microbatches:
            do(Forward, 0)
        back(0)
        do(Forward, 1)
        back(1)
    for _ in range(rank):  # nothing is left to go forward: the others wait for input gradients
        do(InputGradient, 0)
        do(InputGradient, 1)
    for _ in range(stages - rank):
        back(0)
    for chunk in (1, 0):
        while done[WeightGradient, chunk] < microbatches:
            do(WeightGradient, chunk)
    return steps


def _lagging(microbatches: int, delays: Iterable[tuple[int, int]]) -> list[list[Instruction]]:
    """By rank, for its (warmup, lag): 1F1B of forwards and input gradients, after `warmup` forwards.

    The W of a microbatch follows the input gradient of the one `lag` later; at the end, all those that are left.
    """
    microbatch = range(microbatches)
    forwards, gradients, weights = ([*map(kind, microbatch)] for kind in (Forward, InputGradient, WeightGradient))
    ranks = []
    for warmup, lag in delays:
        steps: list[Instruction] = []
        for step in by_turns(forwards, gradients, warmup):
            steps.append(step)
            if type(step) is InputGradient and step.microbatch >= lag:
                steps.append(weights[step.microbatch - lag])
        ranks.append([*steps, *weights[max(0, microbatches - lag) :]])
    return ranks
