"""The benchmark beside torchft: what it makes of diaries, what it starts and ends, and what it says without torchft."""

import argparse
import contextlib
import math
import os
import sys

import pytest
from hypothesis import given, strategies as st
from leftovers import eventually, zombies

from labkit.bench import diaries, failures, failures_stall, failures_torchft, ratios, rivals, torchft_process
from labkit.bench.diaries import ProcessDiary, cost
from labkit.bench.rivals import LabkitJob, Processes
from labkit.bench.side_by_side import Broken, episode
from labkit.resilience.audit import read

pytestmark = pytest.mark.ranks


def options(*words):
    parser = argparse.ArgumentParser()
    failures_stall.arguments(parser)
    failures_torchft.arguments(parser)
    return parser.parse_args(words)


def test_without_torchft_the_part_says_so_in_one_sentence_and_starts_nothing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torchft", None)  # importing it fails
    monkeypatch.setattr(failures_torchft, "episode", lambda *a, **k: pytest.fail("something was started"))
    said = "torchft is not installed beside labkit: pip install torchft, and run this part again"
    assert failures.main(["--parts", "torchft"]) == 0
    assert capsys.readouterr().out == said + "\n"
    assert failures_torchft.rows(options()) == []
    assert failures_torchft.report(options()) == {"skipped": said}


def lives(rejoin=1.0, kill=3.5, scale=1.0, shift=0.0):
    """Steps of a second. Replica 1 is killed at 5.5; the others' gap is then `kill`, and `rejoin` at the return."""
    at = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    others = [*at, 5.0 + kill, 6.0 + kill, 6.0 + kill + rejoin, 7.0 + kill + rejoin]
    back = [t + 0.01 for t in others[8:]]

    def life(replica, pid, ready, committed):
        moved = [shift + scale * t for t in committed]
        return ProcessDiary(replica, pid, shift + scale * ready, moved, moved)

    return [life(0, 10, -1.0, others), life(1, 11, -1.0, at), life(2, 12, -1.0, at[1:] + others[6:]),
            life(1, 13, 7.0, back)], shift + scale * 5.5  # fmt: skip


def test_a_death_and_a_return_cost_the_gaps_around_them():
    found = cost(*_with(*lives(rejoin=1.25)))
    assert found["step s"] == pytest.approx(1.0)
    assert found["kill stall"] == pytest.approx(2.5) and found["rejoin stall"] == pytest.approx(0.25)
    assert found["lost"] == pytest.approx(2.75)
    assert found["away s"] == pytest.approx(9.75 + 0.01 - 5.5 + 1.0 - 0.0) and found["ready s"] == pytest.approx(1.5)


def test_who_is_back_within_the_gap_of_the_kill_makes_no_stall_of_its_own():
    seen, killed = lives()
    seen[3].committed[:] = [seen[0].committed[6] + 0.01, *seen[3].committed]  # it ends the gap of the kill with them
    found = cost(seen, 3, 1, killed)
    assert math.isnan(found["rejoin stall"]) and found["kill stall"] == pytest.approx(2.5)


def test_an_ordinary_step_is_one_of_the_survivors_before_the_kill():
    seen, killed = lives()
    for life in (seen[0], seen[2]):
        life.committed += [life.committed[-1] + 3 * n for n in range(1, 20)]  # slower afterwards
    seen[1].committed[:] = [0.0, 2.0, 4.0]
    assert cost(seen, 3, 1, killed)["step s"] == pytest.approx(1.0)


def test_without_a_return_the_rest_is_told():
    seen, killed = lives()
    found = cost(seen[:3], 3, 1, killed)
    assert found["kill stall"] == pytest.approx(2.5)
    assert all(math.isnan(found[what]) for what in ("rejoin stall", "away s", "ready s"))
    assert all(math.isnan(x) for x in cost(seen[:3], 3, 1, math.nan).values())  # nobody was killed


@given(kill=st.floats(1.0, 50.0), rejoin=st.floats(1.0, 50.0), scale=st.floats(0.01, 100.0), shift=st.floats(0, 1e4))
def test_stalls_are_in_steps_whatever_a_step_takes_and_whenever_it_began(kill, rejoin, scale, shift):
    found, moved = (cost(*_with(*lives(rejoin, kill, *how))) for how in ((1.0, 0.0), (scale, shift)))
    for what in ("kill stall", "rejoin stall", "lost"):
        assert moved[what] == pytest.approx(found[what], abs=1e-3)
    for what in ("away s", "ready s", "step s"):
        assert moved[what] == pytest.approx(scale * found[what], rel=1e-3)
    assert found["kill stall"] == pytest.approx(kill - 1) and found["rejoin stall"] == pytest.approx(rejoin - 1)


def _with(seen, killed):
    return seen, 3, 1, killed


def test_a_diary_keeps_whole_lines_and_no_warm_up(tmp_path):
    diary = diaries.Diary(tmp_path, 2, skip=1)
    for what in ("ready", "step", "commit", "step", "commit", "step"):
        diary.write(what)
    diary.write("error", "ValueError: two\nlines")
    with open(next(tmp_path.glob("*.diary")), "a") as torn:
        torn.write("commit 12")
    (life,) = diaries.read(tmp_path)
    assert (life.replica, life.pid, life.error) == (2, os.getpid(), "ValueError: two lines")
    assert len(life.begun) == 2 and len(life.committed) == 1 and life.ready <= life.begun[0] <= life.committed[0]


def test_runs_that_broke_off_are_counted_and_told_and_not_averaged():
    rows = [{"system": "x", "error": "", **cost(*_with(*lives(kill=k)))} for k in (2.0, 4.0)]
    rows.append({"system": "x", "error": "replica 0: ValueError: no", **cost(*_with(*lives(kill=90.0)))})
    (row,) = failures_torchft.summary(rows)
    assert (row["runs"], row["broke off"]) == (3, 1)
    assert row["kill stall"] == pytest.approx(2.0) and row["worst kill"] == pytest.approx(3.0)
    assert failures_torchft._told(rows) == "broke off: x: replica 0: ValueError: no\n"
    (none,) = failures_torchft.summary(rows[2:])
    assert math.isnan(none["kill stall"]) and "nan" in ratios.table([none])


def _silently():
    raise AssertionError


# What `torchft_process` writes, without PyTorch. With steps of 0.01 s the last replica ends by itself.
PROGRAM = """
import json, os, pathlib, sys, time
asked = json.loads(sys.argv[1])
diary = pathlib.Path(asked["folder"], f"{asked['replica']}-{os.getpid()}.diary").open("a", buffering=1)
print("ready", time.monotonic(), "", file=diary)
while True:
    print("step", time.monotonic(), "", file=diary)
    time.sleep(asked["seconds"])
    if asked["replica"] == asked["replicas"] - 1 and asked["seconds"] == 0.01:
        print("error", time.monotonic(), "ValueError: no", file=diary)
        sys.exit("more about it")
    print("commit", time.monotonic(), "", file=diary)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setattr(rivals, "PROGRAM", (str(path),))


def test_a_process_is_killed_in_the_middle_of_a_step_and_started_again_and_all_are_ended(program, tmp_path):
    jobs = []

    def start(folder):
        jobs.append(Processes(folder, 2, 0.1, None))
        return jobs[-1]

    seen = episode(start, tmp_path, 2, before=2, after=1, victim=1, patience=60)
    assert seen.error == "" and sorted(life.replica for life in seen.lives) == [0, 1, 1]
    first, second = (x for x in seen.lives if x.replica == 1)
    assert first.begun[-1] + 0.05 <= seen.killed < second.ready  # half a step, of at least 0.1 s, was over
    assert len(first.begun) == len(first.committed) + 1
    assert zombies() == [] and not any(_there(x.pid) for x in seen.lives)
    with pytest.raises(Broken, match="replica 0: ended with code -9: it said nothing"):  # nobody else may end
        jobs[0].look(struck=1)


def test_what_was_struck_may_not_end_again(program, tmp_path):
    job = Processes(tmp_path, 1, 0.01, None)
    try:
        with pytest.raises(Broken, match="replica 0: ValueError: no"):
            while True:
                job.look(struck=0)
        assert len(diaries.read(tmp_path)) == 2
    finally:
        job.close()


def test_a_process_that_ends_by_itself_breaks_the_run_off_with_its_own_words(program, tmp_path):
    seen = episode(lambda folder: Processes(folder, 2, 0.01, None), tmp_path, 2, before=1, patience=60)
    assert seen.error == "replica 1: ValueError: no" and math.isnan(seen.killed)
    assert zombies() == []


def test_an_error_is_told_by_its_first_line_or_else_by_the_line_that_raised_it():
    with pytest.raises(AssertionError) as silent:
        _silently()
    assert torchft_process.said(silent.value).startswith("AssertionError: raise AssertionError (tests/")
    with pytest.raises(ValueError, match="two") as spoken:
        raise ValueError("one\ntwo")
    assert torchft_process.said(spoken.value).startswith("ValueError: one (tests/")


def test_torchft_gets_its_own_limits_then_ours_and_nothing_else_sets_them(monkeypatch):
    config = failures_stall.configuration(options("--stall-step", "2"))
    ddp, own, ours, beats = failures_torchft.ways(config).values()
    assert (ddp.ddp, own.ddp, ddp.lighthouse, own.gloo, own.manager) == (True, False, own.lighthouse, None, {})
    assert ours.gloo == ours.manager["connect_timeout"] == config.deadlines.message
    assert ours.lighthouse["join_timeout_ms"] > 1e3 * 2  # shorter than a step, and replicas take turns
    assert (
        beats.lighthouse["heartbeat_timeout_ms"]
        < ours.lighthouse["heartbeat_timeout_ms"]
        <= 1e3 * ours.manager["timeout"]
    )
    monkeypatch.setenv("TORCHFT_TIMEOUT_SEC", "1")
    assert not any(name.startswith("TORCHFT_") for name in rivals._environment())
    assert rivals._environment()["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")


class Stubborn:
    """A job that is interrupted while it is watched."""

    def __init__(self, folder):
        self.closed = 0

    def look(self, struck):
        raise KeyboardInterrupt

    def close(self):
        self.closed += 1


def test_an_interrupt_ends_the_job(tmp_path):
    job = Stubborn(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        episode(lambda folder: job, tmp_path, 1, before=1, patience=1)
    assert job.closed == 1


def test_a_job_that_stands_still_is_broken_off_and_told(tmp_path):
    job = Stubborn(tmp_path)
    job.look = lambda struck: None
    seen = episode(lambda folder: job, tmp_path, 1, before=1, patience=0.05)
    assert "did not make 1 steps together within 0.05 s" in seen.error and job.closed == 1


def test_labkit_is_struck_and_goes_on(tmp_path):
    small = options("--stall-step", "0.05", "--stall-replicas", "2")
    config = failures_stall.configuration(small)
    seen = episode(
        lambda folder: LabkitJob(folder, config, 0.05), tmp_path, 2, before=3, after=2, victim=1, patience=60
    )
    assert seen.error == "" and [x.replica for x in seen.lives if x.ready > seen.killed] == [1]
    starts = {(x.replica, x.incarnation): x.at for x in read(tmp_path / "audit")[0] if x.kind == "start"}
    assert len(starts) == 3
    warm = [x.committed[0] > at for x, (_, at) in zip(_places(seen.lives), sorted(starts.items()), strict=True)]
    assert all(warm)  # a step for nothing, before the first line of the log, is not in the diary
    found = cost(seen.lives, 2, 1, seen.killed)
    assert found["away s"] > found["ready s"] > 0 and math.isfinite(found["kill stall"])
    assert eventually(lambda: not any(_there(x.pid) for x in seen.lives))


def test_torchft_is_struck_and_goes_on(tmp_path):
    pytest.importorskip("torchft")
    small = options("--stall-step", "0.1", "--stall-replicas", "3")
    start = failures_torchft.systems(small)["torchft, our waits"]
    seen = episode(start, tmp_path, 3, before=2, after=1, victim=1, patience=60)
    assert seen.error == "" and math.isfinite(cost(seen.lives, 3, 1, seen.killed)["away s"])
    assert eventually(lambda: not any(_there(x.pid) for x in seen.lives))


def _places(lives):
    return sorted(lives, key=lambda x: (x.replica, x.ready))


def _there(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
