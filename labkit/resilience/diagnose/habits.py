"""What a rank does in every step, and the steps in which it did something else.

A program of a training job does the same in each step, or one of a few things. So a rank's own steps say what its part
is, whatever the parts of the others are; a step that is like none of its others is odd. Without `group.step` a step is
taken to begin wherever the first call that comes again is made.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_ODD = 3  # steps: who has more of them has no habits


class Habits:
    """Of one rank. `act` and `mark` take note of what it does, in its order; `odd` tells of the steps like no other."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, ...], list[int]] = {}  # what was done -> how often, first act and step of the last
        self._now: list[str] = []
        self._marked, self._opener = False, ""
        self._start, self._step = 0, -1  # the first act of the step, and its number

    def mark(self, step: int, nth: int) -> None:
        """A step begins, before act `nth`."""
        if self._marked:
            self._close(nth)
        else:
            self._marked, self._steps, self._now, self._start = True, {}, [], nth
        self._step = step

    def act(self, what: str, nth: int) -> None:
        """The rank did this as act `nth`."""
        if not self._marked and not self._opener and what in self._now:
            self._opener, at = what, self._now.index(what)
            self._now, self._start = self._now[at:], self._start + at
        if not self._marked and what == self._opener:
            self._close(nth)
        self._now.append(what)

    def _close(self, nth: int) -> None:
        self._steps[tuple(self._now)] = [self._steps.get(tuple(self._now), [0])[0] + 1, self._start, self._step]
        self._now, self._start = [], nth

    def odd(self, over: bool) -> tuple[tuple[int, str], ...]:
        """(the first act that is otherwise, in words) for each odd step. over: whether the last step is complete."""
        steps, now = dict(self._steps), tuple(self._now)
        if over and (now or self._marked):
            steps[now] = [steps.get(now, [0])[0] + 1, self._start, self._step]
        elif not any(step[: len(now)] == now for step in steps):
            steps[now] = [1, self._start, self._step]
        usual = {step: n for step, (n, _, _) in steps.items() if n > 1} or {step: 1 for step in list(steps)[:1]}
        strange = [(start, number, step) for step, (_, start, number) in steps.items() if step not in usual]
        if len(strange) > min(MOST_ODD, sum(usual.values())):
            return ()
        return tuple(_words(start, number, step, list(usual)) for start, number, step in sorted(strange))


def _words(start: int, number: int, step: tuple[str, ...], usual: Sequence[tuple[str, ...]]) -> tuple[int, str]:
    at, like = max((_common(step, other), other) for other in usual)
    did, does = (what[at] if at < len(what) else "went on" for what in (step, like))
    where = f"in step {number} " if number >= 0 else ""
    return start + at, f"{where}did otherwise than in its other steps: {did} instead of {does}"


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
