"""The reader's progress: nothing is lost, whoever writes at the same time and whatever lies in the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from labkit.course import progress_file
from labkit.course.progress import Progress, home, summary

CH = "03_collectives"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "progress.json"


def on_disk(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_it_lies_where_the_reader_says_or_among_their_own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home() == tmp_path / "mine" and Progress.of_reader().path == tmp_path / "mine" / "progress.json"
    monkeypatch.delenv("LABKIT_HOME")
    assert home() == tmp_path / "data" / "labkit"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".local" / "share" / "labkit"


def test_reading_writes_nothing(path: Path) -> None:
    progress = Progress(path)
    assert progress.chapters() == {} and progress.question(CH, "q") == {} and progress.prediction(CH, "p") == {}
    assert not path.parent.exists()


def test_events_are_found_again_by_another_process(path: Path, said: list[str]) -> None:
    progress = Progress(path, said.append)
    progress.opened(CH)
    progress.predicted(CH, "ring-bytes", [1.78])
    progress.skipped(CH, "naive-bytes")
    progress.answered(CH, "who-waits", ["a text"], False)
    progress.answered(CH, "who-waits", ["another"], True)
    progress.revealed(CH, "given-up")
    progress.read(CH)
    later = Progress(path)
    assert later.prediction(CH, "ring-bytes")["values"] == [1.78]
    assert later.prediction(CH, "naive-bytes")["state"] == "skipped"
    q = later.question(CH, "who-waits")
    assert (q["tries"], q["right"], q["value"], q["revealed"]) == (2, True, ["another"], False)
    assert later.question(CH, "given-up") | {"at": ""} == {"revealed": True, "right": False, "tries": 0, "at": ""}
    assert on_disk(path)["schema"] == progress_file.SCHEMA and said == []
    assert sorted(p.name for p in path.parent.iterdir()) == ["progress.json", "progress.json.lock"]


def test_what_was_earned_stays(path: Path) -> None:
    progress = Progress(path)
    progress.answered(CH, "q", 1, True)
    progress.answered(CH, "q", 2, False)
    progress.revealed(CH, "q")
    assert (q := progress.question(CH, "q"))["right"] and q["tries"] == 1 and not q["revealed"]
    progress.predicted(CH, "p", [3])
    progress.skipped(CH, "p")
    assert progress.prediction(CH, "p")["state"] == "predicted"
    progress.opened(CH)
    first = progress.chapters()[CH]["opened"]
    progress.opened(CH)
    assert progress.chapters()[CH]["opened"] == first


def test_keys_of_another_version_survive_every_change(path: Path) -> None:
    path.parent.mkdir(parents=True)
    strange = {"schema": 1, "theme": "dark", "chapters": {CH: {"notes": [1], "questions": {"q": {"confidence": 0.5}}}}}
    path.write_text(json.dumps(strange))
    progress = Progress(path)
    progress.opened(CH)
    progress.answered(CH, "q", 4, True)
    now = on_disk(path)
    assert now["theme"] == "dark" and now["chapters"][CH]["notes"] == [1]
    assert now["chapters"][CH]["questions"]["q"]["confidence"] == 0.5 and now["chapters"][CH]["questions"]["q"]["right"]


@pytest.mark.parametrize(
    "broken",
    ["", "{", "[1, 2]", '"text"', "{}", '{"schema": "one"}', '{"schema": true}', '{"schema": 0}', "\x00", "[" * 9999],
)
def test_a_broken_file_is_set_aside_and_said_so(path: Path, said: list[str], broken: str) -> None:
    path.parent.mkdir(parents=True)
    (path.parent / "progress.json.broken-1").write_text("from before")
    path.write_text(broken)
    progress = Progress(path, said.append)
    progress.opened(CH)
    assert list(on_disk(path)["chapters"]) == [CH]
    assert (path.parent / "progress.json.broken-2").read_text() == broken
    assert (path.parent / "progress.json.broken-1").read_text() == "from before"
    assert len(said) == 1 and "progress.json.broken-2" in said[0] and "begins anew" in said[0]


@pytest.mark.parametrize(
    "inside", [{"chapters": 3}, {"chapters": {CH: 3}}, {"chapters": {CH: {"questions": [], "predictions": {"p": 1}}}}]
)
def test_a_value_of_the_wrong_kind_inside_does_not_stop_a_chapter(path: Path, inside: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": 1, **inside}))
    progress = Progress(path)
    assert progress.question(CH, "q") == progress.prediction(CH, "p") == {} and summary(progress.chapters()) is not None
    progress.answered(CH, "q", 1, True)
    progress.predicted(CH, "p", [1])
    assert progress.question(CH, "q")["right"] and progress.prediction(CH, "p")["values"] == [1]


def test_an_older_file_is_brought_up_step_by_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": 1, "read": [CH], "kept": 1}))
    monkeypatch.setattr(progress_file, "SCHEMA", 3)
    steps = {
        1: lambda s: {**s, "chapters": {name: {} for name in s.pop("read")}},
        2: lambda s: {**s, "chapters": {name: {"read": "then"} for name in s["chapters"]}},
    }
    monkeypatch.setattr(progress_file, "MIGRATIONS", steps)
    progress = Progress(path)
    assert progress.chapters()[CH]["read"] == "then" and on_disk(path)["schema"] == 1
    progress.opened(CH)
    assert on_disk(path)["schema"] == 3 and on_disk(path)["kept"] == 1


def test_a_newer_file_is_left_alone_and_said_so(path: Path, said: list[str]) -> None:
    path.parent.mkdir(parents=True)
    newer = json.dumps({"schema": 99, "chapters": {}})
    path.write_text(newer)
    progress = Progress(path, said.append)
    progress.opened(CH)
    progress.answered(CH, "q", 1, True)
    assert path.read_text() == newer and progress.question(CH, "q")["right"]
    assert len(said) == 1 and "newer labkit" in said[0]


def test_a_folder_that_cannot_be_written_does_not_stop_a_chapter(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    progress = Progress(tmp_path / "file" / "progress.json", said.append)
    progress.answered(CH, "q", 1, False)
    progress.answered(CH, "q", 2, True)
    assert progress.question(CH, "q")["tries"] == 2
    assert len(said) == 1 and "cannot be saved" in said[0] and "until this kernel ends" in said[0]


def test_a_lock_that_nobody_gives_back_does_not_stop_a_chapter(
    path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(progress_file, "PATIENCE", 0.05)
    path.parent.mkdir(parents=True)
    with open(path.parent / "progress.json.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        progress = Progress(path, said.append)
        progress.answered(CH, "q", 1, True)
    assert progress.question(CH, "q")["right"] and "another kernel" in said[0] and not path.exists()


def test_a_write_that_is_cut_short_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    progress = Progress(path, said.append)
    progress.answered(CH, "q", 1, True)
    before = path.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    progress.answered(CH, "r", 1, True)
    assert path.read_text() == before and "No space left" in said[0]
    assert sorted(p.name for p in path.parent.iterdir()) == ["progress.json", "progress.json.lock"]
    assert progress.question(CH, "q")["right"] and progress.question(CH, "r")["right"]


@pytest.mark.ranks
def test_kernels_that_write_at_once_lose_nothing(path: Path) -> None:
    write = (
        "import sys; from pathlib import Path; from labkit.course.progress import Progress\n"
        "p = Progress(Path(sys.argv[1]))\n"
        "for i in range(25): p.answered(sys.argv[2], f'q{i}', i, True); p.answered('shared', 'one', i, False)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", write, str(path), f"chapter-{n}"]) for n in range(4)]
    assert [w.wait(60) for w in writers] == [0] * 4
    chapters = Progress(path).chapters()
    assert [len(chapters[f"chapter-{n}"]["questions"]) for n in range(4)] == [25] * 4
    assert chapters["shared"]["questions"]["one"]["tries"] == 100


def test_threads_of_one_kernel_lose_nothing(path: Path) -> None:
    progress = Progress(path)
    threads = [
        threading.Thread(target=lambda: [progress.answered(CH, "q", i, False) for i in range(20)]) for _ in range(5)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert progress.question(CH, "q")["tries"] == 100


def test_without_a_file_it_is_remembered_in_this_process_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    progress = Progress(None)
    progress.predicted(CH, "p", [1])
    assert progress.prediction(CH, "p")["values"] == [1] and progress.path is None
    assert list(tmp_path.iterdir()) == []


def test_the_summary_counts_by_chapter(path: Path) -> None:
    progress = Progress(path)
    progress.opened("04_next")
    progress.opened(CH)
    progress.predicted(CH, "p1", [1])
    progress.skipped(CH, "p2")
    progress.answered(CH, "at-once", 1, True)
    for right in (False, False, True):
        progress.answered(CH, "at-last", 1, right)
    progress.answered(CH, "never", 1, False)
    progress.revealed(CH, "never")
    progress.revealed(CH, "untried")
    for name, right in (("ring", False), ("ring", True), ("tree", False)):
        progress.wrote(CH, name, right)
    progress.read(CH)
    third, fourth = summary(progress.chapters())
    day = third["opened"]
    assert len(day) == 10
    assert third == {
        "chapter": CH,
        "opened": day,
        "read": day,
        "predicted": 1,
        "skipped": 1,
        "tried": 3,
        "right": 2,
        "right_at_once": 1,
        "revealed": 2,
        "tries": 5,
        "written": 1,
    }
    assert fourth["chapter"] == "04_next" and fourth["read"] is None and fourth["tries"] == 0


def test_the_file_is_replaced_in_one_step_and_never_rewritten(path: Path) -> None:
    progress = Progress(path)
    progress.opened(CH)
    with open(path) as old:
        before = path.read_text()
        progress.read(CH)
        assert old.read() == before, "who had it open still reads a whole file"
    assert path.read_text() != before


def test_what_goes_wrong_is_said_once(path: Path, said: list[str]) -> None:
    path.mkdir(parents=True)
    progress = Progress(path, said.append)
    assert progress.question(CH, "q") == {} == progress.question(CH, "r")
    assert len(said) == 1 and "cannot be read" in said[0]
