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
from itertools import product

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
