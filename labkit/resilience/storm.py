"""Seeded plans of failures for a fault-tolerant run, as data: `draw(seed)` gives the same plan every time.

A *strike* hits one rank at an instant: as it enters a span of a step, for the nth time in a life of its process. Times
of day play no part, so a plan means the same on a fast and on a slow machine. The shapes say what is struck together:
one replica, its leader, the one that gives its state away, one that is just recovering, several, all but one, all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from labkit.wire.errors import Refused
from labkit.wire.faults import Drop, Fault, Hang, Kill, Raise

STEP = ("forward", "exchange", "vote", "commit", "quorum")  # spans of every step of a healthy replica
RETURN = ("transfer", "catch up")  # spans of a replica that comes back
INSTANTS = (*STEP, *RETURN, "serve", "rebuild", "birth")
PACE = 0.15  # seconds
KINDS = ("kill", "hang", "freeze", "raise", "drop")


@dataclass(frozen=True)
class Strike:
    """What hits rank `rank` of replica `replica`: "kill", "hang", "freeze" (a hang that ends), "raise" or "drop".

    at: the span, "birth" for at once, or "message" for the nth message (of a drop). nth: counted from 1 in each life.
    thaw: seconds after which a freeze ends.
    """

    what: str
    replica: int
    rank: int
    at: str
    nth: int = 1
    thaw: float = 0.0

    def __post_init__(self) -> None:
        if self.what not in KINDS:
            raise Refused(f"what={self.what!r}: choose {', '.join(map(repr, KINDS))}")
        if (self.what == "drop") != (self.at == "message"):
            raise Refused(f"{self}: a drop hits a message, and nothing else does")

    def fault(self, ranks: int) -> Fault:
        """The same as labkit knows it, in a world with `ranks` ranks a replica."""
        world = self.replica * ranks + self.rank
        if self.what == "drop":
            return Drop(world, message=self.nth)
        kind: Callable[..., Fault] = {"kill": Kill, "hang": Hang, "freeze": Hang, "raise": Raise}[self.what]
        return kind(world) if self.at == "birth" else kind(world, at=self.at, nth=self.nth)


@dataclass(frozen=True)
class Plan:
    """One run: `replicas` of `ranks` processes train `steps` steps and are struck. inside: "plain", "fsdp" or "tp".

    least: fewer replicas do not train; with all of them the others wait for who is lost, so it certainly comes back.
    pace: seconds that a step takes at least, so that who is lost may come back while the others go on.
    """

    seed: int
    shape: str
    replicas: int
    ranks: int
    inside: str
    steps: int
    strikes: tuple[Strike, ...]
    intervention: str = "none"
    least: int = 1
    pace: float = 0.0

    def faults(self) -> list[Fault]:
        """For `labkit.start(faults=...)`."""
        return [s.fault(self.ranks) for s in self.strikes]

    def thaws(self) -> dict[str, float]:
        """Fault, as an event names it ("rank: text") -> seconds after which its rank is continued."""
        found = {}
        for s in self.strikes:
            if s.what == "freeze":
                fault = s.fault(self.ranks)
                found[f"{fault.rank}: fault: Hang {fault.where()}"] = s.thaw
        return found


def draw(seed: int, shapes: Iterable[str] | None = None, *, thaw: float = 1.0, largest: int = 6) -> Plan:
    """The plan of this seed. shapes: only these (see `SHAPES`). thaw: the longest freeze. largest: processes."""
    names = sorted(SHAPES) if shapes is None else list(shapes)
    dice = random.Random(seed)
    shape = names[seed % len(names)]
    ranks = dice.choice([1, 1, 1, 2, 2])
    least = 3 if shape in ("source", "all but one") and 3 * ranks <= largest else 2
    replicas = dice.randint(least, max(least, min(4, largest // ranks)))
    inside = "plain" if ranks == 1 else dice.choice(["fsdp", "tp"])
    steps = dice.randint(6, 10)
    strikes = SHAPES[shape](dice, replicas, ranks, steps, thaw)
    intervention = dice.choice(["none", "linear", "sqrt"])
    waits = dice.random() < (0.75 if shape in ("source", "while another recovers") or "again" in shape else 0.5)
    least, pace = replicas if waits else 1, 0.0
    if not waits and dice.random() < 0.5:
        steps, pace = steps + 8, PACE
    return Plan(seed, shape, replicas, ranks, inside, steps, tuple(strikes), intervention, least, pace)


# -- shapes: (dice, replicas, ranks, steps, longest freeze) -> strikes ------------------------------------------------


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
    "all": _all,
    "again and again": _again_and_again, "while another recovers": _transfer,
}  # fmt: skip


def table(plans: Iterable[Plan]) -> dict[str, Counter[str]]:
    """How many plans of each shape, and strikes of each kind and at each instant."""
    counts: dict[str, Counter[str]] = {"shape": Counter(), "what": Counter(), "at": Counter(), "inside": Counter()}
    for plan in plans:
        counts["shape"][plan.shape] += 1
        counts["inside"][f"{plan.replicas} x {plan.ranks} {plan.inside}"] += 1
        for s in plan.strikes:
            counts["what"][s.what] += 1
            counts["at"][s.at] += 1
    return counts
