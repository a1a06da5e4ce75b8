"""`labkit grade` as it is typed: a class with attackers in it, resumed, regraded, interrupted."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attacks.conftest import named
from slices import LONG

from labkit.bench.grade import LOOT, judged, main, words
from labkit.bench.grade_class import NAME, ROOT, SECRET, filled, hand_in, members, programs, source
from labkit.commands import UsageError
from labkit.commands.grade import Progress, grade
from labkit.commands.grade_options import Wanted
from labkit.grading.grader.batch import Batch, Done, Grader, Task
from labkit.grading.grader.one import How, is_trouble
from labkit.grading.grader.pristine import Pristine
from labkit.grading.grader.results import from_json
from labkit.grading.sandbox import open_sandbox

pytestmark = pytest.mark.ranks

ATTACKS = (
    "forges", "unpickles", "kills", "patches", "prints", "steals", "forks", "daemons", "fills-disk", "fills-memory",
    "loops", "exits",
)[: None if LONG else 3]  # fmt: skip
CHEAP = ("broadcast",)  # the exercise that attackers attack here; the benchmark has them attack all


@pytest.fixture(scope="module")
def tier():
    with open_sandbox([]) as box:
        return box.tier


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two students with little to grade: one who answered two derivations, one who loops."""
    folder = tmp_path_factory.mktemp("small")
    everyone = {m.name: m for m in members([])}
    stubs = {e.id: "" for e in source().exercises}
    right = {e.id: e.answers[0].source for e in source().exercises if e.id in ("ring-bytes", "factor-of-two")}
    member = type(everyone["right-01"])
    hand_in(folder, member("few", "right", stubs | right))
    hand_in(folder, member("loops", "hostile", stubs | {"broadcast": everyone["hostile-loops"].answers["broadcast"]}))
    return folder


def results_in(out):
    found = [from_json(path.read_text()) for path in sorted((out / "results").glob("*/*.json"))]
    return {result.student: result for result in found}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A class that was graded by the command: (folder of submissions, folder of results, lines that it printed)."""
    top = tmp_path_factory.mktemp("class")
    secret, folder, out = top / "secret.txt", top / "submissions", top / "out"
    secret.write_text(SECRET)
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    everyone = {m.name: m for m in members([secret, out / ".seed", folder / "ada" / f"{NAME}.ipynb"])}
    book = source()
    for name in ATTACKS:
        attacker = everyone[f"hostile-{name}"]
        stubs = {e.id: "" for e in book.exercises}
        hand_in(folder, type(attacker)(name, "hostile", stubs | {id: attacker.answers[id] for id in CHEAP}), book)
    for name in ("ada", "stubs"):
        (folder / name).mkdir(parents=True)
    (folder / "ada" / f"{NAME}.ipynb").write_text(json.dumps(filled({}, book)))
    derived = {e.id: e.answers[0].source for e in book.exercises if e.id in ("ring-bytes", "factor-of-two")}
    text = json.dumps(filled({e.id: "" for e in book.exercises} | derived, book))
    (folder / "stubs" / f"{NAME}.ipynb").write_text((ROOT / "exercises" / f"{NAME}.ipynb").read_text())
    (folder / "nobody").mkdir()
    for name, raw in {"zip": b"PK\x03\x04", "utf-16": text.encode("utf-16"), "null": b"\0" + text.encode()}.items():
        (folder / name).mkdir()
        (folder / name / f"{NAME}.ipynb").write_bytes(raw)
    command = [sys.executable, "-m", "labkit.cli", "grade", str(folder), "--out", str(out), "--jobs", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert victim.poll() is None, "a process of the grader's user was killed"
    victim.kill()
    victim.wait()
    return folder, out, done.stdout.splitlines()


def test_everybody_is_graded_and_the_tier_is_said_first(graded):
    folder, out, lines = graded
    found = results_in(out)
    assert sorted(found) == sorted(p.name for p in folder.iterdir())
    assert lines[0].startswith("Tier ") and sum(NAME in line and "points" in line for line in lines) == len(found)
    assert {g.state for g in found["ada"].exercises} == {"right", "to mark"} and found["ada"].points == 42
    for name in ("utf-16", "null"):
        right = {g.exercise for g in found[name].exercises if g.state == "right"}
        assert (right, found[name].points) == ({"ring-bytes", "factor-of-two"}, 4), name
    for name in ("stubs", "nobody", "zip"):
        assert {g.state for g in found[name].exercises} == {"unattempted"}, name
    assert found["nobody"].submission.problems and found["zip"].submission.problems
    rows = {row["student_id"]: row for row in csv.DictReader(io.StringIO((out / "grades.csv").read_text("utf-8-sig")))}
    assert set(rows) == set(found) and (out / "feedback" / "ada.html").exists()


def test_no_attack_gains_anything_and_nothing_of_it_stays(graded):
    _, out, _ = graded
    found = results_in(out)
    for name in ATTACKS:
        exercise = found[name].exercise("broadcast")
        assert exercise.points < exercise.of and exercise.state in ("error", "wrong", "partly"), (name, exercise)
        assert not is_trouble(exercise), (name, exercise)
        assert not any(word in exercise.output for word in LOOT), (name, exercise.output)
        assert all(g.state == "unattempted" for g in found[name].exercises if g.exercise not in (*CHEAP, "late-rank"))
    assert all(found[name].points == 0 for name in ATTACKS if name in ("unpickles", "patches"))
    assert found["forges"].exercise("broadcast").output.count("application/vnd.labkit.mark+json") >= 1
    assert found["forges"].points == 0, "it sends nothing, and that few rounds follow earns nothing"
    end = time.monotonic() + 5
    while (left := named("lk-rank", "sleep")) and time.monotonic() < end:
        time.sleep(0.1)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left if Path(f"/proc/{pid}/cmdline").exists()]
    assert not [c for c in commands if b"1000" in c]


def test_the_seed_is_private_and_nowhere_else(graded):
    _, out, _ = graded
    path = out / ".seed"
    assert path.stat().st_mode & 0o777 == 0o600
    seed = path.read_text().strip()
    for other in out.rglob("*"):
        assert other == path or not other.is_file() or seed not in other.read_text(errors="replace"), other


@pytest.mark.long
def test_what_did_not_change_is_kept_and_only_what_was_asked_is_regraded(graded, capsys):
    folder, out, _ = graded
    before = results_in(out)
    stamp = {p: p.stat().st_mtime_ns for p in (out / "results").glob("*/*.json")}
    (folder / "stubs" / f"{NAME}.ipynb").write_text(json.dumps(filled({}) | {"nbformat_minor": 5, "a": 1}))
    assert grade(Wanted(folder, out, jobs=1)) == 0
    said = capsys.readouterr().out
    assert said.count("kept from before") == len(before) - 1 and "stubs 03_collectives: 42 of 50" in said
    changed = {p.parent.name for p in stamp if p.stat().st_mtime_ns != stamp[p]}
    assert changed == {"stubs"}

    path = out / "results" / "ada" / f"{NAME}.json"
    path.write_text(path.read_text().replace('"state": "right"', '"state": "wrong"'))
    for other in ("forges", "prints"):  # one that is there, and one whose record is lost
        (out / "results" / other / f"{NAME}.json").touch()
    assert grade(Wanted(folder, out, only=["ring-bytes"], jobs=1)) == 0
    states = {g.exercise: g.state for g in results_in(out)["ada"].exercises}
    assert states["ring-bytes"] == "right" and states["broadcast"] == "wrong"


def test_a_wrong_word_is_said_before_anything_runs(graded, tmp_path):
    folder, out, _ = graded
    (tmp_path / "empty").mkdir()
    (tmp_path / "unknown" / "ada").mkdir(parents=True)
    for wanted, said in (
        (Wanted(tmp_path / "none", out), "there is no folder"),
        (Wanted(folder, folder / "out"), "in one another"),
        (Wanted(folder / "ada", folder), "in one another"),
        (Wanted(tmp_path / "empty", out), "holds no folder"),
        (Wanted(tmp_path / "unknown", out), "nobody handed in"),
        (Wanted(folder, out, only=["no-such"]), "there is no such exercise"),
        (Wanted(folder, out, overlay=tmp_path / "none"), "no such folder"),
        (Wanted(folder, out, tier="tin"), "tier"),
        (Wanted(folder, out, tier="none"), "no sandbox"),
    ):
        with pytest.raises(UsageError, match=said):
            grade(wanted)


@pytest.mark.long
def test_a_grader_that_dies_is_replaced_and_its_exercise_alone_put_aside(small, tmp_path, tier, monkeypatch):
    pristine = {NAME: Pristine(ROOT / "solutions" / f"{NAME}.ipynb")}
    watch = Grader._watch

    def die(self):
        watch(self)
        if self.at == "ring-bytes" and self.task is not None and "ring-bytes" not in self.task.condemned:
            self._process.kill()

    monkeypatch.setattr(Grader, "_watch", die)
    batch = Batch(small, tmp_path / "out", pristine, How(1, tier), jobs=1)
    (done,) = batch.run([Task("few", NAME, 3.0)])
    assert is_trouble(done.result.exercise("ring-bytes")) and done.result.points == 2
    monkeypatch.undo()
    (done,) = batch.run([Task("few", NAME, 3.0)])  # taken up again, although nothing changed
    assert not done.kept and done.result.points == 4 and done.result.grader.slow_factor == 3.0
    (done,) = batch.run([Task("few", NAME, 3.0)])
    assert done.kept
    assert batch._kept(Task("few", NAME, 2.0)) is None  # other limits, another seed: graded again
    assert Batch(small, tmp_path / "out", pristine, How(2, tier))._kept(Task("few", NAME, 3.0)) is None


@pytest.mark.long
def test_control_c_keeps_what_is_finished_and_leaves_no_process(small, tmp_path):
    command = [sys.executable, "-m", "labkit.cli", "grade", str(small), "--out", str(tmp_path / "out"), "--jobs", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "of 50 points" not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    workers = [pid for pid, words in running().items() if "worker.py" in words and parent_of(pid) == process.pid]
    assert workers
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "1 of 2 are graded" in error and "Give the same command again" in error
    assert list(results_in(tmp_path / "out")) == ["few"] and not (tmp_path / "out" / "grades.csv").exists()
    assert not set(workers) & set(running())


def running():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_bar_on_a_terminal_and_lines_elsewhere_without_names_if_asked(graded):
    result = results_in(graded[1])["ada"]
    lines = io.StringIO()
    with Progress(2, anonymous=True, to=lines) as progress:
        progress.tell(Done(result))
    assert lines.getvalue().startswith("1 of 2: ") and "ada" not in lines.getvalue()
    master, slave = pty.openpty()
    with open(slave, "w") as terminal, Progress(2, to=terminal) as progress:
        progress.tell(Done(result))
        progress.tell(Done(result, True))
        progress.close()
    shown = ""
    while " 2/2 " not in shown:  # a terminal gives what is there
        shown += os.read(master, 10_000).decode()
    assert re.search(r"\r\[#{10}\.{10}\] 1/2  ada .*\r\[#{20}\] 2/2  ada ", shown, re.S)
    os.close(master)


def test_the_benchmark_counts_what_is_judged_wrongly(graded):
    book = source()
    everyone = {m.name: m for m in members([])}
    assert len(everyone) == 30 and {m.kind for m in everyone.values()} == {"right", "mutant", "hostile"}
    found = results_in(graded[1])
    right, stubs = found["ada"], found["nobody"]
    chosen = {"ada": everyone["mutant-01"], "nobody": everyone["right-01"]}
    counted = judged(chosen, [right, stubs], programs(book))
    assert len(counted["mutants accepted"]) == 4 and len(counted["variants rejected"]) == 10
    counted = judged({"ada": everyone["hostile-steals"]}, [right], programs(book))
    assert len(counted["attacks that gained"]) == 4
    assert "attacks that gained: 4 (must be 0)" in words(counted | {"jobs": 2, "tier": "root"})


@pytest.mark.long
def test_a_slice_of_the_benchmark_judges_right(capsys, tmp_path):
    code = main(["--every", "20", "--json", str(tmp_path / "numbers.json")])
    said = capsys.readouterr().out
    assert code == 0 and "mutants accepted: 0 (must be 0)" in said, said
    assert json.loads((tmp_path / "numbers.json").read_text())["students"] == 2
