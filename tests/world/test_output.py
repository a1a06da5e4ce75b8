"""What ranks print: live, in whole lines, each with its rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from leftovers import eventually

import labkit

pytestmark = pytest.mark.ranks


def test_lines_are_whole_and_marked(capfd) -> None:
    def talk(group):
        for i in range(200):
            print(f"{group.rank}:{i:03d}:" + "x" * 50)

    run = labkit.launch(talk, 4)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"[rank {r}] {r}:{i:03d}:" + "x" * 50 for r in range(4) for i in range(200))
    assert run.logs[2].splitlines() == [f"2:{i:03d}:" + "x" * 50 for i in range(200)]


def test_a_line_in_pieces_stays_one_line(capfd) -> None:
    def talk(group):
        for piece in ("a", "b", "c\n", "end"):
            print(piece, end="", flush=True)
            time.sleep(0.01)

    labkit.launch(talk, 2)
    out = capfd.readouterr().out.splitlines()
    assert sorted(out) == ["[rank 0] abc", "[rank 0] end", "[rank 1] abc", "[rank 1] end"]


def test_stderr_subprocesses_and_unicode_come_too(capfd) -> None:
    def talk(group):
        print("grün", file=sys.stderr)
        subprocess.run(["echo", "from a child"], check=True)
        os.write(1, b"raw \xff\n")

    run = labkit.launch(talk, 1)
    assert set(run.logs[0].splitlines()) == {"grün", "from a child", "raw \ufffd"}


def test_output_appears_while_the_run_goes_on(capfd, tmp_path) -> None:
    def talk(group):
        print("first")
        while not (tmp_path / "seen").exists():
            time.sleep(0.01)

    job, seen = labkit.start(talk, 1), []
    assert eventually(lambda: seen.append(capfd.readouterr().out) or "first" in "".join(seen))
    assert job.poll() is None and "".join(seen) == "[rank 0] first\n"
    (tmp_path / "seen").touch()
    job.wait()


def test_the_last_words_of_a_rank_that_dies_are_kept() -> None:
    def talk(group):
        print("last words")
        print("cut", end="", flush=True)
        os.kill(os.getpid(), 9)

    run = labkit.launch(talk, 1, on_failure="return")
    assert run.logs[0].startswith("last words\ncut")


def test_a_rank_without_input_reads_nothing() -> None:
    assert labkit.launch(lambda group: sys.stdin.read(), 1).results == [""]


def test_progress_prints_steps(capfd) -> None:
    def train(group):
        for n in range(3):
            group.step(n)
            time.sleep(0.4)

    labkit.launch(train, 1, progress=True)
    assert "[rank 0] step 2" in capfd.readouterr().out
