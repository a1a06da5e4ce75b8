"""The course file: what it must say, what is refused, and that the notebooks agree with it."""

import json
import re
from pathlib import Path

import pytest

from labkit.course import header, load
from labkit.course.covered import questions, slug
from labkit.course.errors import CourseError
from labkit.course.file import course_table, from_table, read_toml
from labkit.course.headers import chapter_header, duration, listed

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WRITTEN = load().written()
TITLES = """Start here; Why distribute; Ranks and messages; Collectives; Data parallelism; ZeRO and FSDP;
Scaling efficiency; Large batches; Loose synchrony; Tensor parallelism; Pipeline parallelism; Context parallelism;
Experts; Embeddings and parameter servers; Low precision; Hybrid parallelism and the planner;
Alignment: PPO and DPO as a fleet; When things break; Checkpoints and elastic restart; FT-HSDP;
Nonuniform tensor parallelism; A hundred thousand GPUs; Capstone: train through a storm"""


def cells(chapter):
    path = NOTEBOOKS / f"{chapter.name}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def headings(chapter):
    texts = ["".join(cell["source"]) for cell in cells(chapter) if cell["cell_type"] == "markdown"]
    return re.findall(r"^## +(\d+) +(.+)$", "\n".join(texts), flags=re.MULTILINE)


def test_the_chapters_are_those_of_the_book_in_its_order():
    assert [chapter.title for chapter in load().chapters] == re.split(r";\s+", TITLES)
    assert [chapter.number for chapter in load().chapters] == list(range(23))


def test_every_written_chapter_has_its_notebook_and_every_notebook_is_a_chapter_or_an_appendix():
    notebooks = {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    assert {chapter.name for chapter in WRITTEN} <= notebooks
    appendices = {appendix.name for appendix in load().appendices}
    assert appendices <= notebooks <= appendices | {chapter.name for chapter in load().chapters}
    assert 3 in [chapter.number for chapter in WRITTEN]


@pytest.mark.parametrize("chapter", WRITTEN, ids=lambda chapter: chapter.name)
def test_a_chapter_begins_with_its_header(chapter):
    first = cells(chapter)[0]
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]) == header(chapter.number), f"put labkit.course.header({chapter.number}) there"


@pytest.mark.parametrize("chapter", WRITTEN, ids=lambda chapter: chapter.name)
def test_the_optional_sections_are_those_that_the_notebook_says_are_optional(chapter):
    contents = "".join(cells(chapter)[1]["source"])
    said = {int(number) for number in re.findall(r"^(\d+)\. .*\(optional\)", contents, flags=re.MULTILINE)}
    said |= {int(number) for number, heading in headings(chapter) if "(optional)" in heading}
    assert {section.number for section in chapter.optional} == said
    for section in chapter.optional:
        assert (str(section.number), section.heading) in headings(chapter)


@pytest.mark.parametrize("chapter", WRITTEN, ids=lambda chapter: chapter.name)
def test_every_objective_of_a_written_chapter_is_asked(chapter):
    asked = {question["objective"] for question in questions(chapter)}
    assert asked == {objective.id for objective in chapter.objectives}


@pytest.mark.parametrize("chapter", [c for c in WRITTEN if c.opening], ids=lambda chapter: chapter.name)
def test_a_chapter_keeps_to_the_budgets_of_its_form(chapter):
    """Cells; lines (no blank ones, no imports) and columns of visible code; tables, workbenches, things to write."""
    every = cells(chapter)
    code = [c for c in every if c["cell_type"] == "code"]
    seen = [c for c in code if not c["metadata"].get("jupyter", {}).get("source_hidden")]
    told = "\n".join("".join(c["source"]) for c in code)
    assert len(every) <= 75
    for cell in seen:
        lines = "".join(cell["source"]).split("\n")
        kept = [line for line in lines if line.strip() and not re.match(r"(from \S+ )?import |### ", line.strip())]
        assert len(kept) <= 15 and max(map(len, lines)) <= 88, cell["id"]
    assert told.count("book.Table(") <= 8 and 2 <= len(
        re.findall(r"^(?:book\.workbench|panels\.\w+)\(", told, flags=re.MULTILINE)
    )
    several = 4, 8, 12, 15  # where one repairs another, is a line or two, or the chapter takes two sittings
    most = 5 if chapter.number in several else 4
    assert 2 <= told.count("chapter.check(") <= most and told.count("chapter.predict(") <= 3


@pytest.mark.parametrize("chapter", [*WRITTEN, *load().appendices], ids=lambda chapter: chapter.name)
def test_what_a_reader_operates_stands_in_a_cell_that_is_seen(chapter):
    """JupyterLab's arrow keys pass over a cell whose source is hidden, so a panel in it is not reached by them."""
    panel = r"book\.(?:workbench|explorer|replay|play|case)|panels\.\w+|chapter\.(?:check|predict|quiz)"
    operated = rf"^(?:\w+ = |display\()?(?:{panel})\("
    folded = [c for c in cells(chapter) if c["metadata"].get("jupyter", {}).get("source_hidden") and c["id"] != "setup"]
    found = [c["id"] for c in folded if re.search(operated, "".join(c["source"]), flags=re.MULTILINE)]
    assert found == []


def test_what_a_reader_is_told_is_short():
    for chapter in load().chapters:
        for text in [chapter.able, chapter.builds_on, *(objective.text for objective in chapter.objectives)]:
            for sentence in text.split(". "):
                assert len(sentence.split()) <= 22, f"chapter {chapter.number}: {sentence}"
        assert 3 <= len(chapter.objectives) <= 10


def test_every_section_of_every_source_is_the_source_of_a_chapter():
    cited = {str(source) for chapter in load().chapters for source in chapter.sources}
    assert cited == {f"{seed.id} {section}" for seed in load().seeds for section in seed.sections}


def test_needs_follows_prerequisites_to_the_beginning():
    course = load()
    assert course.needs(0) == frozenset()
    assert course.needs(3) == {0, 1, 2}
    for chapter in course.chapters:
        needs = course.needs(chapter.number)
        assert needs == set(chapter.prerequisites).union(*(course.needs(before) for before in needs))
        assert all(before < chapter.number for before in needs)


def test_a_chapter_is_found_by_number_and_by_name():
    course = load()
    assert course.chapter(3) is course.chapter("3") is course.chapter("03") is course.chapter("03_collectives")
    with pytest.raises(CourseError, match="no chapter 'collectivs'"):
        course.chapter("collectivs")
    with pytest.raises(CourseError, match="no chapter 23"):
        header(23)
    with pytest.raises(CourseError, match="no objective 'x': its objectives are why-all-reduce"):
        course.chapter(3).objective("x")
    assert course.chapter(3).objective("ring-bytes").text.startswith("compute")


def test_minutes_count_optional_sections_only_once():
    three = load().chapter(3)
    assert three.minutes == three.core_minutes + sum(section.minutes for section in three.optional) > three.core_minutes


def test_the_header_says_what_on_what_and_how_long():
    course = load()
    assert header(3) == chapter_header(course, course.chapter(3))
    title, able, builds, takes = header(22).split("\n\n")
    assert title == "# Capstone: train through a storm"
    assert able == f"**You will be able to** {course.chapter(22).able}"
    assert builds.startswith("**It builds on** chapters 15 (hybrid parallelism and the planner) and 19 (FT-HSDP)")
    assert takes == f"**It takes** about {course.chapter(22).core_minutes} minutes to read and run."
    assert "**It builds on** no other chapter." in header(0)
    assert "**It builds on** chapter 2, ranks and messages." in header(3)
    assert "The whole chapter is optional." in header(16)


def test_one_optional_section_is_in_the_singular():
    table = course_table()
    table["chapter"][3]["optional"] = [{"number": n, "heading": "Two nodes", "minutes": 8} for n in (8, 9)]
    course = from_table(table)
    assert duration(course.chapter(3)).endswith("Sections 8 and 9 are optional and take 16 more.")
    assert duration(load().chapter(3)).endswith("Section 7 is optional and takes 8 more.")


def test_titles_keep_their_capitals_in_a_sentence_where_they_are_names():
    course = load()
    in_a_sentence = {n: course.chapter(n).in_a_sentence for n in (3, 5, 16, 19, 21)}
    assert in_a_sentence == {
        3: "collectives", 5: "ZeRO and FSDP", 16: "alignment: PPO and DPO as a fleet", 19: "FT-HSDP",
        21: "a hundred thousand GPUs",
    }  # fmt: skip


def test_lists_in_words():
    assert [listed([]), listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_headings_become_slugs():
    assert slug("9 Case file: 100 milliseconds") == "case-file-100-milliseconds"
    assert slug("Break it") == "break-it"
    assert slug("10.2 When *ranks* disagree") == "when-ranks-disagree"


def set_chapter(number, **fields):
    return lambda table: table["chapter"][number].update(fields)


BROKEN = {
    "chapter 4 is in state 'done'": set_chapter(4, state="done"),
    "chapter 5 takes 91 minutes": set_chapter(5, core_minutes=91),
    "chapter 5 takes 0 minutes": set_chapter(5, core_minutes=0),
    "core chapter 9 builds on chapter 8, which is optional": set_chapter(9, prerequisites=[8]),
    "chapter 4 builds on 5: it can only build on earlier": set_chapter(4, prerequisites=[5]),
    "chapter 4 builds on 4: it can only build on earlier": set_chapter(4, prerequisites=[4]),
    "chapter 4 names 2, which its other prerequisites bring along": set_chapter(4, prerequisites=[2, 3]),
    "chapter 4 builds on no chapter": set_chapter(4, prerequisites=[]),
    "chapter 6 stands in place 5": lambda table: table["chapter"].pop(5),
    "chapter 5 is named 'zero': its notebook's name is like 05_some_words": set_chapter(5, name="zero"),
    "the weights of the chapters add up to 194": set_chapter(5, weight=100),
    "chapter 5: weight and assistant minutes cannot be negative": set_chapter(5, weight=-1),
    "chapter 5 has no 'able'": lambda table: table["chapter"][5].pop("able"),
    "chapter 5 has 'minuts', which is no field": set_chapter(5, minuts=4),
    "did you mean 'core_minutes'": set_chapter(5, core_minute=4),
    "chapter 5: 'able' is 3; it must be a str": set_chapter(5, able=3),
    "chapter 5: 'builds_on' ends a sentence": set_chapter(5, builds_on="You need nothing"),
    "chapter 5 has no objectives": set_chapter(5, objectives=[]),
    "chapter 5 has objective 'a' twice": set_chapter(
        5, objectives=[{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]
    ),
    "chapter 5 has optional section 2 twice": set_chapter(5, optional=[{"number": 2}, {"number": 2}]),
    "chapter 5 has source '003 1.1' twice": set_chapter(5, sources=["003 1.1", "003 1.1"]),
    "chapter 5: '003 1.2.33' is no section of a source": set_chapter(5, sources=["003 1.2.33"]),
    "chapter 5: '005 1' is no section of a source": set_chapter(5, sources=["005 1"]),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_rule_is_refused_with_the_chapter_and_the_rule(message):
    table = course_table()
    from_table(table)
    BROKEN[message](table)
    with pytest.raises(CourseError, match=re.escape(message)):
        from_table(table)


def test_a_file_that_is_no_toml_is_refused_with_the_place(tmp_path):
    path = tmp_path / "course.toml"
    path.write_text("title = \n")
    with pytest.raises(CourseError, match=r"course.toml is not valid TOML: .*line 1"):
        read_toml(path)
