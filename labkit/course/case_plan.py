"""The best order to buy evidence in, for somebody who knows what each piece can show, but not which case it is.

Hindsight buys what proves the one case at hand. A fair buyer has to choose before seeing anything, and may choose again
after each piece. The plan with the least minutes, on average over cases that are equally likely, is found by trying
all: what has been bought, and which cases still look alike, is all that the rest of a plan depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from labkit.course.casefile import Case, Suspect
from labkit.course.errors import CourseError


@dataclass(frozen=True)
class CasePlan:
    """Buy `buy` (None: nothing more, the verdict is clear), then go on by which cases still look alike.

    cases: that look alike so far, by number. minutes: of all of them together, from here on. ranks: that may
    still have done it, in the case with the most of them, if its cause is known.
    """

    cases: tuple[int, ...]
    buy: str | None
    minutes: float
    then: tuple[CasePlan, ...] = ()
    ranks: int = 1

    @property
    def mean(self) -> float:
        """Minutes from here on, if every case is equally likely."""
        return self.minutes / len(self.cases)

    def lines(self, names: Sequence[str], evidence: Mapping[str, str] | None = None, depth: int = 0) -> list[str]:
        """The plan in words, indented. names: of the cases by number. evidence: its names by id; else the ids."""
        who = " or ".join(names[n] for n in self.cases)
        if self.buy is None:
            return [f"{'  ' * depth}{who}: the verdict"]
        told = [line for plan in self.then for line in plan.lines(names, evidence, depth + 1)]
        if len(self.cases) == 1 and self.ranks > 1:
            who += f", by one of {self.ranks} ranks"
        return [f"{'  ' * depth}{who}: buy {(evidence or {}).get(self.buy, self.buy)!r}", *told]


def best_plan(cases: Sequence[Case]) -> CasePlan:
    """The plan with the least mean minutes. cases: closed ones, all with the same evidence at the same prices."""
    if not cases:
        raise CourseError("best_plan: give at least one case")
    prices = {id: e.minutes for id, e in cases[0].evidence.items()}
    if any({id: e.minutes for id, e in case.evidence.items()} != prices for case in cases):
        raise CourseError("best_plan: these cases do not have the same evidence at the same prices")
    truths = [case.truth for case in cases]

    def left(n: int, bought: frozenset[str]) -> frozenset[Suspect]:
        return cases[n].everyone.intersection(*(cases[n].evidence[id].leaves for id in bought))

    def parts(alike: tuple[int, ...], bought: frozenset[str]) -> list[tuple[int, ...]]:
        """Which of these cases still look alike: those that leave the same causes open."""
        found: dict[frozenset[str], list[int]] = {}
        for n in alike:
            found.setdefault(frozenset(s.cause for s in left(n, bought)), []).append(n)
        return [tuple(part) for part in found.values()]

    def possible(n: int, bought: frozenset[str]) -> int:
        return len({s.rank for s in left(n, bought) if s.cause == truths[n].cause})

    @cache
    def best(alike: tuple[int, ...], bought: frozenset[str]) -> CasePlan:
        if len(alike) == 1 and left(alike[0], bought) == {truths[alike[0]]}:
            return CasePlan(alike, None, 0.0)
        found: CasePlan | None = None
        for id, price in prices.items():
            if id in bought:
                continue
            now = bought | {id}
            then = tuple(best(part, now) for part in parts(alike, now))
            minutes = price * len(alike) + sum(plan.minutes for plan in then)
            if found is None or minutes < found.minutes:
                found = CasePlan(alike, id, minutes, then, max(possible(n, bought) for n in alike))
        if found is None:
            raise CourseError("best_plan: all evidence together does not tell these cases apart")
        return found

    return best(tuple(range(len(cases))), frozenset())
