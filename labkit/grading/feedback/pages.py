"""The page of a student and the page of the class, from the templates in templates/.

What is put into a template is cleaned and escaped there. A name that a template does not know is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from statistics import median

from jinja2 import Environment, PackageLoader, StrictUndefined

from labkit.book.drawing.page import page
from labkit.grading.feedback.statistics import checks, exercises, percents
from labkit.grading.feedback.wording import EVIDENCE, SIGNS, WORDS
from labkit.grading.gradebook.options import GradebookOptions
from labkit.grading.gradebook.report import graders
from labkit.grading.gradebook.rows import MISSING, Book, Entry, Handed, Row, in_words, lost
from labkit.grading.gradebook.text import clean, counted, points
from labkit.grading.grader.results import TO_MARK
from labkit.grading.sandbox.tiers import TIERS, words

GENERATOR = "labkit grade"
LONGEST = 6000  # characters of a text that a student wrote; of printed text the last ones


def student_page(row: Row, options: GradebookOptions) -> str:
    """A whole page for one student, under the name that is shown."""
    return _page("student.html", f"Feedback for {row.name}", row=row, options=options)


def index_page(book: Book, pages: Mapping[str, str]) -> str:
    """The instructor's page. pages: the file of each student's page, by the name that is shown."""
    shares, found = percents(book.rows), graders(book)
    tiers = sorted({grader["tier"] for grader in found} & {*TIERS})
    return _page(
        "index.html", "Grades", wide=True, book=book, pages=pages, graders=found,
        failing=checks(book), exercises=exercises(book), middle=round(median(shares), 1) if shares else None,
        waiting=sum(entry.state == TO_MARK for row in book.rows for entry in row.entries),
        limits=[line for tier in tiers for line in words(tier).splitlines()],
    )  # fmt: skip


def told(handed: Handed) -> list[Entry]:
    """The exercises of which there is anything to say beyond their line in the table."""
    return [e for e in handed.entries if not handed.absent or e.state != MISSING or e.override is not None]


def moment(time: datetime | str | None) -> str:
    time = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{time:%Y-%m-%d %H:%M} {time:%Z}".strip() if time else ""


def start(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[... {len(text) - most} more characters]"


def end(text: str) -> str:
    return text if len(text) <= LONGEST else f"[{len(text) - LONGEST} characters before ...]\n{text[-LONGEST:]}"


TEMPLATES = Environment(
    loader=PackageLoader("labkit.grading.feedback"), autoescape=True, undefined=StrictUndefined,
    finalize=lambda value: value if hasattr(value, "__html__") else clean(str(value)),  # what is markup was cleaned
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
TEMPLATES.filters |= {each.__name__: each for each in (end, in_words, lost, moment, points, start, told)}
TEMPLATES.globals |= {"EVIDENCE": EVIDENCE, "MISSING": MISSING, "SIGNS": SIGNS, "WORDS": WORDS, "counted": counted}


def _page(template: str, title: str, wide: bool = False, **values: object) -> str:
    head, style, body = (
        TEMPLATES.get_template(name).render(values, title=title, wide=wide, generator=GENERATOR)
        for name in ("head.html", "style.css", template)
    )
    return page(clean(title), body, style, head=head)
