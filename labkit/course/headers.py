"""The first cell of a chapter, made from the course file: its title, what it opens with, and three lines to unfold."""

from __future__ import annotations

from labkit.course.file import Chapter, Course, load

AFTER_A_RESTART = (
    "**If the kernel was restarted**, names are gone, and no panel or question on the page answers before its cell has "
    "run again: select the cell where you were, and choose *Run > Run All Above Selected Cell*. Your predictions and "
    "answers are kept, as long as the parameters are the same."
)


def header(which: int | str) -> str:
    """The Markdown of the first cell of a chapter (3 or "03_collectives"). Raises CourseError for an unknown one."""
    course = load()
    return chapter_header(course, course.chapter(which))


def appendix_header(letter: str) -> str:
    """The Markdown of the first cell of an appendix. Raises CourseError for an unknown one."""
    appendix = load().appendix(letter)
    return f"# {appendix.title}\n\n{appendix.about}"


def chapter_header(course: Course, chapter: Chapter) -> str:
    lines = [
        f"**You will be able to** {chapter.able}",
        f"**It builds on** {prerequisites(course, chapter)}. {chapter.builds_on}",
        f"**It takes** {duration(chapter)}",
    ]
    if chapter.opening:
        folded = "<details><summary>What you will learn, what you need, how long it takes</summary>"
        lines = [chapter.opening.strip(), folded, *lines, AFTER_A_RESTART, "</details>"]
    return "\n\n".join([f"# {chapter.title}", *lines])


def prerequisites(course: Course, chapter: Chapter) -> str:
    """The chapters it builds on, in words: "chapter 2, ranks and messages"."""
    before = [course.chapter(number) for number in chapter.prerequisites]
    if not before:
        return "no other chapter"
    if len(before) == 1:
        return f"chapter {before[0].number}, {before[0].in_a_sentence}"
    return "chapters " + listed([f"{other.number} ({other.in_a_sentence})" for other in before])


def duration(chapter: Chapter) -> str:
    """How long it takes, in one or two sentences."""
    sentences = [f"about {chapter.core_minutes} minutes to read and run."]
    if chapter.sittings:
        sentences.append(chapter.sittings)
    if chapter.optional:
        numbers = listed([str(section.number) for section in chapter.optional])
        one = len(chapter.optional) == 1
        sentences.append(
            f"Section{'' if one else 's'} {numbers} {'is' if one else 'are'} optional and "
            f"{'takes' if one else 'take'} {chapter.optional_minutes} more."
        )
    if not chapter.core:
        sentences.append("The whole chapter is optional.")
    return " ".join(sentences)


def listed(items: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
