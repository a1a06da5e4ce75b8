"""`labkit lab` works on the reader's own copies, and `labkit sync` brings new editions into them."""

import json
import os
import shutil

import nbformat
import pytest
from nbformat.sign import NotebookNotary
from small_books import cell, printed, read, sources, write

from labkit.commands.copies import HIDDEN

TINY = "notebooks/03_tiny.ipynb"


def edit(path, **texts):
    """The reader types: cell id -> new source."""
    notebook = read(path)
    for one in notebook.cells:
        one.source = texts.get(one.id, one.source)
    nbformat.write(notebook, path)


def test_lab_makes_copies_without_outputs_and_opens_the_chapter_there(labkit, notebooks, work):
    before = {path: path.read_bytes() for path in notebooks.parent.rglob("*") if path.is_file()}
    _, out, err = labkit("lab", "5", "--no-browser")
    assert err == ""
    ((_, command, _),) = labkit.opened
    assert f"--ServerApp.root_dir={work}" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/05_other.ipynb" in command
    assert str(work) in out and "3 new notebooks" in out
    made = sorted(p.relative_to(work).as_posix() for p in work.rglob("*") if p.is_file() and HIDDEN not in p.parts)
    assert made == ["exercises/03_tiny.ipynb", TINY, "notebooks/05_other.ipynb", "notebooks/pictures/a.svg"]
    run = read(work / TINY).cells[2]
    assert (run.source, run.outputs, run.execution_count, run.metadata) == ("print(world_size)", [], None, {})
    assert (work / HIDDEN / "base" / TINY).read_bytes() == (work / TINY).read_bytes()
    assert {path: path.read_bytes() for path in before} == before


def test_a_copy_is_trusted_so_that_its_widgets_show(labkit, work):
    labkit("lab", "--no-browser")
    assert NotebookNotary().check_signature(read(work / TINY))


def test_a_copy_that_exists_is_never_overwritten_and_missing_ones_are_added(labkit, notebooks, work):
    (work / "notebooks").mkdir(parents=True)
    (work / TINY).write_text("mine, whatever it is")
    labkit("lab", "--no-browser")
    assert (work / TINY).read_text() == "mine, whatever it is"
    assert not (work / HIDDEN / "base" / TINY).exists()
    write(notebooks / "07_late.ipynb", cell("a", "7"))
    _, out, _ = labkit("lab", "--no-browser")
    assert "(1 new notebook)" in out and (work / "notebooks" / "07_late.ipynb").exists()


def test_lab_says_when_the_book_has_moved_on(labkit, notebooks, work):
    labkit("lab", "--no-browser")
    assert "newer" not in labkit("lab", "--no-browser")[1]
    edit(notebooks / "05_other.ipynb", one="2")
    assert "newer edition of 05_other: `labkit sync`" in labkit("lab", "--no-browser")[1]


@pytest.mark.parametrize("place", ["", "notebooks", "exercises/deeper", "labkit"])
def test_the_repositorys_own_folders_are_refused(labkit, notebooks, place):
    before = sorted(notebooks.parent.rglob("*"))
    code, _, err = labkit("lab", "--no-browser", "--folder", notebooks.parent / place)
    assert code == 2 and "belongs to the repository" in err and not labkit.opened
    assert sorted(notebooks.parent.rglob("*")) == before


def test_a_link_to_the_repository_is_refused_too(labkit, notebooks, tmp_path):
    (tmp_path / "link").symlink_to(notebooks.parent)
    assert "belongs to the repository" in labkit("lab", "--no-browser", "--folder", tmp_path / "link")[2]


def test_the_default_folder_is_in_the_home_folder(labkit, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    labkit("lab", "--no-browser")
    assert (tmp_path / "me" / "labkit" / TINY).exists()


@pytest.mark.parametrize("command", ["lab", "sync"])
def test_a_folder_that_is_a_file_is_refused(labkit, tmp_path, command):
    (tmp_path / "file").write_text("")
    code, _, err = labkit(command, "--folder", tmp_path / "file")
    assert code == 2 and "is a file" in err


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_is_refused(labkit):
    code, _, err = labkit("lab", "--no-browser", "--folder", "/proc/self/copies")
    assert code == 2 and "/copies: " in err and "can be written" in err


# --- sync ------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(labkit, work):
    labkit("lab", "--no-browser")
    return work


def test_sync_replaces_keeps_and_shows_conflicts(labkit, notebooks, copied):
    edit(copied / TINY, run="print(8)", parameters="world_size: int = 8  # ranks")
    edit(notebooks / "03_tiny.ipynb", title="# Tiny, second edition", run="print(world_size + 1)")
    typed = (copied / TINY).read_bytes()
    code, out, err = labkit("sync")
    assert (code, err) == (0, "")
    after = sources(copied / TINY)
    assert after["title"] == "# Tiny, second edition"
    assert (after["parameters"], after["run"]) == ("world_size: int = 8  # ranks", "print(8)")
    assert list(after)[-1] == "run-from-edition" and "print(world_size + 1)" in after["run-from-edition"]
    assert "1 replaced, 1 changed by you and by the edition" in out and "`print(8)`: yours stays" in out
    (backup,) = (copied / HIDDEN / "backups").glob(f"*/{TINY}")
    assert backup.read_bytes() == typed and str(backup.parents[1]) in out
    done = (copied / TINY).read_bytes()
    assert "up to date" in labkit("sync")[1]
    assert (copied / TINY).read_bytes() == done


def test_outputs_of_the_reader_stay_with_unchanged_cells(labkit, notebooks, copied):
    notebook = read(copied / TINY)
    notebook.cells[2].update(outputs=printed("mine\n"), execution_count=5)
    nbformat.write(notebook, copied / TINY)
    edit(notebooks / "03_tiny.ipynb", title="# New")
    labkit("sync")
    run = read(copied / TINY).cells[2]
    assert run.outputs[0].text == "mine\n" and run.execution_count == 5


def test_trust_is_kept_and_never_given(labkit, notebooks, copied):
    other = "notebooks/05_other.ipynb"
    notebook = read(copied / other)
    notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", data={"text/html": "<script>1</script>"})]
    nbformat.write(notebook, copied / other)
    edit(notebooks / "03_tiny.ipynb", title="# New")
    edit(notebooks / "05_other.ipynb", title="# New")
    labkit("sync")
    assert NotebookNotary().check_signature(read(copied / TINY))
    assert not NotebookNotary().check_signature(read(copied / other))


def test_an_unchanged_edition_does_not_touch_the_file(labkit, copied):
    (copied / TINY).write_text(json.dumps(json.loads((copied / TINY).read_text())))  # as another program writes it
    before = (copied / TINY).read_bytes(), (copied / TINY).stat().st_mtime_ns
    code, out, _ = labkit("sync")
    assert code == 0 and "up to date" in out
    assert ((copied / TINY).read_bytes(), (copied / TINY).stat().st_mtime_ns) == before
    assert not (copied / HIDDEN / "backups").exists()


def test_new_outputs_in_the_edition_are_no_new_edition(labkit, notebooks, copied):
    notebook = read(notebooks / "03_tiny.ipynb")
    notebook.cells[2].outputs = printed("5\n")
    nbformat.write(notebook, notebooks / "03_tiny.ipynb")
    assert "up to date" in labkit("sync")[1]


def test_a_dry_run_writes_nothing(labkit, notebooks, copied):
    edit(copied / TINY, run="mine")
    edit(notebooks / "03_tiny.ipynb", run="theirs")
    write(notebooks / "07_late.ipynb", cell("a", "7"))
    (notebooks / "pictures" / "a.svg").write_text("<svg>2</svg>")
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    _, out, _ = labkit("sync", "--dry-run")
    assert "yours stays" in out and "07_late.ipynb: new" in out and "a.svg: replaced" in out and "dry run" in out
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_only_the_named_chapters_are_synced_with_their_exercises(labkit, notebooks, copied):
    edit(notebooks / "03_tiny.ipynb", title="# 3")
    edit(notebooks / "05_other.ipynb", title="# 5")
    edit(notebooks.parent / "exercises" / "03_tiny.ipynb", ask="better = None")
    labkit("sync", "3")
    assert sources(copied / TINY)["title"] == "# 3"
    assert sources(copied / "exercises" / "03_tiny.ipynb")["ask"] == "better = None"
    assert sources(copied / "notebooks" / "05_other.ipynb")["title"] == "# Other"


BROKEN = {
    "half a file": (lambda text: text[: len(text) // 2], "not valid JSON"),
    "empty": (lambda text: "", "not valid JSON"),
    "a list": (lambda text: "[]", "not a valid notebook"),
    "no cells": (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "cells"}), "not a valid"),
    "a cell without type": (lambda text: text.replace('"cell_type": "code"', '"kind": "code"'), "not a valid"),
    "an old format": (lambda text: text.replace('"nbformat_minor": 5', '"nbformat_minor": 4'), "format 4.4"),
    "a future format": (lambda text: text.replace('"nbformat": 4', '"nbformat": 5'), "format 5.5"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_notebook_is_left_alone_and_the_others_are_synced(labkit, notebooks, copied, case):
    change, expected = BROKEN[case]
    (copied / TINY).write_text(change((copied / TINY).read_text()))
    before = (copied / TINY).read_bytes()
    for name in ("03_tiny", "05_other"):
        edit(notebooks / f"{name}.ipynb", title="# New")
    code, _, err = labkit("sync")
    assert code == 1 and f"{TINY}: left alone" in err and expected in err
    assert (copied / TINY).read_bytes() == before
    assert sources(copied / "notebooks" / "05_other.ipynb")["title"] == "# New"


def test_without_the_kept_edition_nothing_typed_is_lost(labkit, notebooks, copied):
    edit(copied / TINY, run="mine")
    shutil.rmtree(copied / HIDDEN)
    edit(notebooks / "03_tiny.ipynb", title="# New")
    _, out, _ = labkit("sync", "3")
    assert "is lost" in out and sources(copied / TINY)["run"] == "mine"
    assert "# New" in sources(copied / TINY)["title-from-edition"]


def test_pictures_follow_the_edition_unless_the_reader_changed_them(labkit, notebooks, copied):
    picture = copied / "notebooks" / "pictures" / "a.svg"
    (notebooks / "pictures" / "a.svg").write_text("<svg>2</svg>")
    labkit("sync")
    assert picture.read_text() == "<svg>2</svg>"
    picture.write_text("mine")
    (notebooks / "pictures" / "a.svg").write_text("<svg>3</svg>")
    assert "yours stays" in labkit("sync")[1]
    assert picture.read_text() == "mine" and "up to date" in labkit("sync")[1]


def test_a_copy_that_cannot_be_written_stays_whole(labkit, notebooks, copied, monkeypatch):
    edit(notebooks / "03_tiny.ipynb", title="# New")
    before = (copied / TINY).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device", str(copied / TINY))

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        code, _, err = labkit("sync")
    assert code == 2 and "No space left" in err and (copied / TINY).read_bytes() == before
    assert not list(copied.rglob(".03_tiny*"))
    assert labkit("sync")[0] == 0 and sources(copied / TINY)["title"] == "# New"


def test_sync_refuses_unknown_chapters_and_folders_without_copies(labkit, copied, tmp_path):
    code, _, err = labkit("sync", "9")
    assert code == 2 and "'9'" in err and "3  tiny" in err
    code, _, err = labkit("sync", "--folder", tmp_path / "nowhere")
    assert code == 2 and "labkit lab" in err and not (tmp_path / "nowhere").exists()
