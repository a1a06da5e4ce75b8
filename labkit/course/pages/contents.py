"""The contents page: what the chapters are, how long they take, what they build on, and two ways through them."""

from __future__ import annotations

from labkit.course.file import Chapter, Course
from labkit.course.graph import in_words
from labkit.course.headers import listed
from labkit.course.pages.markdown import NOTE, link, table
from labkit.course.tracks import Track, track

TRACKS = ((6, False), (12, True))  # weeks, and whether optional chapters and sections are in


def contents_page(course: Course) -> str:
    core, everything = course.core(), course.chapters
    readable = listed([str(chapter.number) for chapter in course.written()]) or "none yet"
    core_hours, hours = _hours(sum(c.core_minutes for c in core)), _hours(sum(c.minutes for c in everything))
    return NOTE + "\n".join(
        [
            f"# {course.title}\n",
            f"{len(everything)} chapters. Those that can be read today: {readable}. "
            f"The {len(core)} core chapters take about {core_hours} hours to read and run, everything about {hours}. "
            "Exercises come on top.\n",
            "Open a chapter with `labkit lab`, which makes a working copy of your own.\n",
            _chapters(course),
            *(f"Appendix {a.letter}: [{a.title}]({a.name}.ipynb). {a.about}\n" for a in course.appendices),
            "## What builds on what\n",
            "![Which chapter builds on which: the list below says the same in words](pictures/prerequisites.svg)\n",
            "<details><summary>The same in words</summary>\n",
            *(f"- {sentence}" for sentence in in_words(course)),
            "\n</details>\n",
            "## Two ways through\n",
            *(track_table(track(course, weeks, all_of_it)) for weeks, all_of_it in TRACKS),
            "More: [syllabus](syllabus.md), [what the sources ask and where it is answered](coverage.md), "
            "[notation](notation.md), [glossary](glossary.md).\n",
        ]
    )


def _chapters(course: Course) -> str:
    rows = [
        [
            chapter.number,
            link(chapter, chapter.title),
            "core" if chapter.core else "optional",
            chapter.core_minutes,
            _optional(chapter),
            ", ".join(map(str, chapter.prerequisites)) or "none",
            chapter.state,
        ]
        for chapter in course.chapters
    ]
    return table(
        ["no.", "chapter", "path", "minutes", "optional sections", "builds on", "state"], rows, ["no.", "minutes"]
    )


def _optional(chapter: Chapter) -> str:
    if not chapter.optional:
        return "none"
    return f"{', '.join(str(section.number) for section in chapter.optional)} ({chapter.optional_minutes} minutes)"


def track_table(track: Track) -> str:
    """A heading and the weeks of one track."""
    what = "everything" if track.everything else "the core"
    rows = [
        [
            week.number,
            "; ".join(f"{chapter.number} {link(chapter, chapter.title)}{_mark(chapter)}" for chapter in week.chapters),
            week.minutes,
        ]
        for week in track.weeks
    ]
    heading = f"### {len(track.weeks)} weeks: {what}, {_hours(track.minutes)} hours of reading and running\n\n"
    return heading + table(["week", "chapters", "minutes"], rows, ["week", "minutes"])


def _mark(chapter: Chapter) -> str:
    return "" if chapter.core else " (optional)"


def _hours(minutes: int) -> int:
    return round(minutes / 60)
