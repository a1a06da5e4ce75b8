"""Fleets that fail at given times, and the GPU-seconds that they train, stand still and are away, second by second.

All times are whole seconds, so a fleet is in one state in each second, and is counted second by second. A program
that goes from event to event must find the same numbers. The rules are those of `labkit.cost.simulate_fleet` (after
arXiv 2602.00277, section 6.1), with a repair time for each failure; the tests compare the two where both apply.
"""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.cost.units import DAY
from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student
from labkit.grading.known import Answers

answers = Answers("21_hundred_thousand_gpus")  # what only instructors can compute


Fleet = dict[str, Any]  # plain data: see the statement of the exercise
PARTS = ("trained", "stalled", "away")
KINDS = ("apart", "two at once", "in a recovery", "in a stall", "at the return", "at the end", "often")
MONTH = round(30 * DAY)

WRONG = {
    "queue": "A failure in the stall of another one begins a stall at its own moment. They overlap, and are not added.",
    "no rejoin": "When a replica is back, all stand still for `rejoin` seconds. That is missing.",
    "back at once": "A replica that fails in the moment of its return was not back: nobody waits for it there.",
    "each returns": "A replica whose repairs overlap is back once: when the last of them is done.",
    "replaced": "Repairs of a replica go on side by side: a later failure does not end an earlier repair.",
    "doubled": "Repairs of one replica overlap, and its GPUs cannot be away twice.",
    "beyond": "What lies behind the end of the run does not count: cut it off there.",
    "all stalled": "GPUs of a replica that is away do not stand still as well: count them once, as away.",
    "one GPU": "A failed GPU takes its whole replica along: all its GPUs are away.",
}


def some_fleets(student: Student, n: int, count: int, kinds: tuple[str, ...]) -> list[list[Fleet]]:
    """By rank: `count` fleets of each of `kinds` (from KINDS), with failures in any order."""
    random = Random(number_from(student.seed, "chapter 21", "fleets", n, count, kinds))
    return [[_fleet(random, kind) for kind in kinds for _ in range(count)] for _ in range(n)]


def _fleet(random: Random, kind: str) -> Fleet:
    replicas, gpus = random.randint(2, 6), random.choice((4, 8, 24))
    stall, rejoin = random.randint(5, 40), random.randint(3, 30)
    rejoin += stall * (kind == "at the return")  # else the stall of the failure covers it
    length = random.randint(2000, 4000)
    found: list[tuple[int, int, int]] = []  # (time, replica, repair)

    def fails(time: int, replica: int, repair: int) -> None:
        found.append((time, replica % replicas, repair))

    if kind == "often":
        for _ in range(random.randint(15, 30)):
            fails(random.randrange(length), random.randrange(replicas), random.randint(30, 400))
    else:
        time = random.randint(0, 100)
        while time < length - 700:
            first, repair = random.randrange(replicas), random.randint(100, 300)
            fails(time, first, repair)
            if kind == "two at once":
                fails(time, first + random.randint(0, 1), random.randint(60, 400))
                fails(time, first + 1, repair)
            elif kind == "in a recovery":
                fails(time + random.randint(stall + 1, repair - 1), first, random.choice((10, 20, repair)))
            elif kind == "in a stall":
                fails(time + random.randint(1, stall - 1), first + random.randint(0, 1), random.randint(60, 200))
                fails(time + repair + random.randint(1, rejoin - 1), first + 1, random.randint(60, 200))
            elif kind == "at the return":
                fails(time + repair, first, random.randint(60, 200))
            time += random.randint(500, 900)
    if kind in ("at the end", "often"):
        fails(length - random.randint(stall + 10, 90), random.randrange(replicas), random.randint(100, 300))
        fails(length - random.randint(1, stall - 1), random.randrange(replicas), random.randint(100, 300))
        fails(length + random.randint(0, 9), random.randrange(replicas), random.randint(100, 300))
    failures = [[time, replica * gpus + random.randrange(gpus), repair] for time, replica, repair in found]
    random.shuffle(failures)
    return {"replicas": replicas, "gpus": gpus, "length": length, "stall": stall, "rejoin": rejoin,
            "failures": failures}  # fmt: skip


def a_month(student: Student, every: float = 1080.0) -> list[list[Fleet]]:
    """For one rank: 98,304 GPUs for 30 days, a failure every `every` seconds on average."""
    random, time = Random(number_from(student.seed, "chapter 21", "month")), 0.0
    failures = []
    while (time := time + random.expovariate(1 / every)) < MONTH:
        failures.append([int(time), random.randrange(98_304), random.randint(300, 900)])
    random.shuffle(failures)
    return [[{"replicas": 12, "gpus": 8192, "length": MONTH, "stall": 180, "rejoin": 100, "failures": failures}]]


counted = answers.counted


def expect_hours(student: Student, run: Evidence, fleets: list[list[Fleet]]) -> None:
    """Every fleet's GPU-seconds are those that are counted second by second."""
    for rank, (got, many) in enumerate(zip(run.results, fleets, strict=True)):
        text = "Rank {rank} did not return a list with an account for each of its {count} fleets."
        student.expect(isinstance(got, list) and len(got) == len(many), text, rank=rank, count=len(many))
        for number, (mine, fleet) in enumerate(zip(got, many, strict=True)):
            where = f"Fleet {number} of rank {rank} ({len(fleet['failures'])} failures)"
            fine = isinstance(mine, dict) and set(mine) == set(PARTS) and all(type(x) is int for x in mine.values())
            text = "{where}: return whole GPU-seconds by {parts}, and no float."
            student.expect(fine, text, where=where, parts=", ".join(PARTS))
            want, slips = counted(fleet), slips_of(fleet)  # both, whatever the student says: they may be recorded
            if mine == want:
                continue
            total = fleet["replicas"] * fleet["gpus"] * fleet["length"]
            why = explained(slips, mine, want)
            text = (
                "{where}: your parts sum to {got} GPU-hours; {replicas} x {gpus} GPUs have {want} in {length} s. {why}"
            )
            student.expect(sum(mine.values()) == total, text, where=where, got=hours(sum(mine.values())), why=why,
                           want=hours(total), replicas=fleet["replicas"], gpus=fleet["gpus"],
                           length=fleet["length"])  # fmt: skip
            part = next(name for name in ("away", "stalled", "trained") if mine[name] != want[name])
            text = "{where}: {part} are {got} GPU-hours, and should be {want}. {why}"
            student.expect(False, text, where=where, part=part, got=hours(mine[part]), want=hours(want[part]), why=why)


def slips_of(fleet: Fleet) -> dict[str, dict[str, int]]:
    """What the known slips make of a fleet that is not too large."""
    return {name: counted(fleet, name) for name in WRONG} if len(fleet["failures"]) < 100 else {}


def explained(slips: dict[str, dict[str, int]], mine: dict[str, int], want: dict[str, int]) -> str:
    """A likely cause: the slip that gives these numbers, or else those of one part."""
    slips = {name: parts for name, parts in slips.items() if parts != want}
    for name, parts in slips.items():
        if parts == mine:
            return WRONG[name]
    for part in ("away", "stalled"):
        for name, parts in slips.items():
            if parts[part] == mine[part] != want[part]:
                return WRONG[name]
    return "Draw the first failures on a line: who is away, when do all stand still?"


def hours(gpu_seconds: int) -> str:
    """GPU-seconds as GPU-hours, with as many digits as tell two accounts apart."""
    return f"{gpu_seconds / 3600:,.4f}"
