"""What the checks of chapter 10 compare with: schedules under a limit of memory, clocks, and a pipeline on one rank.

Schedules cross the wall as lists of labels ("2F0", a list per rank), and are read and judged here.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.grading.checks.student import Evidence, Student
from labkit.grading.known import Answers
from labkit.parallel.pipeline import (
    Costs,
    Instruction,
    Schedule,
    from_labels,
    one_f_one_b,
    simulate,
    validate,
)  # fmt: skip
from labkit.parallel.pipeline.instructions import Message
from labkit.wire.errors import RefusedError

answers = Answers("10_pipeline_parallelism")  # what only instructors can compute


Rows = list[list[str]]
MS = 10**6  # nanoseconds


# Reading what was returned ---------------------------------------------------------------------------------------


def read_schedule(student: Student, run: Evidence, microbatches: int, explicit: bool = False) -> Schedule:
    """The schedule of which every rank returned the labels: complete, and in an order that can run. Else NotRight.

    explicit: it has messages, and each is a blocking one.
    """
    n, rows = len(run.results), run.results[0]
    many = f"With {n} rank{'s' * (n != 1)} and {microbatches} microbatch{'es' * (microbatches != 1)}"
    for rank, got in enumerate(run.results):
        fine = isinstance(got, list) and len(got) == n and all(isinstance(row, (list, tuple)) for row in got)
        student.expect(fine, f"{many}: rank {rank} returned no list of {n} lists, one for each rank.")
        student.expect(got == rows, f"{many}: rank {rank} returned another schedule than rank 0.")
    try:
        schedule = from_labels(rows, microbatches=microbatches)
        student.expect(schedule.chunks == 1, f"{many}: there are labels of stage {schedule.stages - 1}. Stage r is on "
                       f"rank r, and there are {n}.")  # fmt: skip
        if not explicit:
            sends = next((label for row in rows for label in row if "_" in str(label)), "")
            student.expect(not sends, f"{many}: {sends} is a message. Only computations are asked for.")
        validate(schedule)
    except RefusedError as error:
        student.expect(False, f"{many}: {error}.")
    return schedule


def kinds(row: Sequence[Instruction]) -> list[tuple[str, int]]:
    """(action, microbatch) of each computation of a rank."""
    return [(step.action, step.microbatch) for step in row if not isinstance(step, Message)]


def step_ms(schedule: Schedule, f: float, b: float, w: float) -> float:
    """Milliseconds of the step, with F, B and W in milliseconds."""
    return simulate(schedule, Costs(f / 1000, b / 1000, w / 1000)).makespan / MS


def most_in_flight(schedule: Schedule) -> list[int]:
    """By rank: the most microbatches between their forward and the end of their backward."""
    return list(validate(schedule).peak)


# Schedules under a limit of memory -------------------------------------------------------------------------------


UNITS = (1.0, 2.0, 0.0)  # milliseconds of F, B and W where a whole backward pass is simulated


def expect_step(student: Student, schedule: Schedule, best: Schedule) -> None:
    """In simulation the step takes no longer than that of `best`."""
    got, want = step_ms(schedule, *UNITS), step_ms(best, *UNITS)
    text = "{what}: the step takes {got:g} ms (F {f:g}, B {b:g}), and {want:g} would do. {why}"
    f, b, w = UNITS
    student.expect(got <= want + 1e-6, text, what=_what(best), got=got, want=want, f=f, b=b + w,
                   why=_why_slow(schedule, best))  # fmt: skip


def _what(best: Schedule) -> str:
    n, m = best.size, best.microbatches
    return f"With {n} ranks, {m} microbatches and room for {best.name}" if best.name.isdigit() else (
        f"With {n} ranks and {m} microbatches")  # fmt: skip


def _why_slow(schedule: Schedule, best: Schedule) -> str:
    for actions, word in (("F", "forwards"), ("BI", "backwards")):
        orders = [[k for action, k in kinds(row) if action in actions] for row in schedule.ranks]
        other = next((rank for rank, order in enumerate(orders) if order != orders[0]), 0)
        if other:
            return f"Rank {other} does its {word} in another order than rank 0: it waits for what comes last."
    held = most_in_flight(schedule)
    if max(held) == 1 < min(schedule.size, schedule.microbatches):
        return "One microbatch is under way at a time: the next one may follow as soon as a rank is free."
    for rank, (has, may) in enumerate(zip(held, most_in_flight(best), strict=True)):
        if has < may:
            return f"Rank {rank} never holds more than {has}, and may hold {may}: one forward more in its warmup."
    return "Draw it: where does a rank wait, although there is a forward that it could do?"


def expect_held(student: Student, schedule: Schedule, room: int) -> None:
    """No rank of a 1F1B keeps more activations than it must, nor than `room`."""
    n, m = schedule.size, schedule.microbatches
    best, held = limited_1f1b(n, m, room), most_in_flight(schedule)
    for rank, (got, want) in enumerate(zip(held, most_in_flight(best), strict=True)):
        text = "{what}: rank {rank} holds {got} activations, and {want} would do. {why}"
        why = why_held(got, want)
        if held == most_in_flight(one_f_one_b(n, m)):
            why = "That is 1F1B without a limit: what does `room` change?"
        elif got == m:
            why = "All forwards come before the first backward: that is GPipe."
        student.expect(got <= want, text, what=_what(best), rank=rank, got=got, want=want, why=why)


def why_held(got: int, want: int) -> str:
    """A likely cause of too many activations, or too few."""
    if got < want:
        return "The warmup is too short: then the rank waits for its first gradient."
    if got == want + 1:
        return "The warmup is one forward too long: by turns means that a forward comes before each backward."
    return "A backward frees an activation: let it come before the next forward."


def expect_room(student: Student, schedule: Schedule, room: int) -> None:
    """No rank keeps more than `room` microbatches, each until the end of its W."""
    held = most_in_flight(schedule)
    rank = held.index(max(held))
    text = (
        "With {n} ranks: rank {rank} holds {got} microbatches, from their F to the end of their W; there is room for "
        "{room}. {why}"
    )
    warm = [action for action, _ in kinds(schedule.ranks[rank])].index("I")
    why = f"It does {warm} forwards first." if warm > room else "Put W off less, or do fewer forwards first."
    student.expect(max(held) <= room, text, n=schedule.size, rank=rank, got=max(held), room=room, why=why)


def expect_idle(student: Student, schedule: Schedule, room: int, units: tuple[float, float, float]) -> None:
    """The rank that waits most is idle for no longer than `limited_idle`."""
    f, b, w = units
    idle = [ns / MS for ns in simulate(schedule, Costs(f / 1000, b / 1000, w / 1000)).idle_inside]
    want, got = limited_idle(schedule.size, room, f, b, w), max(idle)
    text = (
        "With {n} ranks, room for {room}, and F {f:g}, B {b:g}, W {w:g} ms: rank {rank} is idle for {got:g} ms; "
        "{want:g} are possible. {why}"
    )
    student.expect(got <= want + 1e-6, text, n=schedule.size, room=room, f=f, b=b, w=w, rank=idle.index(got), got=got,
                   want=want, why=_why_idle(schedule))  # fmt: skip


def _why_idle(schedule: Schedule) -> str:
    rows = [kinds(row) for row in schedule.ranks]
    last = rows[-1]
    if all(last.index(("W", k)) == last.index(("I", k)) + 1 for k in range(schedule.microbatches)):
        return "On the last rank every W stands right behind its I: put it off, and others get gradients sooner."
    if all(row.index(("W", 0)) > row.index(("I", schedule.microbatches - 1)) for row in rows):
        return "All W come at the very end."
    if schedule.size > 1 and [action for action, _ in rows[0]].index("I") <= schedule.size:
        return "Rank 0 does no more forwards first than 1F1B: has it room for more?"
    return "Where is there a gap, and which W could be in it?"


def limited_1f1b(stages: int, microbatches: int, room: int) -> Schedule:
    """The 1F1B in which no rank keeps more than `room` activations. Its name is `room`."""
    rows = answers.limited_1f1b(stages, microbatches, room)
    return from_labels(rows, microbatches=microbatches, name=str(room))


def limited_idle(stages: int, room: int, f: float, b: float, w: float) -> float:
    """Idle time, inside its own span, of the rank that waits most, if each rank may keep `room` activations.

    From ZB-H1 (`room` = p) to ZB-H2 (2p - 1): (p - 1) (F + B) - (room - 1) W. For W <= F, and 2p - 1 microbatches or
    more.
    """
    return (stages - 1) * (f + b) - (room - 1) * w
