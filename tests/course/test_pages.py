"""The pages that are made from the data files: up to date, complete, and readable without the picture."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from labkit.course import coverage, glossary, graph as graph_module, load, notation
from labkit.course.build import NOTEBOOKS, main, outdated
from labkit.course.graph import in_words, svg
from labkit.course.layers import crossings, layered
from labkit.course.pages import pages
from labkit.course.pages.markdown import table

SVG = "{http://www.w3.org/2000/svg}"


def test_the_pages_in_the_repository_are_those_that_the_data_files_make():
    old = [path.name for path in outdated(NOTEBOOKS)]
    assert not old, f"{', '.join(old)}: run `python -m labkit.course.build`"


def test_build_writes_the_pages_and_check_tells_when_one_is_old(tmp_path, capsys):
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []
    assert main(["--folder", str(tmp_path)]) == 0
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")} == set(pages(load()))
    assert main(["--check", "--folder", str(tmp_path)]) == 0
    capsys.readouterr()
    (tmp_path / "syllabus.md").write_text("by hand")
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("is old") == 1 and (tmp_path / "syllabus.md").read_text() == "by hand"


def test_the_contents_page_links_what_is_written_and_nothing_else():
    page = pages(load())["README.md"]
    linked = set(re.findall(r"\((\d\d_\w+)\.ipynb\)", page))
    assert linked == {chapter.name for chapter in load().written()}
    for chapter in load().chapters:
        assert re.search(rf"^\| {chapter.number} \| .*{re.escape(chapter.title)}.* \| {chapter.state} \|$", page, re.M)


def test_links_between_the_pages_lead_to_pages():
    texts = pages(load())
    for name, text in texts.items():
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert target in texts or (NOTEBOOKS / target).exists(), f"{name} links {target}"


def test_nothing_is_lost_on_the_way_to_a_page():
    texts = pages(load())
    assert all(f"| {row.what} |" in texts["coverage.md"] for row in coverage())
    assert all(f"| {term.zh} | {term.text} |" in texts["glossary.md"] for term in glossary().terms)
    assert all(f"| ${symbol.latex}$ | {symbol.meaning} |" in texts["notation.md"] for symbol in notation().symbols)
    assert all(f"| {conflict.there} | {conflict.here} |" in texts["notation.md"] for conflict in notation().conflicts)
    for chapter in load().chapters:
        assert all(f"- {o.text} (`{o.id}`)" in texts["syllabus.md"] for o in chapter.objectives)


def test_every_row_of_every_table_has_as_many_cells_as_its_head():
    for name, text in pages(load()).items():
        for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
            counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(counts) == 1, f"{name}: {block[:80]}"
            head = block.splitlines()[0]
            assert "|  |" not in head, f"{name}: a column without a name: {head}"


def test_a_bar_in_a_cell_does_not_end_the_cell():
    assert table(["a", "b"], [["x|y", 1]], ["b"]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


def test_the_graph_in_words_says_every_prerequisite():
    sentences = in_words(load())
    for chapter, sentence in zip(load().chapters, sentences, strict=True):
        said = {int(number) for number in re.findall(r"(\d+) \(", sentence)}
        assert said == set(chapter.prerequisites)
        assert ("(optional), builds" in sentence) is not chapter.core
    assert all(f"- {sentence}" in pages(load())["README.md"] for sentence in sentences)


def test_the_picture_has_a_name_a_description_and_a_box_and_arrows_for_each_chapter():
    picture = svg(load())
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title desc"
    assert root.find(f"{SVG}title").text and root.find(f"{SVG}desc").text == " ".join(in_words(load()))
    texts = [node.text for node in root.iter(f"{SVG}text")]
    for chapter in load().chapters:
        assert any(text == str(chapter.number) or text.startswith(f"{chapter.number} ") for text in texts)
    arrows = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(arrows) == sum(len(chapter.prerequisites) for chapter in load().chapters)
    dashed = [rect for rect in root.iter(f"{SVG}rect") if rect.get("stroke-dasharray")]
    assert len(dashed) == sum(not chapter.core for chapter in load().chapters)
    assert svg(load()) == picture


def test_boxes_lie_inside_the_picture_and_apart():
    root = ElementTree.fromstring(svg(load()))
    width, height = (float(value) for value in root.get("viewBox").split()[2:])
    boxes = [tuple(float(rect.get(k)) for k in ("x", "y", "width", "height")) for rect in root.iter(f"{SVG}rect")]
    assert len(boxes) == len(load().chapters)
    for index, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        for ox, oy, ow, oh in boxes[:index]:
            assert x + w <= ox or ox + ow <= x or y + h <= oy or oy + oh <= y


def test_titles_fit_their_boxes():
    for chapter in load().chapters:
        lines = graph_module._wrapped(f"{chapter.number} {chapter.title}")
        assert " ".join(lines) == f"{chapter.number} {chapter.title}"
        assert len(lines) <= 3 and max(map(len, lines)) <= graph_module.LETTERS


def rows_of(drawing):
    return {place: number for number, row in enumerate(drawing.rows) for place in row}


def test_every_arrow_of_a_drawing_goes_down_one_row_at_a_time():
    before = {chapter.number: chapter.prerequisites for chapter in load().chapters}
    drawing = layered(before)
    row = rows_of(drawing)
    assert set(drawing.arrows) == {(b, node) for node, others in before.items() for b in others}
    for path in drawing.arrows.values():
        assert [row[place] for place in path] == list(range(row[path[0]], row[path[-1]] + 1))
    assert (
        sum(map(len, drawing.rows)) == len(row) == len(before) + sum(len(path) - 2 for path in drawing.arrows.values())
    )


def test_sorting_the_rows_takes_crossings_away():
    before = {0: [], 1: [], 2: [], 3: [2], 4: [1], 5: [0]}
    assert crossings([[0, 1, 2], [3, 4, 5]], layered(before).arrows) == 3
    assert crossings(layered(before, sweeps=0).rows, layered(before).arrows) == 3
    assert crossings(layered(before).rows, layered(before).arrows) == 0


def test_sorting_never_makes_it_worse():
    before = {chapter.number: chapter.prerequisites for chapter in load().chapters}
    counts = [crossings(layered(before, sweeps=n).rows, layered(before).arrows) for n in range(8)]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("before", [{}, {0: []}])
def test_small_graphs_are_drawn_too(before):
    assert layered(before).rows == [list(before)] * len(before)
