"""The shapes of failures: one replica, its leader, the one that gives its state away, one that is just recovering, ...

A shape is a function of dice, the sizes of the run, and the longest freeze, and gives strikes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from .plans import RETURN, STEP, Strike

PAIRS = ("branch", "twin")  # shapes that need two replicas of one rank


def _any_instant(
    dice: random.Random, replica: int, ranks: int, steps: int, what: str = "kill", **more: float
) -> Strike:
    """At any span of any step, the last ones included."""
    return Strike(what, replica, dice.randrange(ranks), dice.choice(STEP), dice.randint(1, steps), **more)


def _one(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    return [_any_instant(dice, dice.randrange(replicas), ranks, steps)]


def _leader(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    return [Strike("kill", dice.randrange(replicas), 0, dice.choice(STEP), dice.randint(1, steps))]


def _hang(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    return [_any_instant(dice, dice.randrange(replicas), ranks, steps - 1, "hang")]


def _freeze(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    r = dice.randrange(replicas)
    return [_any_instant(dice, r, ranks, steps - 1, "freeze", thaw=round(thaw * dice.uniform(0.1, 1.0), 3))]


def _raise(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    return [_any_instant(dice, dice.randrange(replicas), ranks, steps, "raise")]


def _drop(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    return [Strike("drop", dice.randrange(replicas), dice.randrange(ranks), "message", dice.randint(1, 12 * steps))]


def _two(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """Two at once: two replicas, or two ranks of one, at the same place."""
    at, nth = dice.choice(STEP), dice.randint(1, steps - 1)
    if replicas > 2 and dice.random() < 0.7:
        return [Strike("kill", r, dice.randrange(ranks), at, nth) for r in dice.sample(range(replicas), 2)]
    r = dice.randrange(replicas)
    return [Strike("kill", r, i, at, nth) for i in range(ranks)]


def _while_recovering(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """A replica is lost, and lost again while it comes back."""
    r = dice.randrange(replicas)
    first = _any_instant(dice, r, ranks, max(1, steps - 3))
    again = Strike("kill", r, dice.randrange(ranks), dice.choice([*RETURN, "quorum", "exchange", "vote"]), 1)
    if again.at not in RETURN:  # the first life must pass this place before
        first = Strike("kill", r, again.rank, "birth")
    return [first, again]


def _source(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """A replica is lost, and the one that gives it the state is lost while it gives."""
    r = dice.randrange(replicas)
    lost = _any_instant(dice, r, ranks, max(1, steps - 3))
    i = dice.randrange(ranks)
    healthy = [x for x in range(replicas) if x != r]
    return [lost, Strike("kill", healthy[i % len(healthy)], i, "serve", 1)]


def _all_but_one(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    left = dice.randrange(replicas)
    if dice.random() < 0.5:
        at, nth = dice.choice(STEP), dice.randint(1, steps - 1)
        return [Strike("kill", r, dice.randrange(ranks), at, nth) for r in range(replicas) if r != left]
    return [_any_instant(dice, r, ranks, steps - 1) for r in range(replicas) if r != left]


def _all(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """All replicas at once: nothing is left, and the run begins anew."""
    at, nth = dice.choice(STEP), dice.randint(1, steps - 1)
    return [Strike("kill", r, dice.randrange(ranks), at, nth) for r in range(replicas)]


def _branch(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """Of two replicas one commits a step alone, as the other never gets its last message; and it dies with it."""
    r, n = dice.randrange(2), dice.randint(1, steps - 2)
    return [Strike("drop", r, 0, "message", 2 * n), Strike("kill", r, 0, "quorum", n + 1)]


def _twin(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """The same, but it freezes. When it wakes up the other one has committed another step of the same number."""
    r, n = dice.randrange(2), dice.randint(1, steps - 2)
    return [Strike("drop", r, 0, "message", 2 * n), Strike("freeze", r, 0, "quorum", n + 1, thaw)]


def _again_and_again(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """One replica loses life after life."""
    r = dice.randrange(replicas)
    return [Strike("kill", r, dice.randrange(ranks), at, 1) for at in dice.sample([*STEP, *RETURN, "birth"], 3)]


def _transfer(dice: random.Random, replicas: int, ranks: int, steps: int, thaw: float) -> list[Strike]:
    """A replica is lost; while it catches up, another one is struck at any place of its step, or freezes."""
    r = dice.randrange(replicas)
    other = dice.choice([x for x in range(replicas) if x != r])
    lost = Strike("kill", r, dice.randrange(ranks), "forward", 2)
    if dice.random() < 0.3:
        return [lost, Strike("freeze", other, dice.randrange(ranks), "serve", 1, thaw * dice.uniform(0.1, 1.0))]
    if replicas == 2:  # it would be the last one
        return [lost, Strike("kill", r, dice.randrange(ranks), "transfer", 1)]
    return [lost, Strike("kill", other, dice.randrange(ranks), dice.choice(STEP), dice.randint(3, 5))]


SHAPES: dict[str, Callable[[random.Random, int, int, int, float], list[Strike]]] = {
    "one": _one, "leader": _leader, "hang": _hang, "freeze": _freeze, "raise": _raise, "drop": _drop,
    "two at once": _two, "again while recovering": _while_recovering, "source": _source, "all but one": _all_but_one,
    "all": _all, "branch": _branch, "twin": _twin,
    "again and again": _again_and_again, "while another recovers": _transfer,
}  # fmt: skip
