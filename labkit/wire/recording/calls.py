"""A collective call seen whole: what its members recorded one by one, put together again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.wire.recording.trace import Collective, Trace


@dataclass(frozen=True)
class Call:
    """One call of a collective by all members of its group. Times in seconds since the run began.

    start: when the first member called it. complete: when the last one did; until then nobody can be through.
    end: when the last one returned. nbytes: of the largest tensor that a member brought.
    """

    name: str
    algorithm: str
    nbytes: int
    start: float
    complete: float
    end: float
    step: int

    @property
    def seconds(self) -> float:
        """What the call took once everybody was there."""
        return self.end - self.complete


def calls(trace: Trace, name: str | None = None) -> list[Call]:
    """The outermost collective calls of a run (called `name`), in the order in which they began."""
    parts: dict[tuple[int, int], list[Collective]] = {}
    for part in trace.collectives(name):
        if not part.nested:
            parts.setdefault((part.group, part.seq), []).append(part)
    found = [
        Call(
            members[0].name, members[0].algorithm, max(m.nbytes for m in members), min(m.start for m in members),
            max(m.start for m in members), max(m.end for m in members), members[0].step,
        )
        for members in parts.values()
    ]  # fmt: skip
    return sorted(found, key=lambda call: call.start)


def step_window(trace: Trace, step: int) -> tuple[float, float]:
    """From the first rank that began training step `step` to the first that began the next one, or to the run's end.

    Raises ValueError for a step that no rank marked.
    """
    marks = trace.step_marks
    begun = [at for n, at in marks if n == step]
    if not begun:
        known = sorted({n for n, _ in marks})
        raise ValueError(
            f"no rank marked step {step}: " + (f"steps {known[0]} to {known[-1]}" if known else "no steps")
        )
    later = [at for n, at in marks if n > step]
    return min(begun), min(later, default=trace.duration)
