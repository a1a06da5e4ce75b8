"""What a reader is to write: the notebook has the book's version, the copy a stub; evidence tells right from wrong."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import textwrap
from pathlib import Path

import pytest
from slices import changed_last

from labkit import book
from labkit.book.reading import chapter as door
from labkit.book.reading.writing import NotWritten, tasks
from labkit.commands.copies import pristine
from labkit.course import load
from labkit.course.chapter_file import load_chapter
from labkit.course.errors import CourseError
from labkit.course.progress import Progress
from labkit.grading.source.markers import SOLUTION, count, inside, replaced

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTERS = [chapter.name for chapter in [*load().written(), *load().appendices] if load_chapter(chapter.name).to_write]
# of each function: wrong versions, each with words of the sentence that must reject it
WRONG: dict[tuple[str, str], dict[str, str]] = {
    (name, what): versions
    for name in CHAPTERS
    for what, versions in importlib.import_module(f"chapters.wrong_{name.partition('_')[0]}").WRONG.items()
}


class Reader:
    """A namespace in place of a notebook's, a chapter that looks into it, and what it showed."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, object] = {}
        exec(
            "import os, time, torch\nfrom contextlib import nullcontext\nimport torch.nn.functional as F\n"
            "from labkit import collectives\n"
            "from labkit.collectives import all_reduce\nfrom labkit.data import decode, encode\n"
            "from labkit.chapters.c04_data_parallelism.you_write import begin, end",
            self.names,
        )
        self.progress = Progress(folder / "progress.json")
        self.chapter = door.Chapter(name, {"seed": 0, "world_size": 3}, self.progress)
        self.shown: list[object] = []
        monkeypatch.setattr(door, "namespace", lambda: self.names)
        monkeypatch.setattr(door, "show", self.shown.append)

    def writes(self, code: str, name: str) -> object:
        """Runs `code` as a cell, then the cell below it. Returns what that cell puts in place of the function."""
        exec(textwrap.dedent(code), self.names)
        return self.chapter.check(name)

    @property
    def said(self) -> str:
        return repr(self.shown[-1])


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    return lambda name: Reader(name, tmp_path, monkeypatch)


def solved(name: str) -> dict[str, str]:
    """The cells between markers, by the function that each defines."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    return {ast.parse(s).body[-1].name: s for s in sources if count(s, SOLUTION)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_notebook_has_the_books_version_and_the_copy_a_stub(name):
    cells, known = solved(name), tasks(name)
    assert list(cells) == list(known) and len(known) == load_chapter(name).to_write
    copy = "\n".join(cell.source for cell in pristine(NOTEBOOKS / f"{name}.ipynb").cells if cell.cell_type == "code")
    for task, cell in cells.items():
        book_s = ast.parse(textwrap.dedent(inspect.getsource(known[task].own))).body[0]
        ours = ast.parse(replaced(cell, SOLUTION, []) and "\n".join(
            line for line in cell.split("\n") if "### " not in line)).body[-1]  # fmt: skip
        for one in (book_s, ours):
            one.decorator_list = []  # type: ignore[attr-defined]
            one.returns = None  # type: ignore[attr-defined]
            for arg in one.args.args:  # type: ignore[attr-defined]
                arg.annotation = None
        assert ast.dump(book_s) == ast.dump(ours), f"{task}: the cell and the room differ"
        assert f'{task} = chapter.check("{task}")' in copy and "raise NotImplementedError(" in copy
        assert "\n".join(inside(cell, SOLUTION)) not in copy


@pytest.mark.ranks
@pytest.mark.parametrize("name", CHAPTERS)
def test_the_books_version_is_right_and_a_stub_is_passed_over(name, reader):
    one = reader(name)
    for task, known in tasks(name).items():
        stub = f"def {task}(*args, **options):\n    raise NotImplementedError('write it')"
        assert (
            one.writes(stub, task) is known.own and "Not written yet" in one.said and "Show a solution" not in one.said
        )
        one.chapter._tried.clear()
        one.names[task] = known.own
        assert one.chapter.check(task) is known.own and f"This is the book's {task}" in one.said
        one.names[task] = lambda *args, own=known.own, **options: own(*args, **options)
        assert one.chapter.check(task) is one.names[task] and "✓ Right." in one.said
        assert one.progress.chapters()[name]["written"][task] | {"at": ""} == {"tries": 1, "right": True, "at": ""}
        mine, one.names[task] = one.names[task], known.own
        assert one.chapter.check(task) is mine and "✓ Right." in one.said, "the cell of the check alone is run again"


@pytest.mark.ranks
@pytest.mark.parametrize("name", changed_last(CHAPTERS))
def test_a_wrong_one_is_told_why_and_may_then_see_a_solution(name, reader):
    one = reader(name)
    assert {task for chapter, task in WRONG if chapter == name} == set(tasks(name))
    for (chapter, task), wrong in WRONG.items():
        for code, words in wrong.items() if chapter == name else ():
            assert one.writes(code, task) is tasks(name)[task].own, code
            assert words in one.said, (code, one.said)
            html = one.shown[-1]._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]
            assert "Show a solution" in html and 'role="status"' in html
            assert "`" not in html.partition("<details")[0], "code is shown as code"


@pytest.mark.ranks
def test_whatever_a_reader_does_is_answered_in_a_sentence_and_nothing_is_left(reader, capfd, monkeypatch):
    one = reader("00_start_here")
    monkeypatch.setattr("labkit.world.job.kernel", lambda: "as in a notebook")
    for code, words in (
        ("def total(x, group):\n    while True: time.sleep(0.01)", "did not end within 5 s"),
        ("def total(x, group):\n    print('a' * 1_000_000)\n    return x", "nothing was added"),
        ("def total(x, group):\n    os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("def total(x, group):\n    return 'a sum'", "a sum"),
        ("def total(x):\n    return x", "takes 1 positional argument but 2 were given"),
        ("def total(x, group):\n    return open('/dev/null')", "returned"),
        ("total = 3", "total should be a function. Here it is of type int."),
        ("def total(x, group):\n    return y", "name 'y' is not defined"),
    ):
        assert one.writes(code, "total") is tasks("00_start_here")["total"].own
        assert words in one.said, (code, one.said)
    printed = capfd.readouterr().out
    assert printed.count("a") < 201_000 and printed.count("no more of this rank here") == 2
    del one.names["total"]
    one.chapter.check("total")
    assert "There is no total yet: run the cell of your answer" in one.said
    with pytest.raises(CourseError, match="asks nobody to write 'totel' .did you mean 'total'"):
        one.chapter.check("totel")


@pytest.mark.ranks
def test_without_a_reader_a_wrong_one_stops_the_run(reader, monkeypatch):
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    one = reader("00_start_here")
    with pytest.raises(NotWritten, match="nothing was added"):
        one.writes("def total(x, group):\n    return x", "total")


@pytest.mark.ranks
def test_a_cell_that_also_sets_a_name_of_the_chapter_is_told(reader):
    import linecache

    one = reader("00_start_here")
    cell = "launch = 1\ndef total(x, group):\n    return x\n"
    linecache.cache["<cell 7>"] = (len(cell), None, cell.splitlines(True), "<cell 7>")
    one.names["In"] = ["", "from functools import partial\nlaunch = partial(print)", "%matplotlib", cell]
    exec(compile(cell, "<cell 7>", "exec"), one.names)
    one.chapter.check("total")
    assert "Your cell also sets launch" in one.said and "partial" not in one.said


@pytest.mark.ranks
def test_a_function_that_is_written_under_another_name_is_told(reader):
    one = reader("00_start_here")
    exec("def total(x, group):\n    return x\n", one.names)
    one.names["In"] = ["", "def totals(x, group):\n    return y\n", "total = chapter.check('total')"]
    one.chapter.check("total")
    assert "defines totals, and not total: an older total is judged here." in one.said
    one.names["In"][1] = "def total(x, group):\n    return x\ntotals = 3"
    one.chapter.check("total")
    assert "an older" not in one.said


def test_a_chapter_that_asks_for_nothing_says_so():
    with pytest.raises(CourseError, match="asks nobody to write 'x'. It asks for: nothing"):
        book.open_chapter("21_hundred_thousand_gpus").check("x")


def test_what_is_for_a_type_checker_is_not_shown() -> None:
    from labkit import book
    from labkit.chapters.c04_data_parallelism import you_write

    shown = book.source(you_write.average_bucket).html()
    assert "type: ignore" not in shown and "view_as" in shown
