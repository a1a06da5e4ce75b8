"""What chapters count in the course: weights and a teaching assistant's minutes, from the course file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from labkit.course import CourseError, load
from labkit.course.file import Chapter, Course
from labkit.course.tracks import weights


@dataclass(frozen=True)
class Weight:
    """A chapter that was graded. course: its percent of the whole course; share: of the chapters graded so far.

    assistant: minutes of a teaching assistant, for one group of thirty.
    """

    notebook: str
    title: str
    course: int
    share: int
    assistant: int


def weights_of(notebooks: Iterable[str], course: Course | None = None) -> tuple[Weight, ...]:
    """The weights of these notebooks; one that the course file does not know has none and is left out."""
    course = load() if course is None else course
    chapters: list[Chapter] = []
    for notebook in notebooks:
        try:
            chapters.append(course.chapter(notebook))
        except CourseError:
            continue
    shares = weights(chapters) if any(chapter.weight for chapter in chapters) else {}
    return tuple(
        Weight(c.name, c.title, c.weight, shares.get(c.number, 0), c.assistant)
        for c in sorted(chapters, key=lambda chapter: chapter.number)
    )


def course_grade(shares: Mapping[str, float | None], weights: Iterable[Weight]) -> float | None:
    """The weighted mean of shares by notebook (0 to 1), in percent; None where nothing that has a weight is marked.

    A notebook of which nothing is marked yet (share None) is left out until it is.
    """
    counted = [(weight.course, share) for weight in weights if (share := shares.get(weight.notebook)) is not None]
    total = sum(weight for weight, _ in counted)
    return 100 * sum(weight * share for weight, share in counted) / total if total else None
