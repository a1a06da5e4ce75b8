"""The coverage page: everything that the sources ask, warn of and name, and where it is answered."""

from __future__ import annotations

from labkit.course.covered import KINDS, WAYS, Reference, Row, coverage
from labkit.course.file import Course
from labkit.course.pages.markdown import NOTE, link, table

PLANNED = "planned"


def coverage_page(course: Course) -> str:
    rows = coverage()
    parts = [
        "# What the sources ask, and where it is answered\n",
        "One row for each learning objective of a self-check question, each fallacy and pitfall, each named system, "
        "each formula, table and figure that a reader works with, and each failure scenario, in our words. A source "
        "is cited by its number and section; [the syllabus](syllabus.md#sources) names them.\n",
        "*Real*: ranks do it, in a cell that starts them or shows what they did. *Simulated*: it is computed without "
        "ranks, by a closed form, a simulator or a training in one process, here or recorded. *Explained*: it is told, "
        "or asked, so that one can reason with it. *Mentioned*: it is named in a sentence or two.\n",
        _summary(rows),
    ]
    for kind, title in KINDS.items():
        mine = [row for row in rows if row.kind == kind]
        cells = [[row.source, row.what, row.how or PLANNED, "; ".join(_where(course, ref) for ref in row.covered_by)]
                 for row in mine]  # fmt: skip
        parts += [f"## {title}\n", table(["source", "what", "how", "where"], cells)]
    return NOTE + "\n".join(parts)


def _summary(rows: tuple[Row, ...]) -> str:
    ways = (*WAYS, PLANNED)

    def counts(mine: list[Row]) -> list[object]:
        return [len(mine), *(sum((row.how or PLANNED) == way for row in mine) for way in ways)]

    lines: list[list[object]] = []
    for kind, title in KINDS.items():
        mine = [row for row in rows if row.kind == kind]
        lines.append([title, ", ".join(sorted({row.source.seed for row in mine})), *counts(mine)])
    lines.append(["all", "", *counts(list(rows))])
    numbers = ["rows", *ways]
    return table(["kind", "sources", *numbers], lines, numbers)


def _where(course: Course, reference: Reference) -> str:
    target = f", {reference.target}" if reference.target else ""
    if reference.kind == "appendix":
        return f"[appendix {reference.number}{target}]({course.appendix(str(reference.number)).name}.ipynb)"
    chapter = course.chapter(reference.number)
    if reference.kind == "planned":
        return f"planned for {chapter.number}{target}"
    if reference.kind == "exercise":
        return f"[exercise {chapter.number}{target}](../exercises/{chapter.name}.ipynb)"
    kind = "" if reference.kind == "chapter" else f"{reference.kind} "
    return link(chapter, f"{kind}{chapter.number}{target}")
