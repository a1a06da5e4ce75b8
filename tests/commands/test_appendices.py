"""An appendix is found by its letter and comes after the chapters: in the index, among the copies, in progress."""

import pytest
from small_books import cell, write

from labkit.commands import UsageError
from labkit.commands.chapters import all_chapters, find_chapter
from labkit.commands.copies import File
from labkit.commands.progress import NOTHING, what_next


@pytest.fixture
def book(notebooks):
    write(notebooks / "A_behind.ipynb", cell("title", "# Behind the chapters", "markdown"))
    return notebooks


@pytest.mark.parametrize("wanted", ["A", "a", "behind", "A_behind", "A_behind.ipynb"])
def test_it_is_found_by_letter_and_by_name(book, wanted):
    assert find_chapter(book, wanted).path.name == "A_behind.ipynb"


@pytest.mark.parametrize(("wanted", "name"), [("3", "tiny"), ("03", "tiny"), ("003", "tiny"), ("5", "other")])
def test_chapters_are_found_as_before(book, wanted, name):
    assert find_chapter(book, wanted).name == name


@pytest.mark.parametrize("wanted", ["B", "", "0", "Ab", "33"])
def test_what_is_not_there_is_said_with_what_is(book, wanted):
    with pytest.raises(UsageError, match=r"(?s)These exist:.* 3  tiny.* A  behind"):
        find_chapter(book, wanted)


def test_it_comes_after_the_chapters(book):
    assert [chapter.label for chapter in all_chapters(book)] == ["03", "05", "A"]
    assert [chapter.number for chapter in all_chapters(book)] == ["3", "5", "A"]


def test_its_file_is_its_own_and_no_chapters(book):
    three, _, last = all_chapters(book)
    file = File("notebooks/A_behind.ipynb", last.path)
    assert file.of(last) and not file.of(three)


def test_the_index_ends_with_it(labkit, book, tmp_path):
    code, _, err = labkit("html", "A", "--out", tmp_path / "site")
    assert code == 0, err
    index = (tmp_path / "site" / "index.html").read_text()
    assert index.index("5 ") < index.index('<a href="A_behind.html">A Behind the chapters</a>')


def test_progress_calls_it_an_appendix():
    row = {**NOTHING, "chapter": "A_errata", "title": "Errors", "core": False, "here": True, "opened": "now"}
    row |= {"read": None, "questions": 1, "predictions": 0}
    assert what_next([row]) == "go on with appendix A, Errors: labkit lab A"
