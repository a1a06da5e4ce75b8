"""Zero-bubble schedules: the backward is cut in two, and the half that nobody waits for fills the gaps.

F, B and W are the seconds of a forward, of the gradient of the input, and of the gradients of the weights; p the
ranks, m the microbatches. Activations are counted from a microbatch's forward to the end of its W.
"""

from __future__ import annotations

from labkit.parallel.pipeline.instructions import Forward, InputGradient, Instruction, WeightGradient
from labkit.parallel.pipeline.schedule import Schedule
from labkit.parallel.pipeline.schedules import by_turns, counts


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1 (Qi et al. 2023): the order of 1F1B, and rank r puts each W off until r more input gradients are done.

    As many activations as 1F1B has on its first rank, min(m, p), on each rank.
    """
    counts(stages=stages, microbatches=microbatches)
    ranks = [_lagging(microbatches, stages - 1 - rank, rank) for rank in range(stages)]
    return Schedule(ranks, microbatches, name="zb_h1")


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2 (Qi et al. 2023): twice the forwards before the first backward, and each W put off twice as long.

    Activations: min(m, 2p - 1) on each rank.
    """
    counts(stages=stages, microbatches=microbatches)
    ranks = [_lagging(microbatches, 2 * (stages - 1 - rank), 2 * rank) for rank in range(stages)]
    return Schedule(ranks, microbatches, name="zb_h2")


def _lagging(microbatches: int, warmup: int, lag: int) -> list[Instruction]:
    """1F1B by input gradients after `warmup` forwards; the W of a microbatch follows the B of `lag` microbatches on."""
    turns = by_turns([*map(Forward, range(microbatches))], map(InputGradient, range(microbatches)), warmup)
    steps: list[Instruction] = []
    for step in turns:
        steps.append(step)
        if type(step) is InputGradient and step.microbatch >= lag:
            steps.append(WeightGradient(step.microbatch - lag))
    return [*steps, *map(WeightGradient, range(max(0, microbatches - lag), microbatches))]
