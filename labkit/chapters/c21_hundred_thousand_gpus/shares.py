"""Plans of steps in which replicas agree on shares of a batch, some are lost, and what a wrong agreement comes from.

The shortest step is searched among all times at which some replica could be done, and not dealt out example by example
as a program would do it. Times are fractions, so that equal is equal.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student
from labkit.resilience.rehearse import KILLED

LOST = "lost"
FULL = 8  # GPUs of a whole replica
Plan = list[dict[str, Any]]  # the attempts: {"id", "members", "batch", "dies", "told": {replica: step}}


def some_attempts(student: Student, n: int, losses: int, batch: int, tight: bool = False) -> Plan:
    """Attempts of a fleet of `n` replicas, of which `losses` are lost on the way, and one comes back.

    batch: about. tight: memory is scarce, once too scarce by one example, and once just enough.
    Rank 0 is the first that is lost.
    """
    random = Random(number_from(student.seed, "chapter 21", "shares", n, losses, batch, tight))
    here, number, plan = set(range(n)), 1, Plan()

    def attempt(dies: int | None = None, wanted: int = batch, room: int | None = None) -> None:
        members = sorted(here)
        told = _told(random, members, wanted, tight)
        for _ in range(10):
            if _rest_is_late(told, wanted):
                break
            told = _told(random, members, wanted, tight)
        if room is not None:  # memory for `room` examples more than the batch
            for x in told.values():
                x["most"] = wanted // len(members)
            told[members[0]]["most"] += wanted % len(members) + room
        plan.append({"id": number, "members": members, "batch": wanted, "dies": dies, "told": told})

    attempt(wanted=batch + random.randint(0, 5))
    attempt(room=-1 if tight else None)
    away = []
    for k in range(min(losses, n - 1)):
        lost = 0 if k == 0 else random.choice(sorted(here))
        attempt(dies=lost)
        here.discard(lost)
        away.append(lost)
        number += 1
        attempt(wanted=batch - random.randint(0, 3))
    if away:
        here.add(away[0])
        number += 1
    attempt(wanted=random.randint(1, n + 1))  # fewer examples than replicas, nearly
    attempt(room=0 if tight else None)
    return plan


def _told(random: Random, members: list[int], batch: int, tight: bool) -> dict[int, dict[str, int]]:
    """What each member knows about itself in a step."""
    base, told = random.choice((20, 24, 30, 36)), {}
    for r in members:
        width = random.choice((FULL, FULL, FULL - 1, FULL - 2, FULL - 4))
        speed = base if random.random() < 0.6 else random.choice((base // 2, base - 1, base + 5, 3 * base))
        most = batch // len(members) + random.randint(1, 5) if tight else batch + random.randint(0, 9)
        told[r] = {"width": width, "speed": speed, "most": most}
    return told


def _rest_is_late(told: dict[int, dict[str, int]], batch: int) -> bool:
    """Whether shares in proportion, with what is left over to the largest rests, keep all waiting for too long."""
    rates = [_rate(x) for x in told.values()]
    parts = [Fraction(batch * rate, sum(rates)) for rate in rates]
    shares = [part // 1 for part in parts]
    for i in sorted(range(len(parts)), key=lambda i: shares[i] - parts[i])[: batch - sum(shares)]:
        shares[i] += 1
    slowest = max(Fraction(share, rate) for share, rate in zip(shares, rates, strict=True))
    return any(Fraction(share + 1, rate) < slowest for share, rate in zip(shares, rates, strict=True))


def lives_of(plan: Plan, n: int) -> list[dict[str, Any]]:
    """By replica what `live` plays: its lives, each with its steps and where it is lost."""
    lives: list[list[dict[str, Any]]] = [[{"steps": [], "dies": None}] for _ in range(n)]
    for attempt in plan:
        for r in attempt["members"]:
            life = lives[r][-1]
            life["steps"].append({"id": attempt["id"], "members": attempt["members"], "batch": attempt["batch"],
                                  **attempt["told"][r]})  # fmt: skip
            if attempt["dies"] == r:
                life["dies"] = ["exchange", len(life["steps"]) - 1]
                lives[r].append({"steps": [], "dies": None})
    return [{"replicas": n, "lives": [life for life in each if life["steps"]]} for each in lives]


def shortest(attempt: dict[str, Any]) -> Fraction | None:
    """The hours of the shortest step, or None where the batch does not fit into the memories."""
    told, batch = attempt["told"].values(), attempt["batch"]
    if sum(x["most"] for x in told) < batch:
        return None
    times = sorted({Fraction(k, _rate(x)) for x in told for k in range(min(batch, x["most"]) + 1)})
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        done = sum(min(x["most"], times[middle] * _rate(x) // 1) for x in told)
        low, high = (low, middle) if done >= batch else (middle + 1, high)
    return times[low]


def _rate(told: dict[str, int]) -> int:
    return told["width"] * told["speed"]


def expect_shares(student: Student, run: Evidence, plan: Plan, n: int) -> None:
    """In every attempt all members that were not lost say the same shares, and no other shares are done sooner."""
    said: list[list[tuple[int, Any]]] = [[] for _ in plan]  # by attempt: (rank, what it says)
    for rank in range(n):
        own = [k for k, attempt in enumerate(plan) if rank in attempt["members"]]
        lives = run.results[rank]
        for life in lives_of(plan, n)[rank]["lives"]:
            mine, own = own[: len(life["steps"])], own[len(life["steps"]) :]
            got, lives = (lives[0], lives[1:]) if isinstance(lives, list) and lives else (None, [])
            text = "With {n} ranks: rank {rank} {what}. Call reach before every exchange."
            what = "was lost elsewhere" if life["dies"] is None else "was not lost where it should have been"
            student.expect((got == KILLED) == (life["dies"] is not None), text, n=n, rank=rank, what=what)
            if got == KILLED:
                continue
            fine = isinstance(got, list) and len(got) == len(mine)
            text = "With {n} ranks: rank {rank} did not return something for each of its {count} steps."
            student.expect(fine, text, n=n, rank=rank, count=len(mine))
            for k, one in zip(mine, got or [], strict=True):
                said[k].append((rank, one))
    for k, attempt in enumerate(plan):
        _expect_one(student, f"With {n} ranks, step {k} (members {attempt['members']})", attempt, said[k], n)


def _expect_one(student: Student, where: str, attempt: dict[str, Any], said: list[tuple[int, Any]], n: int) -> None:
    told, batch, best = attempt["told"], attempt["batch"], shortest(attempt)
    for rank, shares in said:
        if attempt["dies"] is not None:
            text = '{where}: rank {lost} was lost in the exchange, and rank {rank} says {got}, not "lost".'
            student.expect(shares == LOST, text, where=where, lost=attempt["dies"], rank=rank, got=_short(shares))
            continue
        text = '{where}: rank {rank} says "lost", and nobody was. Was the old group left?'
        student.expect(shares != LOST, text, where=where, rank=rank)
        if best is None:
            text = "{where}: rank {rank} says {got}. The batch of {batch} does not fit into all memories: return None."
            student.expect(shares is None, text, where=where, rank=rank, got=_short(shares), batch=batch)
            continue
        fine = isinstance(shares, list) and len(shares) == n and all(type(x) is int and x >= 0 for x in shares)
        text = "{where}: rank {rank} returned {got}, not a list of {n} whole numbers, one for each rank of the fleet."
        student.expect(fine, text, where=where, rank=rank, got=_short(shares), n=n)
    if attempt["dies"] is not None or best is None:
        return
    first, shares = next(iter(said), (0, []))
    for rank, other in said:
        text = (
            "{where}: rank {rank} says {other}, and rank {first} {shares}. Each would train by its own list: deal "
            "out by what *all* know, and break ties by a rule that does not ask who I am."
        )
        student.expect(other == shares, text, where=where, rank=rank, other=other, first=first, shares=shares)
    for rank, share in enumerate(shares):
        text = "{where}: rank {rank} gets {share} examples, and is no member. Shares stand at the numbers of the fleet."
        student.expect(rank in told or share == 0, text, where=where, rank=rank, share=share)
    text = "{where}: the shares {shares} are {got} examples together, and the batch has {batch}."
    student.expect(sum(shares) == batch, text, where=where, shares=shares, got=sum(shares), batch=batch)
    for rank, step in told.items():
        text = "{where}: rank {rank} gets {share} examples, and {most} fit into its memory."
        student.expect(shares[rank] <= step["most"], text, where=where, rank=rank, share=shares[rank],
                       most=step["most"])  # fmt: skip
    last = max(told, key=lambda r: Fraction(shares[r], _rate(told[r])))
    slowest = Fraction(shares[last], _rate(told[last]))
    text = (
        "{where}: everybody waits for rank {last}, {got:.1f} s for {share} examples on {width} GPUs of {speed} an "
        "hour. {best:.1f} s are possible. Who would be done first *with* one more example?"
    )
    student.expect(slowest <= best, text, where=where, last=last, got=float(3600 * slowest), share=shares[last],
                   width=told[last]["width"], speed=told[last]["speed"], best=float(3600 * best))  # fmt: skip


def expect_small_exchange(student: Student, run: Evidence, plan: Plan, n: int) -> None:
    """No rank sent more than a few numbers to each other one, for each step."""
    for rank, sent in enumerate(run.bytes_sent):
        steps = sum(rank in attempt["members"] for attempt in plan)
        text = (
            "Rank {rank} sent {sent:bytes} in {steps} steps, and {most:bytes} are allowed: a few numbers, not a plan."
        )
        student.expect(sent <= 64 * n * steps, text, rank=rank, sent=sent, steps=steps, most=64 * n * steps)


def _short(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60}"
