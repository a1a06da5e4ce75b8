"""What is said about an order of axes on a machine: whether it is allowed, its seconds, and its rank numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.chapters.c21_hundred_thousand_gpus.axes import (
    TOLERANCE,
    WRONG,
    Machine,
    axis_seconds,
    groups_along,
    least,
    level_of,
    order_seconds,
    outside,
)
from labkit.grading.checks.student import Evidence, Student


def expect_orders(student: Student, run: Evidence, machines: list[list[Machine]], numbers: bool = True) -> None:
    """Every mesh has an order that is allowed, none is faster, and its seconds and rank numbers are right."""
    for rank, (got, many) in enumerate(zip(run.results, machines, strict=True)):
        text = "Rank {rank} did not return a list with an answer for each of its {count} machines."
        student.expect(isinstance(got, list) and len(got) == len(many), text, rank=rank, count=len(many))
        for number, (mine, machine) in enumerate(zip(got, many, strict=True)):
            axes = " x ".join(f"{name} {size}" for name, size in machine["axes"].items())
            holds = [level["holds"] for level in machine["levels"]]
            where = f"Machine {number} of rank {rank} (levels of {holds}, axes {axes})"
            _expect_order(student, where, mine, machine)
            if numbers and mine is not None:
                _expect_numbers(student, where, mine, machine)


def _expect_order(student: Student, where: str, mine: Any, machine: Machine) -> None:
    best = least(machine)
    if best is None:
        text = "{where}: no order keeps {inside} inside. Return None, so that somebody takes smaller axes."
        student.expect(mine is None, text, where=where, inside=" and ".join(machine["inside"]))
        return
    fine = isinstance(mine, dict) and set(mine) == {"order", "seconds", "coordinates", "groups"}
    student.expect(fine, "{where}: return order, seconds, coordinates and groups, or None.", where=where)
    order = mine["order"]
    fine = isinstance(order, list) and sorted(map(str, order)) == sorted(machine["axes"])
    student.expect(fine, "{where}: the order is {got}, and needs each axis once.", where=where, got=repr(order))
    shown = " > ".join(order)
    axis = outside(machine, order)
    text = "{where}: in {shown} groups of {axis} leave a {level}. {why}"
    why = "Do units and groups begin together? A small group can still lie in two units." if axis else ""
    if axis and not outside(machine, order[::-1]):
        why = "Read from the other end it would not: the last axis changes from one rank to the next."
    student.expect(not axis, text, where=where, shown=shown, axis=axis, level=machine["inside"].get(axis), why=why)
    seconds = order_seconds(machine, order)
    given = mine["seconds"]
    fine = isinstance(given, (int, float)) and not isinstance(given, bool)
    student.expect(fine, "{where}: seconds must be a number.", where=where)
    slip = next((text for name, text in WRONG.items() if _near(given, order_seconds(machine, order, name))), "")
    parts = ", ".join(
        f"{a} {axis_seconds(machine, order, a):.6g} s ({machine['levels'][level_of(machine, order, a)]['name']})"
        for a in order if machine["axes"][a] > 1
    )  # fmt: skip
    text = "{where}: for {shown} you say {given:.6g} s, and it takes {seconds:.6g} s: {parts}. {slip}"
    student.expect(_near(given, seconds), text, where=where, shown=shown, given=float(given), seconds=seconds,
                   parts=parts, slip=slip)  # fmt: skip
    text = "{where}: {shown} takes {seconds:.6g} s: {parts}. Another order takes {best:.6g} s. Did you try all of them?"
    student.expect(seconds <= best * (1 + TOLERANCE), text, where=where, shown=shown, seconds=seconds, parts=parts,
                   best=best)  # fmt: skip


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * abs(b)


def _expect_numbers(student: Student, where: str, mine: dict[str, Any], machine: Machine) -> None:
    order, axes = mine["order"], list(machine["axes"])
    mesh = [machine["axes"][name] for name in order]
    for number, (rank, axis) in enumerate(machine["ask"]):
        at = dict(zip(order, (int(x) for x in np.unravel_index(rank, mesh)), strict=True))
        want = [at[name] for name in axes]
        groups = groups_along(machine, order, axis)
        group = next(row for row in groups.tolist() if rank in row)
        got = mine["coordinates"][number] if _long(mine["coordinates"], number) else None
        why = ""
        if got == [at[name] for name in order] != want:
            why = "Name them in the order in which the axes are given, not in the one that you found."
        elif isinstance(got, list) and got == _reversed(rank, order, machine, axes) != want:
            why = "The last axis of the order changes from one rank to the next, not the first."
        text = "{where}: rank {rank} is at {got} along {axes}, you say, and is at {want}. {why}"
        student.expect(
            got == want, text, where=where, rank=rank, got=repr(got), axes=", ".join(axes), want=want, why=why
        )
        got = mine["groups"][number] if _long(mine["groups"], number) else None
        text = "{where}: you say that rank {rank} is in the {axis} group {got}, and it is in {want}."
        student.expect(got == group, text, where=where, rank=rank, axis=axis, got=repr(got), want=group)


def _long(value: Any, number: int) -> bool:
    return isinstance(value, list) and len(value) > number


def _reversed(rank: int, order: list[str], machine: Machine, axes: list[str]) -> list[int]:
    """The coordinates if the first axis of the order changed fastest."""
    back = order[::-1]
    at = dict(zip(back, np.unravel_index(rank, [machine["axes"][name] for name in back]), strict=True))
    return [int(at[name]) for name in axes]
