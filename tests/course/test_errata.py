"""Appendix A: every line is an error and no matter of rounding, leads to a place in the book, and is shown."""

import json
import math
import re

import pytest

import labkit
from labkit.chapters.cA_errata import agreeing, apart, panels, pictures, suspects
from labkit.chapters.cA_errata.you_write import agrees
from labkit.course import appendix_header, errata, load
from labkit.course.build import NOTEBOOKS
from labkit.course.chapter_file import load_chapter
from labkit.course.covered import Row, parse_reference, problems
from labkit.course.errata import COMES, _entry, groups
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
    if chapter.written:
        assert re.fullmatch(r"\d\d \d+ .+", line.see), "a written chapter has sections"
        cells = json.loads((NOTEBOOKS / f"{chapter.name}.ipynb").read_text(encoding="utf-8"))["cells"]
        texts = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert line.heading in re.findall(r"^##? (.+)$", texts, flags=re.MULTILINE), line.see
        assert f"({chapter.name}.ipynb#" in pictures.link(line)
    else:
        assert line.see == f"{chapter.number:02d}", "a chapter to come has no headings yet"
        assert pictures.link(line) == ""


def test_lines_are_short_and_stand_once():
    assert len({(str(line.source), line.what) for line in LINES.values()}) == len(LINES)
    for line in LINES.values():
        assert "$" not in line.what + line.quote + line.place, "a notebook would take it for the start of a formula"
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", line.id)
        assert len(line.quote.split()) <= 8
        first, but = line.what.split(". But ")  # two sentences
        assert but.endswith(".") and max(len(first.split()), 1 + len(but.split())) <= 28, line.id


@pytest.mark.parametrize("id", LINES)
def test_a_line_is_as_far_off_as_its_group_says_and_its_cell_computes_it(id):
    line, shown = LINES[id], repr(panels.computed(id))
    assert line.comes in COMES and shown.endswith(f"{line.comes}: {pictures.found(line)}")
    assert line.kind != "small" or 0.7 < line.factor < 1.2, "a small slip is small"
    assert apart.pasted(line) in shown
    *code, last = apart.pasted(line).split("\n")
    names = {}
    exec("\n".join(code), names)
    assert eval(last, names) == pytest.approx(line.claim().found), "the pasted cell needs no other"


@pytest.mark.parametrize("id", apart.pencils())
def test_a_pencil_comes_to_our_number_and_the_question_has_what_goes_in(id):
    line, question = LINES[id], apart.pencils()[id]
    assert eval(question.way, {"ceil": math.ceil}) == pytest.approx(line.claim().found, rel=0.001)
    assert question.ask.endswith("?") and line.unit.split("{}")[0].split()[0] in question.ask.replace("percentage", "%")
    assert apart.worked(line)[0].endswith("if the sentence were true") == (line.comes == "then")
    assert line.factor and question.written in repr(panels.apart(line.kind)) and "`" not in question.ask
    assert line.what.partition(". But ")[2] not in apart.asked(line), "why it cannot be comes after the number"


def test_every_group_has_a_question_and_a_picture_shows_them_all():
    assert len(apart.pencils()) == 15 and {LINES[id].kind for id in apart.pencils()} == set(groups())
    figure = panels.factors()
    assert [row["what"] for row in figure.rows] == [apart.pencils()[id].label for id in LINES if id in apart.pencils()]
    assert "nvlink-both" not in figure.svg and groups()["time"] in figure.svg


def test_a_readers_number_is_answered():
    shown = panels.apart("Bytes ")
    shown.choose("bert-links")
    assert "Your number is ours" in shown.compare("17.3 GB/s") and "But no reading" in shown.compare("17.3")
    assert "what the source says" in shown.compare("100") and "You have 35, and we get 17.3 GB/s" in shown.compare("35")
    for nothing in ("", "abc"):
        assert "no number" in shown.compare(nothing) and "0.050" not in shown.compare(nothing)
    assert "0.050 = 17.3 GB/s" in shown.worked()
    shown.box.children[0].value = "whole-gradient"
    assert shown.entry.id == "whole-gradient" and "175 billion" in shown.box.children[1].value
    _, give_up = shown.box.children[2].children[1:]
    give_up.click()
    assert "2.73 GB" in shown.box.children[3].value


def test_the_list_is_found_among_numbers_that_agree():
    mixed = agreeing.numbers()
    wrong = [one for one in mixed if not agrees(one.said, one.found)]
    assert {one.where for one in wrong} == {one.where for one in mixed} & set(LINES)
    assert len(mixed) - len(wrong) == len(agreeing.agreeing()) == 12 < len(wrong)


@pytest.mark.parametrize("id", ["bert-link", "x", 3, None, ""])
def test_what_is_not_there_is_said_in_a_sentence(id):
    for said in (panels.apart(id), panels.computed(id), pictures.lines(id)):
        assert repr(said).startswith("There is no ") and repr(said).endswith(".")
    assert "did you mean 'bert-links'" in repr(panels.computed("bert-link"))
    assert [line.id for line in pictures.lines("Order")] == [line.id for line in pictures.lines("order")]


def test_the_case_has_more_than_one_story():
    """Time, counter as the speed while sending, counter as an average: which of them each setting explains."""
    stories = {(3, 100, False): (False, False, True), (3, 37, False): (True, False, False),
               (3, 48, True): (True, False, False), (4.4, 60, False): (True, True, False),
               (6.05, 100, False): (True, False, True), (8, 100, False): (False, False, True)}  # fmt: skip
    for settings, fits in stories.items():
        assert tuple(one for one, _ in suspects.story(*settings).facts.values()) == fits, settings
    assert suspects.story(3, 37, False).average == pytest.approx(0.30, abs=0.005), "slow uplinks send for longer"
    told = repr(suspects.fraction())
    assert "no reading of the counter fits" in told and "4.39 GB" in told and "6.05 GB" in told
    rows = suspects.table(0.06477)
    assert [row["ms"] for row in rows] == pytest.approx([239.8, 273.1, 48.5, 68.4, 67.3, 87.1, 64.8, 35.0], abs=0.06)


def test_the_picture_of_the_case_moves_with_its_controls():
    case = panels.slow_sync()
    assert "48.5 ms, 51.5 ms less than was seen" in repr(case)
    size, speed, nvlink, shown = case.box.children
    before = shown.value
    size.value, speed.value = 4.4, 60
    assert shown.value != before and shown.value.count("✓") == 2 and "seen: 100 ms" in shown.value
    nvlink.value = panels.Case.ways[1]
    assert "128.0 ms" not in before and "27.8 ms more than was seen" in shown.value


@pytest.mark.parametrize("id", ["rows-of-a-table", "gpus-of-the-pools", "between-two-failures"])
def test_a_known_slip_is_told_its_reason(id):
    slips = {"rows-of-a-table": {"10000": "one in how many", "100": "five orders", "100000": "divide by 100"},
             "gpus-of-the-pools": {"256": "the whole cluster", "64": "all three degrees", "32": "one replica",
                                   "224": "one replica of the policy leaves", "8": "reference model"},
             "between-two-failures": {"18": "what it says", "626": "thousands of servers", "6.26": "a server has 8",
                                      "28.75": "failures a day", "400.7": "12,500 servers"}}  # fmt: skip
    question = load_chapter(APPENDIX.name).question(id, {})
    right = {"rows-of-a-table": "1000", "gpus-of-the-pools": "0", "between-two-failures": "50.1"}[id]
    assert question.mark(right).right
    for typed, word in slips[id].items():
        told = question.mark(typed)
        assert not told.right and word in told.why, (typed, told.why)


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_ranks_say_which_sentence_on_zero1_is_right(size, monkeypatch):
    (source,) = ["".join(cell["source"]) for cell in CELLS if cell["id"] == "first-try"]
    names, shown = {}, []
    monkeypatch.setattr(panels, "three_ways", shown.append)
    exec(source, names)
    for way, ratio in (("plain data parallelism", "as much as plain"), ("ZeRO-1, as the table has it", "as much as"),
                       ("ZeRO-1, as the text has it", "1.5 times what plain")):  # fmt: skip
        figure = pictures.sent(labkit.launch(names["step"], size, way))
        assert ratio in figure.sentence, (way, figure.sentence)


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


def test_an_appendix_keeps_to_the_budgets_of_a_chapter_where_they_make_sense():
    """Something to touch first, two functions to write, nothing to predict, and cells as narrow and as short."""
    code = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    told = "\n".join(code)
    assert "panels.three_ways(" in code[0] and told.count("chapter.check(") == 2 and "chapter.predict(" not in told
    kept = [[line for line in text.split("\n") if line.strip() and not re.match(r"from \S+ import |import |### ",
             line.strip())] for text in code]  # fmt: skip
    assert len(CELLS) <= 75 and all(len(lines) <= 15 for lines in kept)
    assert max(len(line) for text in code for line in text.split("\n")) <= 88
    assert APPENDIX.name not in {chapter.name for chapter in load().chapters}


def test_the_table_has_links_and_its_words_have_none():
    group = pictures.lines("order")
    assert len(group._repr_markdown_().split("\n")) == len(group) + 6, "a head, and what folds it"
    assert group._repr_markdown_().startswith(f"<details><summary>All {len(group)} lines")
    assert "(05_zero_and_fsdp.ipynb#6-A-step-of-FSDP)" in group._repr_markdown_()
    assert "two-of-three" in repr(group) and "ipynb" not in repr(group)
    factors = [abs(math.log(line.factor)) for line in group if line.factor]
    assert factors == sorted(factors, reverse=True), "what is furthest off comes first"
    told = repr(panels.computed("accumulation-both"))
    assert "inside = cost.textbook.ring_at" in told and told.endswith("elsewhere: 0.162 %")


def test_the_questions_come_before_every_table():
    ids = [cell["id"] for cell in CELLS]
    asked = [id for id in ids if id.startswith("quiz-") and id != "quiz-case"]
    assert max(map(ids.index, asked)) < min(map(ids.index, groups()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source": "003 9.9"}, "no section of a source"),
        ({"kind": "bites"}, "is of kind 'bites': use one of bytes"),
        ({"sees": "03"}, "unexpected keyword"),
        ({"comes": "wrong"}, "what we find is 'wrong': use one of right, then, elsewhere"),
    ],
)
def test_a_line_that_breaks_a_rule_is_refused(change, why):
    row = {"id": "x", "kind": "bytes", "source": "003 1.1", "place": "p", "what": "w", "says": "1", "found": "2",
           "comes": "right", "see": "03"}  # fmt: skip
    assert _entry(dict(row)).claim().agrees is False
    with pytest.raises(CourseError, match=why):
        _entry({**row, **change})


def test_an_expression_that_fails_says_where():
    with pytest.raises(CourseError, match="errata, x"):
        _entry(
            {"id": "x", "kind": "bytes", "source": "003 1.1", "place": "p", "what": "w", "says": "1",
             "found": "cost.nothing", "comes": "right", "see": "03"}
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
