"""The syllabus: for those who teach the course."""

from __future__ import annotations

from labkit.course.file import Chapter, Course
from labkit.course.headers import listed
from labkit.course.pages.contents import TRACKS, track_table
from labkit.course.pages.markdown import NOTE, link, table
from labkit.course.tracks import track, weights


def syllabus_page(course: Course) -> str:
    tracks = [track(course, weeks, everything) for weeks, everything in TRACKS]
    return NOTE + "\n".join(
        [
            "# Syllabus\n",
            "Students need Python, a little PyTorch, and a computer; a GPU is not needed. "
            "Every chapter is a notebook to read and run, with predictions, a quiz and exercises.\n",
            "Minutes are those of reading and running. Assistant minutes are for one group of thirty.\n",
            *map(track_table, tracks),
            "## Weights and assistance\n",
            "A chapter's exercises count this much of the grade. The weights of the shorter course are those of its "
            "chapters, scaled to 100.\n",
            _weights(course, [weights(each.chapters) for each in tracks]),
            "## Chapters\n",
            *(_chapter(course, chapter) for chapter in course.chapters),
            "## Sources\n",
            *(f"- **{seed.id}** {seed.title}: {seed.about}." for seed in course.seeds),
            "",
        ]
    )


def _weights(course: Course, shares: list[dict[int, int]]) -> str:
    heads = [f"% in {weeks} weeks" for weeks, _ in TRACKS]
    rows: list[list[object]] = [
        [chapter.number, chapter.title, *(share.get(chapter.number, "") for share in shares), chapter.assistant]
        for chapter in course.chapters
    ]
    rows.append(["", "sum", *(sum(share.values()) for share in shares), sum(c.assistant for c in course.chapters)])
    return table(["no.", "chapter", *heads, "assistant minutes"], rows, ["no.", *heads, "assistant minutes"])


def _chapter(course: Course, chapter: Chapter) -> str:
    before = listed([str(number) for number in chapter.prerequisites]) or "no other chapter"
    facts = [
        f"{'Core' if chapter.core else 'Optional'}, {chapter.state}. {chapter.core_minutes} minutes"
        + "".join(f", section {s.number} ({s.heading}) {s.minutes} more" for s in chapter.optional)
        + f". Builds on {before}.",
        "Sources: " + "; ".join(map(str, chapter.sources)) + ".",
    ]
    objectives = [f"- {objective.text} (`{objective.id}`)" for objective in chapter.objectives]
    title = link(chapter, f"{chapter.number} {chapter.title}")
    return "\n".join([f"### {title}\n", facts[0] + "\n", "You will be able to\n", *objectives, "", facts[1] + "\n"])
