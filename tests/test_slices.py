"""The slices of an ordinary run: the chapter that changed last, a few of many."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from slices import changed_last, few


def commit(root: Path, file: str, second: int) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(second))
    when = f"@{1_700_000_000 + second} +0000"
    date = {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when}
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    subprocess.run(["git", *who, "commit", "-qm", file], cwd=root, check=True, env=os.environ | date)


def test_one_chapter_is_taken_and_the_others_are_long(tmp_path):
    names = ["02_c", "00_a", "01_b"]

    def taken():
        return [p for p in changed_last(names, tmp_path) if isinstance(p, str)]

    assert taken() == ["02_c"]  # no repository
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for second, name in enumerate(names):
        commit(tmp_path, f"notebooks/{name}.ipynb", second)
    assert taken() == ["01_b"]
    commit(tmp_path, "labkit/chapters/c00_a/chapter.toml", 9)  # questions count as the chapter
    assert taken() == ["00_a"]
    (long,) = {mark.name for p in changed_last(names, tmp_path) if not isinstance(p, str) for mark in p.marks}
    assert long == "long"


def test_a_few_are_taken_and_the_others_are_long():
    many = few([3, (1, 2), 5], 2)
    assert [p.values for p in many] == [(3,), (1, 2), (5,)] and [bool(p.marks) for p in many] == [False, False, True]
    assert [p.values for p in few([(1, 2)], one=True)] == [((1, 2),)]


def test_a_second_try_leaves_the_long_lane_out():
    recipe = (Path(__file__).parents[1] / "Makefile").read_text().partition("\nagain:")[2].partition("\n\n")[0]
    assert '-m "not long" $(FILES)' in recipe
