"""Pipeline parallelism: how long a step takes by each schedule, and what of it is idle.

A pipeline of p ranks ("stages") works on m microbatches. Every rank needs F seconds for a microbatch's forward pass, B
for the gradient of its input and W for those of its weights; with v chunks of the model on a rank, these are of all
chunks together. Messages take no time here: `labkit.parallel.pipeline.simulate` has links.

    naive          one microbatch after the other                      m p (F + B + W)
    gpipe          all forward, then all backward (Huang et al. 2019)  (m + p - 1) (F + B + W)
    one_f_one_b    PipeDream-Flush (Narayanan et al. 2021)             (m + p - 1) (F + B + W)
    interleaved    v chunks on each rank (Narayanan et al. 2021)       (m + (p - 1) / v) (F + B + W)
    zb_h1, zb_h2   backward in two (Qi et al. 2023): `pipeline_idle_seconds`
"""

from __future__ import annotations

import math

from labkit.cost.refuse import not_negative, one_of, positive, whole

__all__ = [
    "PIPELINE_SCHEDULES",
    "bubble_fraction",
    "bubble_overhead",
    "interleaved_bubble",
    "microbatches_for",
    "naive_bubble_fraction",
    "pipeline_exposed_hops",
    "pipeline_idle_seconds",
    "pipeline_step_seconds",
    "zero_bubble_fraction",
]

PIPELINE_SCHEDULES = ("naive", "gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2")
_ZERO_BUBBLE = {"zb_h1": 1, "zb_h2": 2}


def bubble_fraction(stages: int, microbatches: int, chunks: int = 1) -> float:
    """The idle part of a step, (p-1) / (v m + p - 1), of GPipe, 1F1B and (chunks v above 1) interleaved 1F1B.

    (4, 8): 27.3 percent; (4, 8, chunks=2): 15.8. It does not depend on F, B and W.
    """
    whole(stages=stages, microbatches=microbatches, chunks=chunks)
    return (stages - 1) / (chunks * microbatches + stages - 1)


def bubble_overhead(stages: int, microbatches: int) -> float:
    """Idle time over useful time, (p-1) / m: how much longer a step is than without a bubble.

    The textbook chapter uses this one for its configuration C, and `bubble_fraction` elsewhere: 9.4 and 8.6 percent
    for 4 stages and 32 microbatches.
    """
    return interleaved_bubble(stages, microbatches, 1)


def interleaved_bubble(stages: int, microbatches: int, chunks: int = 2) -> float:
    """Idle time over useful time with v chunks on a rank, (p-1) / (v m) (Narayanan et al. 2021, section 2.2.2)."""
    whole(stages=stages, microbatches=microbatches, chunks=chunks)
    return (stages - 1) / (chunks * microbatches)


def naive_bubble_fraction(stages: int) -> float:
    """The idle part with one microbatch at a time, (p-1) / p, however many microbatches there are."""
    return bubble_fraction(stages, 1)


def microbatches_for(stages: int, bubble: float, chunks: int = 1) -> int:
    """The fewest microbatches with which at most the part `bubble` of a step is idle: (p-1) (1-x) / (v x), rounded up.

    8 stages: 32 microbatches leave 17.9 percent, 5 percent need 133. 16 stages: 10 percent need 135.
    """
    whole(stages=stages, chunks=chunks)
    positive(bubble=bubble)
    if bubble >= 1:
        return 1
    exactly = (stages - 1) * (1 - bubble) / (chunks * bubble)
    return max(1, math.ceil(exactly - 1e-9))  # 135.00000000000003 is 135


def pipeline_idle_seconds(
    schedule: str,
    stages: int,
    microbatches: int,
    forward: float,
    input_gradient: float,
    weight_gradient: float,
    chunks: int = 1,
) -> float:
    """Idle seconds of the rank that waits most, between the first thing that it does in a step and the last.

    Of naive (p-1) m (F+B+W), of GPipe and 1F1B (p-1) (F+B+W), interleaved that over v. Of the zero-bubble schedules
    (p-1) (F+B-W) for zb_h1 and (p-1) (F+B-2W), or 0, for zb_h2 (Qi et al. 2023, table 2). That takes m of at least p
    and 2p-1 microbatches; with fewer, fewer weight gradients are there to fill gaps with. And W counts for no more
    than F: one weight gradient fills the place of one forward pass, and a longer one pushes the next instruction back.
    Raises ValueError for zb_h2 below 2p-1 microbatches with W above B, which no layer has: simulate it.

    A whole step can be longer than work and this: rank p-1 begins after (p-1) F. See `pipeline_step_seconds`.
    """
    _check(schedule, stages, microbatches, forward, input_gradient, weight_gradient, chunks)
    whole_pass = forward + input_gradient + weight_gradient
    if schedule == "naive":
        return (stages - 1) * microbatches * whole_pass
    if schedule == "zb_h2" and weight_gradient > input_gradient:
        _enough(schedule, stages, microbatches)
    if schedule in _ZERO_BUBBLE:
        filled = min(microbatches - 1, _ZERO_BUBBLE[schedule] * (stages - 1)) * min(weight_gradient, forward)
        return max(0.0, (stages - 1) * (forward + input_gradient) - filled)
    return (stages - 1) * whole_pass / chunks


def pipeline_step_seconds(
    schedule: str,
    stages: int,
    microbatches: int,
    forward: float,
    input_gradient: float,
    weight_gradient: float,
    chunks: int = 1,
) -> float:
    """Seconds from the first forward pass to the end of the last rank: work m (F+B+W), and idle time.

    The last rank begins (p-1) F after the first, so no schedule with one chunk of the model on each rank is shorter
    than (p-1) F + m (F+B+W). For zb_h2 with F = B = W that is its time, and zb_h1's as well: that zb_h2 has no bubble
    shows only where the next step begins on rank 0 while rank p-1 still ends this one, which a step that waits for all
    ranks (to clip gradients) forgoes. Raises ValueError for zb_h2 below 2p-1 microbatches, and for zb_h1 below p
    where W is above B: simulate those.
    """
    idle = pipeline_idle_seconds(
        schedule, stages, microbatches, forward, input_gradient, weight_gradient, chunks
    )  # fmt: skip
    if schedule == "zb_h2" or (schedule == "zb_h1" and weight_gradient > input_gradient):
        _enough(schedule, stages, microbatches)
    if schedule in _ZERO_BUBBLE:
        idle = max(idle, (stages - 1) * forward)
    return microbatches * (forward + input_gradient + weight_gradient) + idle


def pipeline_exposed_hops(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> float:
    """By how many times a message's seconds a step is longer than without, if messages run under computing.

    A message that no rank can compute under: while the pipeline fills and empties 2 (p-1), through v chunks 2 (p v - 1)
    (GPipe, interleaved). In 1F1B a stage may have no more than p microbatches before it, so every p microbatches wait
    for one round trip as well: 2 (p-1) / p each, and 2 (p-2) more. zb_h1 has twice as much room as that needs: 4 (p-1).
    zb_h2 fills the way back: p-1. As `labkit.parallel.pipeline.simulate` finds for messages far shorter than a pass and
    m a multiple of p; zero-bubble schedules take 2p microbatches, and with fewer wait for no more.
    """
    one_of(PIPELINE_SCHEDULES, schedule=schedule)
    whole(stages=stages, microbatches=microbatches, chunks=chunks)
    way = stages - 1
    if schedule == "one_f_one_b":
        return max(2 * way, 2 * (stages - 2) + 2 * way / stages * microbatches) if way else 0.0
    times = {"naive": 2 * way * microbatches, "gpipe": 2 * way, "zb_h1": 4 * way, "zb_h2": way}
    return times.get(schedule, 2 * (stages * chunks - 1) if way else 0)


def zero_bubble_fraction(
    schedule: str, stages: int, microbatches: int, forward: float = 1, input_gradient: float = 1,
    weight_gradient: float = 1,
) -> float:  # fmt: skip
    """Idle part of the time of the rank that waits most, as Qi et al. 2023 report it (their "bubble rate").

    4 stages, 8 microbatches, F = B = W: 11.1 percent with zb_h1 and 0 with zb_h2, where 1F1B has 27.3.
    """
    one_of(tuple(_ZERO_BUBBLE), schedule=schedule)
    idle = pipeline_idle_seconds(schedule, stages, microbatches, forward, input_gradient, weight_gradient)
    return idle / (idle + microbatches * (forward + input_gradient + weight_gradient))


def _enough(schedule: str, stages: int, microbatches: int) -> None:
    fewest = _ZERO_BUBBLE[schedule] * (stages - 1) + 1
    if microbatches < fewest:
        raise ValueError(
            f"{schedule} on {stages} stages has a closed form for these seconds from {fewest} microbatches on, not for "
            f"{microbatches}: simulate it"
        )


def _check(schedule: str, stages: int, microbatches: int, f: float, b: float, w: float, chunks: int) -> None:
    one_of(PIPELINE_SCHEDULES, schedule=schedule)
    whole(stages=stages, microbatches=microbatches, chunks=chunks)
    not_negative(forward=f, input_gradient=b, weight_gradient=w)
    positive(**{"forward + input_gradient + weight_gradient": f + b + w})
    if schedule == "interleaved":
        if microbatches % stages:
            near = [n * stages for n in (microbatches // stages, microbatches // stages + 1) if n]
            raise ValueError(
                f"microbatches must be a multiple of the {stages} stages for interleaved, and {microbatches} is not: "
                f"choose {' or '.join(map(str, near))}"
            )
    elif chunks != 1:
        raise ValueError(f"chunks must be 1 for {schedule}, not {chunks}: only interleaved has more")
