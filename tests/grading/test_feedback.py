"""Feedback pages: everything is said, nothing is run, and everybody can read them."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from sample_class import EVIL, TRACE, graded, result, small_class

from labkit.grading.feedback.folder import file_names
from labkit.grading.feedback.pages import TEMPLATES
from labkit.grading.feedback.wording import WORDS
from labkit.grading.gradebook import GradebookOptions, write
from labkit.grading.gradebook.overrides import Override
from labkit.grading.gradebook.policy import Accommodation, LatePolicy, read_moment
from labkit.grading.gradebook.rows import MISSING, UNGRADED
from labkit.grading.gradebook.rubric import HandMark
from labkit.grading.gradebook.text import clean
from labkit.grading.grader.results import TO_MARK

VOID = {"meta", "br", "link", "img", "input", "col", "hr"}


class Page(HTMLParser):
    """Tags with attributes, headings, the text outside of style."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.open, self.words, self.source = [], [], [], path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def pages(tmp_path):
    """Write a class, and read its pages by the names of their files."""

    def make(results=None, options=None):
        write(tmp_path, small_class() if results is None else results, options)
        return {path.stem: Page(path) for path in (tmp_path / "feedback").glob("*.html")}

    make.folder = tmp_path / "feedback"
    return make


def everywhere():
    """A student who writes markup wherever something can be written."""
    evil = f"{EVIL}\"'><img src=x onerror=alert(1)></pre></details></table>"
    one = graded("ring", "error", sentence=evil, detail=TRACE + evil, output=evil)
    one = replace(one, title=evil, exercise=evil, marks=(replace(one.marks[0], name=evil, kind=evil),))
    why = graded("why", TO_MARK, of=8.0, text=evil)
    made = result(evil, one, why, problems=[evil])
    return evil, replace(made, submission=replace(made.submission, file=f"{evil}/{evil}"))


def test_nothing_that_a_student_wrote_becomes_markup(pages):
    evil, made = everywhere()
    options = GradebookOptions(
        overrides=(Override(evil, evil, 1.0, evil),), rubric={(evil, "", "why"): HandMark(3.0, evil)}, contact=evil
    )
    found = pages([made], options)
    assert len(found) == 2
    for page in found.values():
        assert not page.all("script") and not page.all("img")
        assert evil in page.text
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        (policy,) = [
            meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"
        ]
        assert policy.startswith("default-src 'none'")
        assert not re.search(r"(src|href)=\"(?!#|[A-Za-z0-9%_-]+\.html)", page.source)


@given(st.text(), st.text())
def test_any_text_stays_text(text, attribute):
    markup = TEMPLATES.from_string('<p title="{{ attribute }}">{{ text }}</p>').render(text=text, attribute=attribute)
    assert markup.count("<") == 2 and markup.count(">") == 2 and markup.count('"') == 2
    assert clean(markup) == markup


def test_what_acts_on_a_terminal_reaches_no_page(pages):
    cell = graded("ring", "error", sentence="a\x1b[31mb\x9b", detail="c\x1bd", output="e\u202ef")
    for page in pages([result("eve\x1b[2J\x07", cell, problems=["g\x00h"])]).values():
        assert clean(page.source) == page.source


def test_a_page_says_each_check_with_its_points_evidence_and_reason(pages):
    bob = pages()["bob"]
    assert "1 of 6 points" in bob.text and "8 more points wait to be marked" in bob.text
    assert "rank 1 sent 48 bytes; a ring sends 32" in bob.text
    assert "bytes that each rank sent, counted at the sockets" in bob.text
    assert "sends only what it must" in bob.text and "(not in your notebook)" in bob.text
    assert TRACE in bob.text and "Details of sends only what it must" in bob.text
    assert "What your code printed in ring" in bob.text and "hello" in bob.text
    assert "seed-ab12" in bob.text and "sandbox tier “userns”" in bob.text and "labkit 0.1.0" in bob.text
    assert "exercises.run(" in bob.text and "Ask for a regrade" in bob.text
    assert "03_collectives.ipynb" in bob.text and "bob/03" not in bob.text


def test_every_state_is_said_in_a_word(pages):
    options = GradebookOptions(roster=("zoe",))
    found = pages(options=options)
    for page, state in [("ada", "right"), ("ada", TO_MARK), ("bob", "partly"), ("bob", "error"), ("cem", "wrong"),
                        ("cem", "unattempted"), ("zoe", MISSING)]:  # fmt: skip
        assert WORDS[state] in found[page].text.split("What to do now")[0]
    assert "Nothing was handed in." in found["zoe"].text
    table = found["index"].text.split("Signs:")[0]
    assert all(word in table for state, word in WORDS.items() if state != UNGRADED)


def test_what_people_decided_is_shown_with_its_reason(pages):
    options = GradebookOptions(
        overrides=(Override("bob", "tree", 3.0, "The statement was unclear"),),
        rubric={("ada", "", "why"): HandMark(6.5, "Say which rank is last.")},
        deadline=read_moment("2026-11-20T23:59+00:00"),
        late=LatePolicy(percent_per_day=10),
        accommodations={"ada": Accommodation(slow_factor=2)},
        contact="ta@example.org",
    )
    found = pages(options=options)
    assert "Your instructor set 3 points: The statement was unclear" in found["bob"].text
    assert "Marked by hand: 6.5 points." in found["ada"].text and "Say which rank is last." in found["ada"].text
    assert "(2 days late, which costs 20 percent: 0 points)" in found["cem"].text
    assert "Write to ta@example.org" in found["cem"].text
    assert "3 (set)" in found["index"].text


def test_headings_are_in_order_and_tables_have_captions_and_scopes(pages):
    for page in pages().values():
        levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
        assert len(page.all("caption")) == len(page.all("table")) > 0
        assert all(th.get("scope") in ("col", "row") for th in page.all("th"))
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        links = [a["href"][1:] for a in page.all("a") if a["href"].startswith("#")]
        assert set(links) <= set(ids)


def test_the_index_leads_to_every_page_and_counts_what_the_class_found_hard(pages):
    found = pages([*small_class(), result("dan", graded("ring", "wrong", sentence="rank 1 sent 48 bytes"))])
    index = found["index"]
    assert {a["href"] for a in index.all("a")} - {"#content"} == {"ada.html", "bob.html", "cem.html", "dan.html"}
    hard = index.text.split("Checks that fail most")[1]
    assert hard.index("tree: sends only what it must1 of 2") < hard.index("Exercises")
    assert hard.index("ring: sends only what it must3 of 4") < hard.index("tree: sends only")
    assert "Tier userns" in index.text and "Still possible" in index.text


def test_pages_of_who_is_no_longer_shown_go_and_others_files_stay(pages):
    pages()
    (pages.folder / "mine.html").write_text("<p>a page of the instructor's</p>")
    assert sorted(pages(small_class()[:1])) == ["ada", "index", "mine"]


def test_a_relative_folder_keeps_its_pages(tmp_path, monkeypatch):
    """As in `labkit grade trial --out trial-grades`."""
    monkeypatch.chdir(tmp_path)
    write(Path("out"), small_class(), None)
    assert {"ada.html", "index.html"} <= {path.name for path in (tmp_path / "out" / "feedback").iterdir()}


def test_long_texts_are_cut(pages):
    cell = graded("ring", "error", detail="a" * 100_000 + "END", output="b" * 100_000 + "END", sentence="c" * 100_000)
    page = pages([result("ada", cell, graded("why", TO_MARK, text="d" * 100_000))])["ada"]
    assert len(page.source) < 40_000 and page.text.count("END") == 2


@given(st.lists(st.text(max_size=12), unique=True))
def test_file_names_are_plain_and_never_the_same(names):
    found = file_names([*names, "Ada", "ada", "index", ".", "..", "a/b", "ä"]).values()
    assert len({name.casefold() for name in found}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._@+-]*\.html", name) and name != "index.html" for name in found)


@pytest.mark.ranks
@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 360)])
def test_axe_finds_nothing_and_no_page_scrolls_sideways(chromium, pages, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    pages(
        [*small_class(), everywhere()[1]],
        GradebookOptions(deadline=read_moment("2026-11-20T23:59+00:00"), roster=("zoe",)),
    )
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    for name in ("index", "bob", "zoe"):
        tab = context.new_page()
        said = []
        tab.on("request", lambda request, said=said: said.append(request.url))
        tab.on("dialog", lambda dialog, said=said: said.append(dialog.message))
        tab.goto((pages.folder / f"{name}.html").as_uri())
        tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert said == [(pages.folder / f"{name}.html").as_uri()]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, name
        found = Axe().run(tab).response["violations"]
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == [], name
        tab.close()
    context.close()
