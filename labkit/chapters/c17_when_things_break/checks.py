"""What the checks of chapter 17 compare with: jobs that stand still, and calls that take time.

A job is simulated as a list of calls for each rank, which is followed until nothing moves any more. The same numbers
as a real job's records have then go to the student's ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, Student
from labkit.grading.known import Answers

answers = Answers("17_when_things_break")  # what only instructors can compute


# Who holds up the job -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Still:
    """A job that stands still. members: of each group. looks: what each rank's record says, as data. waits, culprits:
    what is to be found."""

    members: list[list[int]]
    looks: list[dict[str, Any]]
    waits: list[list[int]]
    culprits: list[int]


def groups_of(n: int) -> list[list[int]]:
    """Pairs that share layers, ranks with the same part of a replica, and everybody."""
    return [[2 * k, 2 * k + 1] for k in range(n // 2)] + [list(range(r, n, 2)) for r in (0, 1)] + [list(range(n))]


def stand_still(
    n: int, stuck: dict[int, tuple[int, bool]], seed: int, odd: int | None = None, alone: int | None = None
) -> Still:  # fmt: skip
    """Follow `n` ranks until nothing moves. stuck: by rank, the call at which it stops, and whether inside of it.

    A step has four calls: two along the pair (a chain: who has passed its data on, leaves), one along the replicas, one
    of everybody (nobody leaves before all are there). odd: a rank that asks for the last two the other way round.
    alone: a pair. Then a step has the calls of pairs only, and the ranks of other pairs are at work outside.
    """
    members = groups_of(n)
    order = Random(seed)
    numbers = list(range(len(members)))
    order.shuffle(numbers)  # the numbers of the groups tell nothing
    named: list[list[int]] = [[] for _ in members]
    for place, number in enumerate(numbers):
        named[number] = members[place]
    programs = []
    for rank in range(n):
        pair, across, all_ = (numbers[place] for place in (rank // 2, n // 2 + rank % 2, len(members) - 1))
        step = [pair, pair, across, all_] if rank != odd else [pair, pair, all_, across]
        programs.append(step * 2 if alone is None else [pair] * 4)
    if alone is not None:
        stuck = {rank: (0, False) for rank in range(n) if rank // 2 != alone} | stuck
    chains = set(numbers[: n // 2])
    at, inside, entered = [0] * n, [False] * n, [[0] * len(members) for _ in range(n)]
    moving = True
    while moving:
        moving = False
        for rank in range(n):
            if at[rank] == len(programs[rank]):
                continue
            call = programs[rank][at[rank]]
            where, within = stuck.get(rank, (-1, False))
            if not inside[rank]:
                if where == at[rank] and not within:
                    continue
                inside[rank], moving = True, True
                entered[rank][call] += 1
                continue
            ranks = named[call]
            before = ranks[: ranks.index(rank)] if call in chains else ranks
            nth = entered[rank][call]
            there = all(entered[r][call] >= nth for r in before)
            held = any(_held_in(r, call, nth, programs, stuck) for r in (*before, rank))
            if there and not held:
                inside[rank], moving = False, True
                at[rank] += 1
    looks = []
    for rank in range(n):
        call = programs[rank][at[rank]] if inside[rank] else -1
        waits_for = -1
        if inside[rank] and not _held_in(rank, call, entered[rank][call], programs, stuck):
            ranks = named[call]
            waits_for = ranks[ranks.index(rank) - 1]
        looks.append({"inside": call, "waits_for": waits_for, "calls": torch.tensor(entered[rank])})
    return Still(named, looks, *find(named, looks))


def some_looks(n: int, seed: int, hidden: bool = False) -> list[tuple[str, Still]]:
    """Jobs that stand still, each with what happened. hidden: the kinds that only hidden checks have."""
    random = Random(seed)
    a, b = random.sample(range(n), 2)
    if not hidden:
        return [
            ("a rank that is outside any call", stand_still(n, {a: (2, False)}, seed)),
            ("a rank that has come no further than its pair", stand_still(n, {a | 1: (5, False)}, seed + 1)),
            ("a rank that stops inside a call", stand_still(n, {b: (random.choice((2, 3)), True)}, seed + 2)),
            ("replicas that share nothing", stand_still(n, {a & ~1: (0, False)}, seed + 7, alone=a // 2)),
        ]
    other = random.choice([r for r in range(n) if r // 2 != a // 2])
    return [
        ("a rank that stops inside the call of its pair", stand_still(n, {a | 1: (1, True)}, seed + 3)),
        ("a rank that is outside in the second step", stand_still(n, {a: (6, False)}, seed + 4)),
        ("two ranks that are outside", stand_still(n, {a: (2, False), other: (2, False)}, seed + 5)),
        ("a rank with another order of calls", stand_still(n, {}, seed + 6, odd=b)),
    ]


def _held_in(
    rank: int, call: int, nth: int, programs: Sequence[Sequence[int]], stuck: dict[int, tuple[int, bool]]
) -> bool:  # fmt: skip
    """Whether a rank stops inside its `nth` call of a group."""
    where, within = stuck.get(rank, (-1, False))
    return within and programs[rank][where] == call and programs[rank][: where + 1].count(call) == nth


find = answers.find


def expect_waits(student: Student, run: Evidence, still: Still, what: str) -> None:
    """Every rank returned the right arrows between calls."""
    n = len(run.results)
    for rank, got in enumerate(run.results):
        fine = isinstance(got, list) and len(got) == 2 and all(isinstance(part, list) for part in got)
        student.expect(
            fine, "{n} ranks, {what}: rank {rank} returned no [waits, culprits], two lists.", n=n, what=what, rank=rank
        )
        found = _edges(got[0])
        student.expect(
            found is not None, "{n} ranks, {what}: an arrow is a list of two groups, [of, on].", n=n, what=what
        )
        for of, on in sorted(set(found or ()) - _edges(still.waits, still)):  # type: ignore[operator]
            why = _why_no_arrow(still, of, on)
            text = "{n} ranks, {what}: the call of group {of} does not wait for that of group {on}. {why}"
            student.expect(False, text, n=n, what=what, of=of, on=on, why=why)
        for of, on in sorted(_edges(still.waits, still) - set(found or ())):  # type: ignore[operator]
            who = next(r for r in still.members[of] if still.looks[r]["inside"] == on)
            text = (
                "{n} ranks, {what}: an arrow is missing on rank {rank}. Rank {who} has not come to the call of group "
                "{of}, because it is in that of group {on}."
            )
            student.expect(False, text, n=n, what=what, rank=rank, who=who, of=of, on=on)
        student.expect(
            got[0] == still.waits, "{n} ranks, {what}: each arrow once, in order: sorted(...).", n=n, what=what
        )


def _edges(value: Any, still: Still | None = None) -> set[tuple[int, int]] | None:
    fine = all(isinstance(e, (list, tuple)) and len(e) == 2 and all(type(x) is int for x in e) for e in value)
    return {(e[0], e[1]) for e in value} if fine else None


def _why_no_arrow(still: Still, of: int, on: int) -> str:
    if not 0 <= of < len(still.members) or not 0 <= on < len(still.members):
        return "There is no such group; -1 means outside any call."
    if of == on:
        return "A call does not wait for itself: who is in it has joined it."
    if all(look["inside"] != of for look in still.looks):
        return f"Nobody is in a call of group {of}: nothing of it is open."
    both = [r for r in still.members[of] if still.looks[r]["inside"] == on]
    if both:
        return f"Rank {both[0]} is in the other one, but it has joined this call before, and left it: compare `calls`."
    return f"No member of group {of} is in it."


def expect_culprits(student: Student, run: Evidence, still: Still, what: str) -> None:
    """Every rank names the ranks at fault, and no others."""
    n = len(run.results)
    expect_waits(student, run, still, what)
    for rank, (_, got) in enumerate(run.results):
        text = "{n} ranks, {what}: rank {rank} accuses {got}; at fault is {want}. {why}"
        who = still.culprits or "nobody alone"
        student.expect(got == still.culprits, text, n=n, what=what, rank=rank, got=got or "nobody", want=who,
                       why=_why_other(still, got))  # fmt: skip


def _why_other(still: Still, got: list[Any]) -> str:
    if not still.culprits:
        return "Calls wait for each other in a circle: none of them is a leaf."
    for rank in got:
        if not isinstance(rank, int) or not 0 <= rank < len(still.looks):
            return "Return numbers of ranks."
        look = still.looks[rank]
        if rank not in still.culprits and look["inside"] >= 0 and look["waits_for"] >= 0:
            return f"Rank {rank} waits itself, in the call of group {look['inside']}."
        if rank not in still.culprits:
            return f"Rank {rank} has joined every call that waits for no other one."
    missing = next((r for r in still.culprits if r not in got), still.culprits[0])
    if still.looks[missing]["inside"] >= 0:
        return f"All have joined the call in which rank {missing} is. Who waits for nobody there?"
    return f"Rank {missing} has not joined a call that waits for no other one."


# Who waits least ------------------------------------------------------------------------------------------------


def crawl(n: int, factors: dict[int, float], seed: int, steps: int = 6) -> list[Tensor]:
    """By rank a table of calls (level, group, begin, end) in microseconds of the rank's own clock.

    factors: by rank, how many times as long as the others it computes. Ranks compute, meet along the pair, compute
    again, and meet along the replicas. A call of the program (level 0) consists of two others (level 1).
    """
    random = Random(seed)
    groups = groups_of(n)[:-1] if n > 1 and n % 2 == 0 else [list(range(n))]
    offset = [random.randrange(10**9, 10**12) for _ in range(n)]
    random.shuffle(offset)
    now, rows = [0] * n, [list[list[int]]() for _ in range(n)]
    for _ in range(steps):
        for level in range(2 if len(groups) > 1 else 1):
            for rank in range(n):
                now[rank] += round((9_950 + random.randrange(100)) * factors.get(rank, 1.0))
            for number, members in enumerate(groups):
                if len(groups) > 1 and (number >= n // 2) != bool(level):
                    continue
                there = max(now[r] for r in members)
                end = there + 2_000
                for r in members:
                    begin, half = now[r] + offset[r], there + 1_000 + offset[r]
                    rows[r] += [[0, number, begin, end + offset[r]], [1, number, begin, half]]
                    rows[r].append([1, number, half, end + offset[r]])
                    now[r] = end
    return [torch.tensor(table) for table in rows]


def some_crawls(n: int, seed: int, hidden: bool = False) -> list[tuple[str, dict[int, float]]]:
    """What happened, and the factors of `crawl`."""
    if n == 1:
        return [("nobody to wait for", {})]
    random = Random(seed)
    one, other = random.sample(range(n), 2)
    if hidden:
        return [
            ("two slow ranks", {one: 1.5, other: 1.7}),
            ("a rank that is a little slow", {one: 1.09}),
            ("one rank that is fast", {one: 0.6}),
        ]
    return [("one slow rank", {one: 1.5}), ("no rank that is slow by 5 %", {other: 1.035})]


slow_ranks = answers.slow_ranks


def expect_slow(student: Student, run: Evidence, tables: Sequence[Tensor], what: str) -> None:
    """Every rank names the slow ranks."""
    n, want = len(run.results), slow_ranks(tables)
    ranks = "1 rank" if n == 1 else f"{n} ranks"
    for rank, got in enumerate(run.results):
        text = "{ranks}, {what}: rank {rank} returned {got}; it should be {want}. {why}"
        said = got if isinstance(got, list) and len(got) <= n else f"a {type(got).__name__}"
        fine = isinstance(got, list) and all(type(r) is int for r in got) and got == want
        student.expect(fine, text, ranks=ranks, what=what, rank=rank, got=said, want=want,
                       why=_why_slow(tables, got, want))  # fmt: skip


def _why_slow(tables: Sequence[Tensor], got: Any, want: list[int]) -> str:
    n = len(tables)
    if not isinstance(got, list) or any(type(r) is not int for r in got):
        return "Return a list of ranks, an empty one for nobody."
    spent = [int((t[t[:, 0] == 0][:, 3] - t[t[:, 0] == 0][:, 2]).sum()) for t in tables]
    if got and got == sorted(sorted(range(n), key=lambda r: -spent[r])[: len(got)]) and not want:
        return "Somebody always waits most. Is anybody set apart?"
    if got and not want:
        return "Somebody always waits least. Is the gap 5 % of the time? Count no call twice."
    if want and not got:
        return "The gap is large enough. Which time did you compare it with?"
    ends = [int(t[:, 3].max()) for t in tables]
    likely = []
    if got == [spent.index(max(spent))]:
        likely.append("That is who waits most: the others never wait for it.")
    if got in ([ends.index(max(ends))], [ends.index(min(ends))]):
        likely.append("Clocks of different ranks do not agree: compare durations only.")
    if likely:
        return " ".join(likely)
    if set(got) < set(want):
        return "More than one rank may be slow: all of them below the largest gap."
    return "Add up all calls of the rank, of all its groups."
