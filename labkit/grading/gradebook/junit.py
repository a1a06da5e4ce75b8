"""junit.xml: a test suite a student, a test case a check, for whatever draws such reports.

wrong: failure. error: error. A stub, and a response that waits for a person: skipped. No record: a failure.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from labkit.grading.gradebook.rows import MISSING, Book, Entry, Row
from labkit.grading.gradebook.text import clean, points
from labkit.grading.grader.results import TO_MARK

_ELEMENT = {"wrong": "failure", "partly": "failure", "error": "error", "unattempted": "skipped", TO_MARK: "skipped"}


def junit_xml(book: Book) -> str:
    root = ET.Element("testsuites", name="labkit grade")
    for row in sorted(book.rows, key=lambda row: row.student):
        suite = ET.SubElement(root, "testsuite", name=clean(row.student))
        for entry in row.entries:
            _cases(suite, entry)
        _count(suite, row)
    _count(root)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _cases(suite: ET.Element, entry: Entry) -> None:
    """A case for each check, or one for the exercise where no check, or a person, decided."""
    graded = entry.graded
    where = f"{entry.column.notebook}.{entry.column.exercise}"
    said = f"{points(entry.points)} of {points(entry.of)} points"
    if entry.override is not None:
        _case(suite, where, "set by the instructor", entry.state, f"{said}. {entry.override.reason}")
    elif entry.hand is not None:
        _case(suite, where, "marked by hand", entry.state, f"{said}. {entry.hand.comment}")
    elif entry.state == MISSING:
        _case(suite, where, "submission", "wrong", "There is no record of this exercise: 0 points.")
    elif graded is None or not graded.marks:
        _case(suite, where, "exercise", entry.state, "to be marked by hand" if entry.waits else said)
    else:
        share = graded.seconds / len(graded.marks)
        for mark in graded.marks:
            _case(suite, where, mark.name, mark.state, mark.sentence, mark.detail, share)


def _case(
    suite: ET.Element, where: str, name: str, state: str, message: str, detail: str = "", seconds: float = 0.0
) -> None:
    case = ET.SubElement(suite, "testcase", classname=clean(where), name=clean(name), time=f"{seconds:.3f}")
    if (element := _ELEMENT.get(state)) is not None:
        ET.SubElement(case, element, message=clean(message)).text = clean(detail) or None


def _count(element: ET.Element, row: Row | None = None) -> None:
    """The totals that readers of the format expect, and the marks as properties."""
    cases = list(element.iter("testcase"))
    element.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
    if row is not None:
        properties = ET.Element("properties")
        for name, value in (("score", row.score), ("max_score", row.max_score), ("to_mark", row.to_mark)):
            ET.SubElement(properties, "property", name=name, value=points(value))
        element.insert(0, properties)
