"""Static pages: whole without a network, readable by everybody, the figures in them."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote

import nbformat
import pytest
from small_books import cell, printed, read, write

from labkit.book.workbenches.recorded import GRID
from labkit.commands.html import pages as module
from labkit.commands.html.math import formula
from labkit.course import load

SVG = '<svg xmlns="http://www.w3.org/2000/svg" role="img"><title>Bars</title><desc>Two bars</desc></svg>'


class Page(HTMLParser):
    """What a test asks of a page: elements with their attributes, headings, text."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.words, self.source = [], [], path.read_text()
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def levels(self):
        return [int(name[1]) for name, _ in self.elements if re.fullmatch("h[1-6]", name)]


def display(**data):
    bundle = {name.replace("__", "+").replace("_", "/"): value for name, value in data.items()}
    return [nbformat.v4.new_output("display_data", data=bundle)]


@pytest.fixture
def site(labkit, notebooks, tmp_path):
    """Write chapter 5 of these cells as a page, and read it."""

    def make(*cells):
        write(notebooks / "05_other.ipynb", cell("t", "# Other things", "markdown"), *cells)
        code, _, err = labkit("html", "--out", tmp_path / "site")
        assert code == 0, err
        return Page(tmp_path / "site" / "05_other.html")

    make.folder = tmp_path / "site"
    return make


def test_pages_and_index(site, notebooks):
    page = site(cell("a", "1 + 1", outputs=printed("2\n")))
    assert page.all("html") == [{"lang": "en"}] and page.all("title")
    assert page.levels == [1] and {"class": "skip", "href": "#content"} in page.all("a")
    assert page.all("main")[0]["id"] == "content"
    assert {"href": "index.html"} in page.all("a") and {"href": "03_tiny.html"} in page.all("a")
    index = Page(site.folder / "index.html")
    assert [a["href"] for a in index.all("a")] == ["#content", "03_tiny.html", "05_other.html"]
    assert "5 Other things" in index.words and index.levels == [1]


def test_the_index_follows_the_course_file_where_the_chapters_are_the_courses(labkit, notebooks, tmp_path):
    known = load().chapter(3)
    (notebooks / "03_tiny.ipynb").rename(notebooks / f"{known.name}.ipynb")
    assert labkit("html", "3", "--out", tmp_path / "site")[0] == 0
    index = Page(tmp_path / "site" / "index.html")
    assert [a["href"] for a in index.all("a")] == ["#content", f"{known.name}.html"]
    text = "".join(index.words)
    assert f"3 {known.title}" in text and known.able in text
    assert f"{load().chapter(4).title} (no page yet)" in text and "5 Other (no page yet)" in text


def test_outputs_show_their_still_form(site):
    plotly = {"application/vnd.plotly.v1+json": {"data": [], "layout": {}}, "image/svg+xml": SVG, "text/plain": "words"}
    error = nbformat.v4.new_output("error", ename="E", evalue="v", traceback=["\x1b[0mTrace", "E: v"])
    figure = [nbformat.v4.new_output("display_data", data=plotly)]
    page = site(
        cell("a", "a", outputs=figure),
        cell("b", "b", outputs=display(text_html="<table><tr><th></th><th>x</th></tr></table><script>1</script>")),
        cell("s", "s", outputs=display(text_html='<p class="lk-said">As drawn</p><table></table>')),
        cell("c", "c", outputs=display(text_markdown="**bold** $x^2$", text_plain="no")),
        cell("d", "d", outputs=printed("\x1b[31mred <b>\x1b[0m\n")),
        cell("e", "e", outputs=[error]),
        cell("f", "f", outputs=display(image_png="aGk=", text_plain="A dot")),
        cell("g", "g", outputs=display(**{"application_vnd.unknown": "x"})),
        cell("h", "hidden()", metadata={"jupyter": {"source_hidden": True}}, outputs=printed("shown")),
    )  # fmt: skip
    assert SVG in page.source and "words" not in page.words and "plotly" not in page.source
    assert "<script" not in page.source and page.all("table") and {} in page.all("td")
    assert page.all("strong") and page.all("msup")
    text = "".join(page.words)
    assert "As drawn" not in text, "the drawing has these words inside"
    assert "red <b>" in text and "\x1b" not in page.source and "Trace\nE: v" in text
    assert page.all("img") == [{"src": "data:image/png;base64,aGk=", "alt": "A dot"}]
    assert "hidden" not in text and "shown" in text


def test_a_picture_without_a_name_gets_the_words_that_came_with_it(site):
    bare = '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><rect/></svg>'
    output = display(image_svg__xml=bare)
    output[0].metadata = {"image/svg+xml": {"alt": 'A "box"'}}
    page = site(cell("a", "a", outputs=output))
    (svg,) = page.all("svg")
    assert svg["role"] == "img" and svg["aria-label"] == 'A "box"' and "<?xml" not in page.source


def test_headings_are_in_order_with_one_first_one(site):
    page = site(
        cell("a", "## A\n\n##### Deep\n\n# Again\n\n### Down", "markdown"),
        cell("b", "b", outputs=display(text_html="<h4>From an output</h4>")),
    )
    assert page.levels == [1, 2, 3, 2, 3, 4]
    assert page.source.count("</h3>") == 2 and page.source.count("</h1>") == 1


def test_a_notebook_without_headings_gets_one(labkit, notebooks, tmp_path):
    write(notebooks / "05_other.ipynb", cell("a", "# a comment is no heading"))
    labkit("html", "5", "--out", tmp_path / "site")
    assert Page(tmp_path / "site" / "05_other.html").levels == [1]


def test_links_inside_the_book_lead_to_pages_and_pictures_come_along(site, notebooks):
    (notebooks.parent / "outside.txt").write_text("not for the site")
    page = site(cell(
        "a", "[3](03_tiny.ipynb#Tiny) [7](07_none.ipynb) [x](../labkit/cli.py) [up](../outside.txt) "
        "[w](https://example.org/) [here](#Two-words) ![pic](pictures/a.svg)\n\n## Two words", "markdown",
    ))  # fmt: skip
    addresses = [a.get("href") for a in page.all("a")]
    assert addresses[-3:] == ["03_tiny.html#Tiny", "https://example.org/", "#Two-words"]
    assert page.all("img") == [{"src": "pictures/a.svg", "alt": "pic"}]
    assert (site.folder / "pictures" / "a.svg").exists()
    assert page.all("h2") == [{"id": "Two-words"}]


def test_formulas_become_mathml_or_stay_readable():
    assert "<mfrac>" in formula(r"2\,\frac{N-1}{N}\,M") and 'display="block"' in formula("x", block=True)
    for odd in (r"\nosuch{x}", r"\frac{1", "", r"\text{<script>1</script>}", "a & b"):
        assert formula(odd).startswith("<code"), odd
    assert "<script" not in formula(r"\text{<script>1</script>}")
    assert "&lt;" in formula("a<b")


def test_the_books_own_pages_ask_nothing_of_the_network(labkit, tmp_path):
    assert module.html_pages((), tmp_path / "site") == 0
    pages = list((tmp_path / "site").glob("*.html"))
    assert len(pages) > 1
    for path in pages:
        page = Page(path)
        for tag, attributes in page.elements:
            if tag not in ("a", "math", "svg"):
                assert not [value for value in attributes.values() if re.match("(https?:)?//", value or "")], attributes
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", page.source)
        assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
        assert page.levels[0] == 1 and page.levels.count(1) == 1
        assert all(b <= a + 1 for a, b in zip(page.levels, page.levels[1:], strict=False))
        for image in page.all("img"):
            assert image.get("alt")
        ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
        for a in page.all("a"):
            if a.get("href", "").startswith("#"):
                assert unquote(a["href"][1:]) in ids, a


def test_every_figure_of_the_book_survives_with_its_words(tmp_path):
    module.html_pages((), tmp_path / "site")
    checked = 0
    for chapter in module.all_chapters(module.notebooks_dir()):
        page = Page(tmp_path / "site" / f"{chapter.path.stem}.html")
        outputs = [output for one in read(chapter.path).cells for output in one.get("outputs", [])]
        recorded = [run["html"] for output in outputs for run in output.get("data", {}).get(GRID, {"runs": []})["runs"]]
        figures = [o for o in outputs if "image/svg+xml" in o.get("data", {}) and GRID not in o.data]
        assert len(page.all("svg")) == len(figures) + sum(html.count("<svg") for html in recorded)
        for svg in page.all("svg"):
            assert svg["role"] == "img" and ("aria-labelledby" in svg or svg.get("aria-label"))
        checked += len(figures)
    assert checked > 5


def test_nothing_is_run_and_no_notebook_is_touched(site, notebooks):
    before = {path: path.read_bytes() for path in notebooks.glob("*.ipynb") if path.stem != "05_other"}
    site(cell("a", "1 / 0"))
    assert {path: path.read_bytes() for path in before} == before


def test_what_cannot_be_is_refused(labkit, notebooks, tmp_path):
    (tmp_path / "file").write_text("")
    for words, expected in (
        (["9"], "3  tiny"), (["--out", tmp_path / "file"], "can be written"), (["--out", notebooks / "x"], "holds the"),
    ):  # fmt: skip
        code, _, err = labkit("html", *words)
        assert code == 2 and expected in err, err
    (notebooks / "05_other.ipynb").write_text("not a notebook")
    code, _, err = labkit("html", "--out", tmp_path / "site")
    assert code == 2 and "05_other.ipynb is no notebook" in err


# --- in a browser ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    module.html_pages((), folder)
    return folder


@pytest.mark.long
def test_the_controls_of_a_recorded_workbench_choose_its_run_without_a_script(chromium, site):
    at = [[i, j] for i in range(2) for j in range(3)]
    runs = [{"at": place, "html": f"<p>run {place}</p>"} for place in at]
    controls = [["ranks", ["2", "4"]], ["way", ["ring", "tree", "<b>"]]]
    grid = {"title": "A race", "controls": controls, "start": [1, 0], "runs": runs}
    site(cell("a", "bench", outputs=display(**{"application_vnd.labkit.grid__json": grid, "text_plain": "words"})))
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((site.folder / "05_other.html").as_uri())
    shown = [one.inner_text() for one in tab.locator(".run").all() if one.is_visible()]
    assert shown == ["run [1, 0]"]
    tab.get_by_label("<b>").check()
    tab.get_by_label("2", exact=True).check()
    assert [one.inner_text() for one in tab.locator(".run").all() if one.is_visible()] == ["run [0, 2]"]
    context.close()


@pytest.mark.long
@pytest.mark.ranks
@pytest.mark.parametrize("scheme, width", [("light", 320), ("dark", 1000)])
def test_axe_finds_nothing_and_the_page_does_not_scroll_sideways(chromium, whole_site, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in (whole_site / name for name in ("index.html", "02_ranks_and_messages.html", "03_collectives.html")):
        asked = []
        tab = context.new_page()
        tab.on("request", lambda request, asked=asked: asked.append(request.url))
        tab.goto(path.as_uri())
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, path.name
        found = Axe().run(tab).response["violations"]
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == [], path.name
        tab.close()
    context.close()
