"""The coverage page: everything that the sources ask, warn of and name, and where it is answered."""

from __future__ import annotations

from labkit.course.covered import KINDS, Reference, Row, coverage
from labkit.course.file import Course
from labkit.course.pages.markdown import NOTE, link, table


def coverage_page(course: Course) -> str:
    rows = coverage()
    parts = [
        "# What the sources ask, and where it is answered\n",
        "One row for each learning objective of a self-check question, each fallacy and pitfall, each named system, "
        "in our words. A source is cited by its number and section; [the syllabus](syllabus.md#sources) names them.\n",
        _summary(rows),
    ]
    for kind, title in KINDS.items():
        mine = [row for row in rows if row.kind == kind]
        cells = [[row.source, row.what, "; ".join(_where(course, ref) for ref in row.covered_by)] for row in mine]
        parts += [f"## {title}\n", table(["source", "what", "where"], cells)]
    return NOTE + "\n".join(parts)


def _summary(rows: tuple[Row, ...]) -> str:
    def answered(row: Row) -> bool:
        return any(reference.kind != "planned" for reference in row.covered_by)

    lines: list[list[object]] = []
    for kind, title in KINDS.items():
        mine = [row for row in rows if row.kind == kind]
        seeds = ", ".join(sorted({row.source.seed for row in mine}))
        lines.append([title, seeds, len(mine), sum(map(answered, mine))])
    lines.append(["all", "", len(rows), sum(map(answered, rows))])
    numbers = ["rows", "answered in a written chapter"]
    return table(["kind", "sources", *numbers], lines, numbers)


def _where(course: Course, reference: Reference) -> str:
    chapter = course.chapter(reference.number)
    target = f", {reference.target}" if reference.target else ""
    if reference.kind == "planned":
        return f"planned for {chapter.number}{target}"
    if reference.kind == "exercise":
        return f"[exercise {chapter.number}{target}](../exercises/{chapter.name}.ipynb)"
    kind = "" if reference.kind == "chapter" else f"{reference.kind} "
    return link(chapter, f"{kind}{chapter.number}{target}")
