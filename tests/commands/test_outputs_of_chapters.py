"""`make outputs`: chapters executed in place, clean, or left as they were."""

import nbformat
import pytest
from small_books import cell, read, write

from labkit.commands.outputs import main

pytestmark = pytest.mark.ranks


@pytest.fixture
def outputs(notebooks, capfd):
    def typed(*words):
        return main([str(word) for word in words], notebooks=notebooks), *capfd.readouterr()

    return typed


def test_a_chapter_gets_its_outputs_and_nothing_else_changes(outputs, notebooks):
    path = notebooks / "03_tiny.ipynb"
    before, other = read(path), (notebooks / "05_other.ipynb").read_bytes()
    code, out, err = outputs(3)
    assert (code, err) == (0, "") and "03_tiny.ipynb: executed" in out
    after = read(path)
    assert [c.id for c in after.cells] == [c.id for c in before.cells]
    assert [c.source for c in after.cells] == [c.source for c in before.cells]
    assert after.cells[2].outputs[0].text == "4\n"
    assert [c.get("execution_count") for c in after.cells] == [None, 1, 2]
    assert [dict(c.metadata) for c in after.cells] == [{}, {"tags": ["parameters"]}, {}]
    assert set(after.metadata) == {"kernelspec", "language_info"} and after.metadata.language_info == {"name": "python"}
    assert (notebooks / "05_other.ipynb").read_bytes() == other
    written = path.read_bytes()
    outputs(3)
    assert path.read_bytes() == written


def test_without_a_number_all_chapters_run(outputs, notebooks):
    assert outputs()[0] == 0
    assert read(notebooks / "05_other.ipynb").cells[1].outputs[0].data["text/plain"] == "1"


def test_cells_are_headless_formatted_and_free_of_widgets(outputs, notebooks):
    write(
        notebooks / "05_other.ipynb", cell("a", "import os\nprint( os.environ['LABKIT_HEADLESS'] )"),
        cell("b", "import ipywidgets\nipywidgets.IntSlider()"),
    )  # fmt: skip
    assert outputs(5)[0] == 0
    after = read(notebooks / "05_other.ipynb")
    assert after.cells[0].source == 'import os\n\nprint(os.environ["LABKIT_HEADLESS"])'
    assert after.cells[0].outputs[0].text == "1\n"
    assert list(after.cells[1].outputs[0].data) == ["text/plain"] and "widgets" not in after.metadata


def test_as_text_a_chapter_has_what_a_reader_sees_and_nothing_is_executed(outputs, notebooks):
    shown, folded = cell("a", "print('said')"), cell("b", "folded = 1")
    folded.metadata["jupyter"] = {"source_hidden": True}
    shown.outputs = [nbformat.v4.new_output("stream", text="words of a run\n")]
    folded.outputs = [nbformat.v4.new_output("execute_result", data={"text/html": "<b>", "text/plain": "concluded"})]
    before = write(notebooks / "05_other.ipynb", shown, folded).read_bytes()
    code, out, err = outputs("--text", 5)
    assert (code, err) == (0, "") and "<b>" not in out and "folded = 1" not in out
    assert out.index("print('said')") < out.index("words of a run") < out.index("concluded")
    assert (notebooks / "05_other.ipynb").read_bytes() == before


FAILING = {
    "raises": ("1 / 0", "ZeroDivisionError"),
    "kernel dies": ("import os\n\nos._exit(1)", "kernel died"),
    "takes too long": ("import time\n\ntime.sleep(60)", "longer than 2 s"),
    "is no Python": ("def", "ruff cannot format"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_chapter_that_fails_is_left_as_it_was_and_the_next_one_runs(outputs, notebooks, case):
    source, expected = FAILING[case]
    path = write(notebooks / "03_tiny.ipynb", cell("a", "print('before')"), cell("bad", source))
    before = path.read_bytes()
    code, out, err = outputs("--timeout", 2)
    assert code == 1 and "03_tiny.ipynb: left as it was" in err and expected in err
    assert path.read_bytes() == before and "05_other.ipynb: executed" in out


def test_a_cell_that_is_meant_to_raise_may(outputs, notebooks):
    write(notebooks / "05_other.ipynb", cell("a", "1 / 0", metadata={"tags": ["raises-exception"]}), cell("b", "2"))
    assert outputs(5)[0] == 0
    assert read(notebooks / "05_other.ipynb").cells[1].outputs


def test_a_chapter_that_is_edited_while_it_runs_is_not_overwritten(outputs, notebooks):
    path = notebooks / "05_other.ipynb"
    write(path, cell("a", f"import pathlib\n\npathlib.Path({str(path)!r}).write_text('edited')".replace("'", '"')))
    code, _, err = outputs(5)
    assert code == 1 and "changed while it ran" in err and path.read_text() == "edited"


def test_paths_of_this_machine_are_pointed_out(outputs, notebooks):
    write(notebooks / "05_other.ipynb", cell("a", "import os\n\nprint(os.getcwd())"))
    code, _, err = outputs(5)
    assert code == 0 and f"path of this machine: {notebooks.parent}" in err


def test_what_is_no_notebook_and_no_chapter_is_refused(outputs, notebooks):
    (notebooks / "05_other.ipynb").write_text("{}")
    code, _, err = outputs(5)
    assert code == 1 and "left as it was" in err and (notebooks / "05_other.ipynb").read_text() == "{}"
    code, _, err = outputs(9)
    assert code == 2 and "'9'" in err and "3  tiny" in err
