"""Schedules of a pipeline, as pure functions: (stages, microbatches) to what each rank does, in order.

`stages` is the number of ranks, and p below; `microbatches` is m. F and B are the seconds of one forward and of one
whole backward of a rank's part of the model, the same on all ranks; messages take no time. Activations are counted
from a microbatch's forward to the end of its backward.

    naive         one microbatch in the pipeline at a time          m p (F + B)              1 activation
    gpipe         all forwards, then all backwards                  (m + p - 1) (F + B)      m
    one_f_one_b   a backward as soon as there is one                (m + p - 1) (F + B)      min(m, p - rank)
    interleaved   the same, the model cut into more stages          (m + (p - 1) / chunks) (F + B), if m >= p
    pipedream     1F1B that never flushes: an update for each microbatch

The zero-bubble ones are in `zero_bubble`. All of them work with fewer microbatches than stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from labkit.parallel.pipeline.instructions import Backward, Forward, Instruction, Update
from labkit.parallel.pipeline.schedule import Schedule
from labkit.wire.errors import RefusedError


def naive(stages: int, microbatches: int) -> Schedule:
    """One microbatch goes forward through all stages and back again before the next begins.

    All ranks but one are idle at any time: the step takes m p (F + B), as long as on one device.
    """
    counts(stages=stages, microbatches=microbatches)
    steps = [step for k in range(microbatches) for step in (Forward(k), Backward(k))]
    return Schedule([steps] * stages, microbatches, name="naive")


def gpipe(stages: int, microbatches: int) -> Schedule:
    """GPipe (Huang et al. 2019): every microbatch forward, then every microbatch backward, first one first.

    The step takes (m + p - 1) (F + B). Each rank holds the activations of all m microbatches before it may free one.
    """
    counts(stages=stages, microbatches=microbatches)
    steps = [*map(Forward, range(microbatches)), *map(Backward, range(microbatches))]
    return Schedule([steps] * stages, microbatches, name="gpipe")


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """1F1B (Narayanan et al. 2019, 2021): p - 1 - rank forwards first, then one forward and one backward by turns.

    As fast as GPipe, (m + p - 1) (F + B), and a rank holds min(m, p - rank) activations, however many microbatches
    there are.
    """
    counts(stages=stages, microbatches=microbatches)
    forwards, backwards = [*map(Forward, range(microbatches))], [*map(Backward, range(microbatches))]
    ranks = [by_turns(forwards, backwards, stages - 1 - rank) for rank in range(stages)]
    return Schedule(ranks, microbatches, name="one_f_one_b")


def interleaved(stages: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Interleaved 1F1B (Narayanan et al. 2021): each rank has `chunks` smaller stages, and the model goes around.

    With F and B those of all chunks of a rank together, the step takes (m + (p - 1) / chunks) (F + B) if m >= p: the
    bubble is a `chunks`-th of 1F1B's. (With fewer microbatches it is (chunks - 1) (p - m) (F + B) / chunks longer.)
    It costs messages, `chunks` times as many, and memory: a rank holds
    (chunks - 1) p + 2 (p - 1 - rank) + 1 activations of a chunk, or all m * chunks if those are fewer.

    Microbatches go through a chunk in rounds of p, as in Megatron-LM. Where p does not divide m there are m // p longer
    rounds (one, if m < p), as in PyTorch's ScheduleInterleaved1F1B. All rounds have the same length: microbatches
    that cannot be cut so are refused. With one chunk there is nothing to interleave: it is `one_f_one_b`.
    """
    counts(stages=stages, microbatches=microbatches, chunks=chunks)
    if chunks == 1:
        return Schedule(one_f_one_b(stages, microbatches).ranks, microbatches, name="interleaved")
    if not _rounds_fit(stages, microbatches):
        below = next(m for m in range(microbatches, 0, -1) if _rounds_fit(stages, m))
        above = next(m for m in range(microbatches, 2 * microbatches + stages) if _rounds_fit(stages, m))
        raise RefusedError(
            f"interleaved(stages={stages}, microbatches={microbatches}): {microbatches} microbatches cannot be cut "
            f"into {microbatches // stages} rounds of the same length, each of {stages} or more. The nearest numbers "
            f"that can are {below} and {above}; any multiple of {stages} can"
        )
    length = microbatches // max(1, microbatches // stages)
    rounds = [range(first, first + length) for first in range(0, microbatches, length)]
    forwards = [Forward(k, chunk) for ks in rounds for chunk in range(chunks) for k in ks]
    backwards = [Backward(k, chunk) for ks in rounds for chunk in reversed(range(chunks)) for k in ks]
    ranks = [
        by_turns(forwards, backwards, (chunks - 1) * length + 2 * (stages - 1 - rank)) for rank in range(stages)
    ]  # fmt: skip
    return Schedule(ranks, microbatches, chunks, name="interleaved")


def pipedream(stages: int, microbatches: int) -> Schedule:
    """PipeDream (Narayanan et al. 2019): 1F1B in which each backward is followed by an update of the weights.

    It never waits for the pipeline to run empty, so with many microbatches nothing is idle. The price: a rank updates
    its weights p - 1 - rank times between the forward of a microbatch and its backward. For the gradient to belong to
    one set of weights the rank keeps the old ones: min(m, p - rank) versions.
    """
    plain = one_f_one_b(stages, microbatches)
    ranks = [
        [step for i in rank for step in ((i, Update(i.microbatch)) if type(i) is Backward else (i,))]
        for rank in plain.ranks
    ]
    return Schedule(ranks, microbatches, name="pipedream")


def by_turns(
    forwards: Sequence[Instruction], backwards: Iterable[Instruction], warmup: int
) -> list[Instruction]:  # fmt: skip
    """`warmup` forwards, then a forward and a backward by turns while there are forwards, then the other backwards."""
    warmup, rest = min(warmup, len(forwards)), iter(backwards)
    turns = chain.from_iterable((forward, next(rest)) for forward in forwards[warmup:])
    return [*forwards[:warmup], *turns, *rest]


def counts(**values: int) -> None:
    """Refuse what is not a whole number of at least 1."""
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise RefusedError(f"{name}={value!r}: a schedule needs a whole number, 1 or more")


def _rounds_fit(stages: int, microbatches: int) -> bool:
    return microbatches % max(1, microbatches // stages) == 0
