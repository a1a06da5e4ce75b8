"""The slice of an ordinary run: the chapters that changed last, and others in turn."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import slices
from slices import READ, WORKED, changed_last, in_turn, sliced


def commit(root: Path, file: str, second: int) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(second))
    when = f"@{1_700_000_000 + second} +0000"  # both dates, so that the commit has the same name in every run
    date = {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when}
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    subprocess.run(["git", *who, "commit", "-qm", file], cwd=root, check=True, env=os.environ | date)
    slices._changed.cache_clear()


def test_those_that_changed_last_and_all_where_git_does_not_know(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_BROWSER", raising=False)
    names = ["00_a", "01_b", "02_c"]
    assert changed_last(names, 1, READ, tmp_path) == names  # no repository
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for second, name in enumerate(names):
        commit(tmp_path, f"notebooks/{name}.ipynb", second)
    assert changed_last(names, 1, READ, tmp_path) == ["02_c"]
    commit(tmp_path, "labkit/course/chapters/00_a.toml", 9)  # questions count as the chapter
    assert changed_last(names, 2, READ, tmp_path) == ["00_a", "02_c"]
    assert changed_last([*names, "03_new"], 1, READ, tmp_path) == [*names, "03_new"]  # not committed yet
    monkeypatch.setenv("LABKIT_BROWSER", "all")
    assert changed_last(names, 1, READ, tmp_path) == names


def test_exercises_that_did_not_change_come_in_turn_and_always_without_git(tmp_path):
    assert in_turn("00_a", tmp_path)  # no repository
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    names = [f"{n:02}_chapter" for n in range(40)]
    taken = []
    for second in range(3):
        commit(tmp_path, "README.md", second)
        taken.append({name for name in names if in_turn(name, tmp_path)})
    assert all(3 <= len(some) <= 20 for some in taken) and taken[0] != taken[1] != taken[2]
    commit(tmp_path, "solutions/mutants/05_chapter.py", 5)
    commit(tmp_path, "labkit/grading/keys/chapter_07.py", 7)
    worked = changed_last(["05_chapter", "07_chapter"], 1, WORKED, tmp_path)
    assert worked == ["07_chapter"]


def test_a_chapter_outside_of_the_slice_is_left_to_make_mutants(monkeypatch):
    monkeypatch.setattr(slices, "changed_last", lambda names, count, files: names[-count:])
    monkeypatch.setattr(slices, "in_turn", lambda name: name == "01_b")
    found = sliced(["00_a", "01_b", "02_c", "03_d"])
    assert [p if isinstance(p, str) else (p.values[0], p.marks[0].name) for p in found] == [
        ("00_a", "mutants"),
        "01_b",
        "02_c",
        "03_d",
    ]
