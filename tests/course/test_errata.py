"""Appendix A: every line is an error and no matter of rounding, leads to a place in the book, and is shown."""

import json
import re

import pytest

from labkit.chapters.cA_errata import pictures
from labkit.course import appendix_header, errata, load
from labkit.course.build import NOTEBOOKS
from labkit.course.chapter_file import load_chapter
from labkit.course.covered import Row, parse_reference, problems
from labkit.course.errata import _entry, groups
from labkit.course.errors import CourseError
from labkit.course.file import Source, course_table, from_table

LINES = errata()
APPENDIX = load().appendix("A")
CELLS = json.loads((NOTEBOOKS / f"{APPENDIX.name}.ipynb").read_text(encoding="utf-8"))["cells"]


def ends(says):
    """The numbers of what a source says: one, or both ends of a range."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", says)]


@pytest.mark.parametrize("id", LINES)
def test_what_is_stated_and_what_is_computed_differ_by_more_than_rounding(id):
    claim = LINES[id].claim()
    assert claim.agrees is False
    assert min(abs(claim.found - end) for end in ends(claim.said)) >= 0.01 * max(map(abs, ends(claim.said))) or (
        claim.said.startswith(("above", "below"))  # then a bound itself is enough
    )


@pytest.mark.parametrize("id", LINES)
def test_a_line_leads_to_a_heading_that_exists(id):
    line = LINES[id]
    chapter = load().chapter(line.chapter)
    assert re.fullmatch(r"\d\d( \d+ .+)?", line.see)
    if chapter.written:
        cells = json.loads((NOTEBOOKS / f"{chapter.name}.ipynb").read_text(encoding="utf-8"))["cells"]
        texts = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert line.heading in re.findall(r"^##? (.+)$", texts, flags=re.MULTILINE), line.see
        assert f"({chapter.name}.ipynb#" in pictures.link(line)
    else:
        assert line.see == f"{chapter.number:02d}", "a chapter to come has no headings yet"


def test_lines_are_short_and_stand_once():
    assert len({(str(line.source), line.what) for line in LINES.values()}) == len(LINES)
    for line in LINES.values():
        assert "$" not in line.what + line.quote + line.place, "a notebook would take it for the start of a formula"
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", line.id)
        assert len(line.what.split()) <= 28 and len(line.quote.split()) <= 8 and not line.what.endswith("."), line.id


def test_all_sources_and_all_groups_have_lines():
    assert {line.source.seed for line in LINES.values()} == {seed.id for seed in load().seeds}
    assert {line.kind for line in LINES.values()} == set(groups())


def test_the_notebook_shows_every_group_under_its_name_and_all_questions():
    texts = ["".join(cell["source"]) for cell in CELLS]
    assert texts[0] == appendix_header("A")
    headings = re.findall(r"^## \d+ (.+)$", "\n".join(texts), flags=re.MULTILINE)
    assert set(groups().values()) <= set(headings)
    shown = [kind for text in texts for kind in re.findall(r'^lines\("(\w+)"\)$', text)]
    assert shown == list(groups())
    asked = [id for text in texts for id in re.findall(r'chapter\.quiz\("(.+)"\)', text)]
    assert sorted(asked) == sorted(load_chapter(APPENDIX.name).questions)
    (line,) = [text for text in texts if text.startswith("line: str")]
    assert re.search(r'"(.+)"', line)[1] in LINES


def test_an_appendix_is_no_chapter():
    """No workbench and nothing to write or to predict, but cells as narrow and as short as a chapter's."""
    code = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    assert not any(word in "".join(code) for word in ("book.workbench(", "chapter.check(", "chapter.predict("))
    assert len(CELLS) <= 75 and all(len(text.split("\n")) <= 15 for text in code)
    assert max(len(line) for text in code for line in text.split("\n")) <= 88
    assert APPENDIX.name not in {chapter.name for chapter in load().chapters}


def test_the_table_has_links_and_its_words_have_none():
    group = pictures.lines("order")
    assert len(group._repr_markdown_().split("\n")) == len(group) + 2
    assert "(05_zero_and_fsdp.ipynb#6-A-step-of-FSDP)" in group._repr_markdown_()
    assert "two-of-three" in repr(group) and "ipynb" not in repr(group)
    told = pictures.apart("accumulation-both")
    with pytest.raises(CourseError, match=r"no line 'bert-link' \(did you mean 'bert-links'"):
        pictures.apart("bert-link")
    assert "inside = cost.textbook.ring_at" in told and told.endswith("it comes to 0.162 %")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source": "003 9.9"}, "no section of a source"),
        ({"kind": "bites"}, "is of kind 'bites': use one of bytes"),
        ({"sees": "03"}, "unexpected keyword"),
    ],
)
def test_a_line_that_breaks_a_rule_is_refused(change, why):
    row = {"id": "x", "kind": "bytes", "source": "003 1.1", "place": "p", "what": "w", "says": "1", "found": "2",
           "see": "03"}  # fmt: skip
    assert _entry(dict(row)).claim().agrees is False
    with pytest.raises(CourseError, match=why):
        _entry({**row, **change})


def test_an_expression_that_fails_says_where():
    with pytest.raises(CourseError, match="errata, x"):
        _entry(
            {"id": "x", "kind": "bytes", "source": "003 1.1", "place": "p", "what": "w", "says": "1",
             "found": "cost.nothing", "see": "03"}
        ).claim()  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [("appendix:A#nvlink-both", ""), ("appendix:A#case-suspects", ""), ("appendix:A#bytes-and-bandwidth", ""),
     ("appendix:A#nothing-there", "leads nowhere"), ("appendix:A", "leads nowhere")],
)  # fmt: skip
def test_coverage_may_name_a_line_a_cell_or_a_heading(text, problem):
    assert str(parse_reference(text)) == text
    row = Row("system", Source("003", "1.1"), "a thing", (parse_reference(text),), "simulated")
    found = problems(load(), (row,), NOTEBOOKS)
    assert problem in found[0] if problem else found == []


def test_an_appendix_without_a_field_is_refused():
    table = course_table()
    assert [appendix.letter for appendix in from_table(table).appendices] == ["A"]
    table["appendix"][0].pop("about")
    with pytest.raises(CourseError, match="an appendix has letter, name"):
        from_table(table)
    with pytest.raises(CourseError, match="no appendix 'B': there is A"):
        load().appendix("B")
