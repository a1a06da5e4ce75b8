"""Meshes on machines with levels, and the seconds of each order of their axes, counted rank by rank.

Here every group of ranks is made, and every GPU's unit is looked up. The program of the exercise has a rule for it, as
has `labkit.cost.topology`, with which the tests compare this. Wires are shared by nobody: a level's bandwidth is what
each GPU has when all send (arXiv 2602.00277, section 2.1, has 1 : 2.8 between zones).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from random import Random
from typing import Any

import numpy as np

from labkit.cost.units import GB, MB, US
from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Student
from labkit.grading.known import Answers

answers = Answers("21_hundred_thousand_gpus")  # what only instructors can compute


Machine = dict[str, Any]  # plain data: see the statement of the exercise
NAMES = ("domain", "rack", "building", "campus")
TOLERANCE = 1e-6  # of a time
WRONG = {
    "fits": "Your time is that of groups that stay inside because they are small. Units and groups must also begin "
            "together: 4 ranks of 6 fit once, and the next 4 lie in two units.",
    "no latency": "Your time has no latency in it. A ring has steps one after the other, each as late as its wires.",
    "one latency": "Your time has the latency once. Every step of a ring is late by it.",
    "first inside": "Your time is that of an order read from the other end: the last axis changes from one rank to the "
                    "next.",
}  # fmt: skip


def some_machines(student: Student, n: int, count: int, odd: bool, none: bool = False) -> list[list[Machine]]:
    """By rank: `count` machines, each with a mesh. odd: units that the axes do not divide. none: the last has no order.

    Of many drawings those are taken that together expose the most wrong ways.
    """
    random = Random(number_from(student.seed, "chapter 21", "axes", n, count, odd, none))
    found = []
    for _ in range(n):
        drawn = [(m, exposed(m)) for m in (_machine(random, odd) for _ in range(5 * count))]
        taken: list[Machine] = []
        shown: set[str] = set()
        while len(taken) < count:
            best = max(drawn, key=lambda pair: (len(pair[1] - shown), len(pair[1])))
            drawn.remove(best)
            taken.append(best[0])
            shown |= best[1]
        if none:
            last = taken[-1]
            last["inside"] = {name: NAMES[0] for name in last["axes"]}
        found.append(taken)
    return found


def _machine(random: Random, odd: bool) -> Machine:
    holds = [random.choice((6, 12, 18) if odd else (4, 8, 16)), random.choice((2, 4)), random.choice((2, 3, 4)), 2]
    holds = holds[: random.choice((3, 4))]
    latency: float = random.choice((2, 5)) * US
    bandwidth: float = random.choice((200, 450)) * GB
    levels = []
    for name, units in zip(NAMES, holds, strict=False):
        levels.append({"name": name, "holds": units, "latency": latency, "bandwidth": bandwidth})
        latency *= random.choice((2, 7, 15))
        bandwidth /= random.choice((1, 2.8, 9))
    names = ["tensor", "context", "pipeline", "data", "replica"][: random.choice((4, 5))]
    gpus, sizes = math.prod(holds), dict.fromkeys(names, 1)
    while math.prod(sizes.values()) < gpus / 2:
        name = random.choice(names)
        grown = sizes | {name: sizes[name] * random.choice((2, 2, 3))}
        sizes = grown if math.prod(grown.values()) <= gpus else sizes | {name: sizes[name] + 1}
        if math.prod(sizes.values()) > gpus:
            sizes = dict.fromkeys(names, 1)
    order = random.sample(names, len(names))
    traffic = {name: _traffic(random, name) for name in order}
    ranks = math.prod(sizes.values())
    return {
        "levels": levels, "axes": {name: sizes[name] for name in order}, "traffic": traffic,
        "inside": {"tensor": random.choice(NAMES[:2])} if random.random() < 0.6 else {},
        "ask": [[random.randrange(ranks), random.choice(order)] for _ in range(4)],
    }  # fmt: skip


def _traffic(random: Random, name: str) -> dict[str, Any]:
    kind, megabytes, calls = {
        "tensor": ("all_reduce", (10, 40, 100), (40, 160)),
        "context": ("all_gather", (5, 60), (20, 80)),
        "pipeline": ("send", (20, 100, 900), (16, 64)),
        "data": (random.choice(("all_gather", "all_reduce")), (200, 1000), (2, 60)),
        "replica": ("all_reduce", (500, 4000), (1, 2)),
    }[name]
    return {"collective": kind, "bytes": random.choice(megabytes) * MB, "calls": random.choice(calls)}


def exposed(machine: Machine) -> set[str]:
    """The wrong ways that lead to an order that costs more, or is not allowed. Nothing where no order is allowed."""
    best = least(machine)
    if best is None:
        return set()
    orders = list(permutations(machine["axes"]))
    ways = {name: min(orders, key=lambda order: order_seconds(machine, order, name)) for name in WRONG}
    ways["most bytes inside"] = tuple(sorted(machine["axes"], key=lambda a: _bytes(machine, a)))
    ways["anywhere"] = min(orders, key=lambda order: order_seconds(machine, order))
    return {name for name, order in ways.items()
            if outside(machine, order) or order_seconds(machine, order) > best * (1 + TOLERANCE)}  # fmt: skip


def _bytes(machine: Machine, axis: str) -> float:
    flow = machine["traffic"][axis]
    return float(flow["bytes"] * flow["calls"])


# What an order costs --------------------------------------------------------------------------------------------------


def groups_along(machine: Machine, order: Sequence[str], axis: str) -> np.ndarray:
    """[groups, size] ranks of each group along `axis`, if the mesh is `order`, outermost first."""
    return _groups(*_shape(machine, order, axis))


def level_of(machine: Machine, order: Sequence[str], axis: str) -> int:
    """The innermost level of which every group along `axis` has all its ranks in one unit."""
    return _level(_units(machine), *_shape(machine, order, axis), "")


def axis_seconds(machine: Machine, order: Sequence[str], axis: str, wrong: str = "") -> float:
    """Seconds of a step along one axis, step of the ring by step of the ring."""
    size, flow = machine["axes"][axis], machine["traffic"][axis]
    if size == 1:
        return 0.0
    level = machine["levels"][_level(_units(machine), *_shape(machine, order, axis), wrong)]
    latency = 0.0 if wrong == "no latency" else level["latency"]
    steps, part = {"all_reduce": (2 * (size - 1), size), "all_gather": (size - 1, size), "send": (1, 1)}[
        flow["collective"]
    ]
    seconds = 0.0
    for step in range(steps):
        seconds += flow["bytes"] / part / level["bandwidth"] + latency * (wrong != "one latency" or step == 0)
    return float(flow["calls"] * seconds)


def _shape(machine: Machine, order: Sequence[str], axis: str) -> tuple[int, int, int]:
    """The mesh as (what is outside of the axis, the axis, what is inside of it)."""
    sizes = [machine["axes"][name] for name in order]
    place = list(order).index(axis)
    return math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :])


def _units(machine: Machine) -> tuple[int, ...]:
    return tuple(level["holds"] for level in machine["levels"])


@lru_cache(maxsize=4096)
def _groups(before: int, size: int, behind: int) -> np.ndarray:
    return np.arange(before * size * behind).reshape(before, size, behind).swapaxes(1, 2).reshape(-1, size)


@lru_cache(maxsize=65536)
def _level(holds: tuple[int, ...], before: int, size: int, behind: int, wrong: str) -> int:
    groups, unit = _groups(before, size, behind), 1
    for number, held in enumerate(holds):
        unit *= held
        if (groups // unit == groups[:, :1] // unit).all():
            return number
        if wrong == "fits" and size * behind <= unit:
            return number
    raise ValueError(f"a mesh of {groups.size} ranks does not fit on {unit} GPUs: take smaller axes")


def order_seconds(machine: Machine, order: Sequence[str], wrong: str = "") -> float:
    """Seconds of all axes, one after the other. wrong: a key of WRONG."""
    order = list(order)[::-1] if wrong == "first inside" else order
    return math.fsum(axis_seconds(machine, order, axis, wrong) for axis in order)


def outside(machine: Machine, order: Sequence[str]) -> str:
    """An axis that leaves the units that it must stay in, or ""."""
    names = [level["name"] for level in machine["levels"]]
    for axis, level in machine["inside"].items():
        if machine["axes"][axis] > 1 and level_of(machine, order, axis) > names.index(level):
            return str(axis)
    return ""


least = answers.least
