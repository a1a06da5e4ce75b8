"""Chapters over weeks: as even as their order allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from labkit.course.file import Chapter, Course


@dataclass(frozen=True)
class Week:
    """The chapters of one week, and the minutes of reading and running that they take in this track."""

    number: int
    chapters: tuple[Chapter, ...]
    minutes: int

    @property
    def assistant(self) -> int:
        return sum(chapter.assistant for chapter in self.chapters)


@dataclass(frozen=True)
class Track:
    """A course of so many weeks. `everything`: optional chapters and sections too, not only the core."""

    weeks: tuple[Week, ...]
    everything: bool

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        return tuple(chapter for week in self.weeks for chapter in week.chapters)

    @property
    def minutes(self) -> int:
        return sum(week.minutes for week in self.weeks)


def track(course: Course, weeks: int, everything: bool) -> Track:
    """`weeks` weeks, none empty, in the order of the chapters, which keeps every prerequisite before its chapter.

    The minutes of the weeks are as equal as that order allows: their sum of squares is the least.
    """
    chapters = course.chapters if everything else course.core()
    minutes = [chapter.minutes if everything else chapter.core_minutes for chapter in chapters]
    starts = even_split(minutes, weeks)
    ends = [*starts[1:], len(chapters)]
    return Track(
        tuple(
            Week(number, tuple(chapters[start:end]), sum(minutes[start:end]))
            for number, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
        ),
        everything,
    )


def even_split(sizes: Sequence[int], parts: int) -> list[int]:
    """Where the parts begin when `sizes` is cut, in order, into `parts` parts with the least sum of squared totals.

    Since the totals add up to the same, that is the least variance. Raises ValueError for more parts than sizes.
    """
    if not 1 <= parts <= len(sizes):
        raise ValueError(f"{len(sizes)} chapters cannot fill {parts} weeks: take 1 to {len(sizes)}")

    @cache
    def best(end: int, parts: int) -> tuple[int, list[int]]:
        """The least sum of squares of sizes[:end] in that many parts, and where they begin."""
        if parts == 1:
            return sum(sizes[:end]) ** 2, [0]
        options = (
            (before + sum(sizes[start:end]) ** 2, [*starts, start])
            for start in range(parts - 1, end)
            for before, starts in [best(start, parts - 1)]
        )
        return min(options, key=lambda option: option[0])

    return best(len(sizes), parts)[1]


def weights(chapters: Sequence[Chapter]) -> dict[int, int]:
    """The gradebook weight of each of these chapters by number, in percent, scaled so that they add up to 100.

    Rounded down, with what is left given to the largest remainders, earlier chapters first.
    """
    total = sum(chapter.weight for chapter in chapters)
    shares = {chapter.number: divmod(100 * chapter.weight, total) for chapter in chapters}
    left = 100 - sum(whole for whole, _ in shares.values())
    lucky = sorted(shares, key=lambda number: -shares[number][1])[:left]
    return {number: whole + (number in lucky) for number, (whole, _) in shares.items()}
