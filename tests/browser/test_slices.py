"""The slice of an ordinary run: the chapters that changed last."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from browser.slices import changed_last


def commit(root: Path, file: str, second: int) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(second))
    date = {"GIT_COMMITTER_DATE": f"@{1_700_000_000 + second} +0000"}
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    subprocess.run(["git", *who, "commit", "-qm", file], cwd=root, check=True, env=os.environ | date)


def test_those_that_changed_last_and_all_where_git_does_not_know(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_BROWSER", raising=False)
    names = ["00_a", "01_b", "02_c"]
    assert changed_last(names, 1, tmp_path) == names  # no repository
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for second, name in enumerate(names):
        commit(tmp_path, f"notebooks/{name}.ipynb", second)
    assert changed_last(names, 1, tmp_path) == ["02_c"]
    commit(tmp_path, "labkit/course/chapters/00_a.toml", 9)  # questions count as the chapter
    assert changed_last(names, 2, tmp_path) == ["00_a", "02_c"]
    assert changed_last([*names, "03_new"], 1, tmp_path) == [*names, "03_new"]  # not committed yet
    monkeypatch.setenv("LABKIT_BROWSER", "all")
    assert changed_last(names, 1, tmp_path) == names
