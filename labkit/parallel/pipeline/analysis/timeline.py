"""When everything in a schedule begins and ends, and what follows from that: the step, the bubble, who is idle."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from labkit import pictures
from labkit.parallel.pipeline.schedule import Schedule


@dataclass(frozen=True)
class Hop:
    """A message: from rank, to rank, when its bytes begin to leave and have arrived (ns), and how many they are."""

    source: int
    to: int
    departs: int
    arrives: int
    nbytes: int


@dataclass(frozen=True)
class Timeline:
    """Whole nanoseconds since the step began.

    begin, end: of each instruction, lists as in `schedule.ranks`. finish: when a rank has nothing left to do or to
    send. peak: activations in flight at most, by rank. nbytes: of a message, by boundary between stages of the model.
    """

    schedule: Schedule
    begin: tuple[tuple[int, ...], ...]
    end: tuple[tuple[int, ...], ...]
    finish: tuple[int, ...]
    peak: tuple[int, ...]
    nbytes: tuple[int, ...] = ()
    hops: list[int] = field(default_factory=list, repr=False, compare=False)

    @cached_property
    def makespan(self) -> int:
        """The step: from 0 until the last rank has finished."""
        return max(self.finish)

    @cached_property
    def busy(self) -> tuple[int, ...]:
        """Nanoseconds that each rank computes."""
        return tuple(sum(ends) - sum(begins) for begins, ends in zip(self.begin, self.end, strict=True))

    @cached_property
    def idle(self) -> tuple[int, ...]:
        """Nanoseconds of the step in which each rank does not compute."""
        return tuple(self.makespan - busy for busy in self.busy)

    @cached_property
    def idle_inside(self) -> tuple[int, ...]:
        """The same between the first instruction of the rank and the end of its last: not the wait for its turn.

        Its maximum over the ranks is what Qi et al. (2023) call the bubble. It is the idle time of a rank from step to
        step if ranks begin the next one without waiting for each other.
        """
        return tuple(
            (ends[-1] - begins[0] if ends else 0) - busy
            for begins, ends, busy in zip(self.begin, self.end, self.busy, strict=True)
        )

    @cached_property
    def messages(self) -> tuple[Hop, ...]:
        """Every message, by when it departs."""
        five = iter(self.hops)
        hops = sorted(zip(five, five, five, five, five, strict=True), key=lambda hop: (hop[2], hop[0], hop[3]))
        return tuple(Hop(a, b, departs, arrives, self.nbytes[at]) for a, b, departs, arrives, at in hops)

    @property
    def bubble(self) -> float:
        """Idle share of all ranks' time in the step, from 0 to 1: (p - 1) / (m + p - 1) for GPipe and 1F1B."""
        return sum(self.idle) / (self.makespan * len(self.idle)) if self.makespan else 0.0

    @property
    def overhead(self) -> float:
        """Idle time over computing time: (p - 1) / m for GPipe and 1F1B, (p - 1) / (chunks m) interleaved."""
        return sum(self.idle) / sum(self.busy) if any(self.busy) else 0.0

    @property
    def seconds(self) -> float:
        """The step in seconds."""
        return self.makespan / 1e9

    def draw(self) -> Any:
        """A row per rank and a box per instruction: `labkit.book.schedule`."""
        return pictures.draw(self)

    def __repr__(self) -> str:
        name, size = self.schedule.name or "schedule", self.schedule.size
        return (f"Timeline of {name}: {size} ranks, {self.schedule.microbatches} microbatches, {self.seconds:.6g} s, "
                f"{100 * self.bubble:.1f} % idle, {max(self.peak)} activations at most")  # fmt: skip
