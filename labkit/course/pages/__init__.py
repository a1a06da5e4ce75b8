"""The pages that are made from the course's data files. `labkit.course.build` writes them into `notebooks/`."""

from __future__ import annotations

from labkit.course.file import Course
from labkit.course.graph import svg
from labkit.course.pages.contents import contents_page
from labkit.course.pages.coverage import coverage_page
from labkit.course.pages.syllabus import syllabus_page
from labkit.course.pages.words import glossary_page, notation_page


def pages(course: Course) -> dict[str, str]:
    """Each page's path below `notebooks/`, and its text."""
    return {
        "README.md": contents_page(course),
        "syllabus.md": syllabus_page(course),
        "coverage.md": coverage_page(course),
        "notation.md": notation_page(course),
        "glossary.md": glossary_page(course),
        "pictures/prerequisites.svg": svg(course),
    }
