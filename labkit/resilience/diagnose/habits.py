"""What a rank does in every step, and the steps in which it did something else.

A program of a training job does the same in each step, or one of a few things. So a rank's own steps say what its part
is, whatever the parts of the others are. Communication takes two: where a step of the whole job is like an earlier one
but for a single rank, that rank is odd; where several differ, the program wanted it so.

Without `group.step` a step is taken to begin wherever the first call that comes again is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from .report import Odd, Report

KEPT = 8  # steps of a rank that are compared
NEW = 3  # of a pair that did something for the first time, one may have had to: not before so many like steps


class Habits:
    """Of one rank. `act` and `mark` take note of what it does, in its order; `odd` tells where its steps differ."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int, tuple[str, ...]]] = deque(maxlen=KEPT)  # number, first act, what was done
        self._now: list[str] = []
        self._marked, self._opener = False, ""
        self._start = self._number = 0  # of the step that goes on

    def mark(self, number: int, nth: int) -> None:
        """A step begins, before act `nth`."""
        if self._marked:
            self._close(nth)
        else:
            self._marked, self._now, self._start = True, [], nth
            self._steps.clear()
        self._number = number

    def act(self, what: str, nth: int) -> None:
        """The rank did this as act `nth`."""
        if not self._marked and not self._opener and what in self._now:
            self._opener, at = what, self._now.index(what)
            self._now, self._start = self._now[at:], self._start + at
        if not self._marked and what == self._opener:
            self._close(nth)
        self._now.append(what)

    def _close(self, nth: int) -> None:
        self._steps.append((self._number, self._start, tuple(self._now)))
        self._now, self._start, self._number = [], nth, self._number + 1

    def odd(self, over: bool) -> tuple[tuple[int, ...], tuple[Odd, ...]]:
        """(the numbers of its complete steps, where its steps differ from those). over: the last one is complete."""
        steps, now = list(self._steps), (self._number, self._start, tuple(self._now))
        if over and self._now:
            steps.append(now)
        found = []
        for number, start, did in steps if over else [*steps, now]:
            part = len(did) if number == self._number and not over else None
            if not self._marked and any(n != number and what[:part] == did for n, _, what in steps):
                continue  # steps that were guessed are not the same steps for all ranks
            for other, _, does in steps:
                both = min(len(did), len(does))
                at = next((i for i in range(both) if did[i] != does[i]), both)
                whole = over or number != self._number  # else it may do the rest yet
                if other != number and (at < len(did) or (whole and at < len(does))):
                    here, there = (what[at] if at < len(what) else "the end of the step" for what in (did, does))
                    new = at < len(did) and all(here not in what for n, _, what in steps if n != number)
                    found.append(Odd(number, other, start + at, f"{here} instead of {there}", new))
        return tuple(number for number, _, _ in steps), tuple(found)


def strange(reports: Mapping[int, Report]) -> dict[int, tuple[Odd, bool]]:
    """Ranks that were alone in doing something else than in another step, in the first such step of the latest ones.

    Several where the step is as near to one other step as to another, and it is not the same rank that differs. With
    each whether that alone says something: others may have had to do the same, and not have done it.
    """
    differ: dict[tuple[int, int], dict[int, Odd]] = {}
    for rank, report in reports.items():
        for odd in report.odd:
            differ.setdefault((odd.step, odd.other), {})[rank] = odd
    for step in sorted({step for step, _ in differ}):
        known = [set(report.steps) for report in reports.values() if step in report.steps or step == _next(report)]
        rows = [differ.get((step, other), {}) for other in set.intersection(*known) - {step}]
        if rows and min(map(len, rows)) == 1:
            found = {rank: odd for row in rows if len(row) == 1 for rank, odd in row.items()}
            often = {rank: sum(row.keys() == {rank} for row in rows) for rank in found}
            return {rank: (odd, not odd.new or (often[rank] >= NEW and not _behind(reports, rank, odd)))
                    for rank, odd in found.items()}  # fmt: skip
    return {}


def _behind(reports: Mapping[int, Report], rank: int, odd: Odd) -> bool:
    """Whether those with whom the rank did it have not come to that step yet, and might have done it, too."""
    made = next((m for m in reports[rank].made if m.nth == odd.nth), None)
    with_whom = () if made is None else made.ends or reports[rank].groups.get(made.call[0], ())
    return any(r in reports and _next(reports[r]) < odd.step for r in with_whom)


def _next(report: Report) -> int:
    """The step that the rank is in."""
    return report.steps[-1] + 1 if report.steps else 0
