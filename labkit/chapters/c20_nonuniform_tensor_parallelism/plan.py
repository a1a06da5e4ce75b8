"""Plans of ranks that are lost and come back while a model is trained, for the checks of `state-that-follows`.

A plan says who is there in which attempt, and where a rank is lost. It follows from the seed of the check. Layouts are
those of the library's shard map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Student
from labkit.resilience.ntp import Replicas

Quorum = dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One try of a step. lost: the rank that is lost in it, or None. lives: by member, the number of its life."""

    quorum: Quorum
    lost: int | None
    place: str
    lives: dict[int, int]

    def new(self, rank: int) -> list[int]:
        """Shards that `rank` wants and does not have."""
        return [shard for shard in self.quorum["want"][rank] if shard not in self.quorum["have"][rank]]


@dataclass(frozen=True)
class Rehearsal:
    """start: float64[3, shards, width], the state of the whole model after `steps` steps. inputs: by rank."""

    start: Tensor
    steps: int
    replica: list[int]  # by rank: the one it belongs to
    attempts: list[Attempt]
    inputs: list[dict[str, Any]]


def layouts(replicas: Replicas, shards: int, n: int) -> list[list[int]]:
    """By world rank, the shards that it holds and computes with; none for a rank that is not there."""
    holds: list[list[int]] = [[] for _ in range(n)]
    for number, members in enumerate(replicas.members):
        for rank, mine in zip(members, replicas.map_of(number, shards).compute, strict=True):
            holds[rank] = list(mine)
    return holds


def some_plan(student: Student, n: int, shards: int, width: int, story: Sequence[str]) -> Rehearsal:
    """Attempts of two replicas of n ranks together. story: a word for each attempt.

    "" goes well; "step", "move": a rank is lost at that place; "back": first all that are away return, then it goes
    well; "back step", "back move": they return, and then a rank is lost. No shard is lost with all of its copies.
    A story needs at most 5 quorums with 5 ranks: each takes connections, which the grader's switch counts.
    """
    weights, first, second = (student.tensor(shards, width).double() for _ in range(3))
    start = torch.stack([weights, first / 8, second**2 / 16])
    for number in range(200):
        random = Random(number_from(student.seed, "chapter 20 state", n, shards, width, tuple(story), number))
        plan = _plan(random, n, start, random.randrange(3, 9), story)
        if plan is not None and _tells_apart(plan, n):
            return plan
    raise ValueError(f"{story}: with {n} ranks a shard would be lost with all of its copies")


def _plan(random: Random, n: int, start: Tensor, steps: int, story: Sequence[str]) -> Rehearsal | None:
    """A plan of this story, or None if a rank cannot be lost where the dice wanted it."""
    shards, home = start.shape[1], Replicas.of(n - n // 2, n // 2)
    replica = [home.place(rank)[0] for rank in range(n)]
    have, here, number, last = layouts(home, shards, n), set(range(n)), 0, set[int]()
    lives: list[list[dict[str, Any]]] = [
        [{"state": start[:, have[r]], "steps": steps, "quorums": [], "dies": None}] for r in range(n)
    ]
    attempts: list[Attempt] = []
    for word in story:
        if word.startswith("back"):
            for rank in set(range(n)) - here:
                lives[rank].append({"state": start[:, :0], "steps": 0, "quorums": [], "dies": None})
                have[rank] = []
            here = set(range(n))
        members = sorted(here)
        number, last = number + (here != last), set(here)
        want = layouts(home.only(members), shards, n)
        quorum = {
            "id": number, "members": members, "have": [list(x) for x in have], "want": want,
            "samples": random.sample(range(1000), random.randint(2, 4)),
        }  # fmt: skip
        for rank in members:
            lives[rank][-1]["quorums"].append(quorum)
        place, lost = word.removeprefix("back").strip(), None
        if place:
            could = _who_may_be_lost(members, have, want, shards)
            if not could:
                return None
            lost = random.choice(could)
            lives[lost][-1]["dies"] = [place, len(lives[lost][-1]["quorums"]) - 1]
            here.discard(lost)
            last = set()  # the next attempt needs a new quorum, even if all are back by then
        else:
            for rank in members:
                have[rank] = want[rank]
        attempts.append(Attempt(quorum, lost, place, {rank: len(lives[rank]) - 1 for rank in members}))
    return Rehearsal(start, steps, replica, attempts, [{"replica": replica, "lives": each} for each in lives])


def _tells_apart(plan: Rehearsal, n: int) -> bool:
    """Whether something moves, and whether it shows if a rank takes up shards of a step that does not count.

    The latter from 4 ranks on, in stories in which "step" follows a loss or a return: with 3 it cannot show.
    """
    if not any(a.lost is None and a.new(rank) for a in plan.attempts for rank in a.lives):
        return False
    late = [a for a in plan.attempts if a.place == "step" and any(a.new(rank) for rank in a.lives)]
    shows = (
        a.quorum["want"][r][: len(a.quorum["have"][r])] != a.quorum["have"][r]
        for a in late
        for r in a.lives
        if r != a.lost
    )
    return n < 4 or not late or any(shows)


def _who_may_be_lost(members: list[int], have: list[list[int]], want: list[list[int]], shards: int) -> list[int]:
    """Members without which every shard is on a rank that is left; if possible those from which others want some."""
    could = [r for r in members if {s for other in members if other != r for s in have[other]} == set(range(shards))]
    new = {shard for r in members for shard in want[r] if shard not in have[r]}
    return [r for r in could if new & set(have[r])] or could
