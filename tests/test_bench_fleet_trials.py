"""`labkit bench fleet-trials`: its file is what chapter 21 reads, and its summary says how far the simulator is off."""

from __future__ import annotations

import json

import pytest

from labkit.bench import fleet_trials as bench
from labkit.data import runs
from labkit.resilience.fleet_trial import POLICIES, Trained


@pytest.fixture
def pretended(monkeypatch):
    """Runs that stand still for 2 s after each failure, and train a step without the replica that comes back. Without
    any process. Returns the trials that were asked for."""
    asked = []

    def run(plans):
        asked.extend(plans)
        return [pretend(trial, strikes) for trial, strikes in plans]

    monkeypatch.setattr(bench, "run_trials", run)
    monkeypatch.setattr(bench, "quiet", lambda: 0.3)
    monkeypatch.setattr(bench.labkit, "warm", lambda: None)
    return asked


def pretend(trial, strikes):
    now, commits, away = 0.0, [], ()
    while now < trial.time + 1:
        commits.append((now, tuple(replica for replica in range(trial.replicas) if replica not in away)))
        failures = [(at, replica) for at, replica in strikes if now < at <= now + trial.step]
        away = tuple(replica for _, replica in failures)
        now = failures[-1][0] + 2.0 + trial.step if failures else now + trial.step
    return Trained(trial, list(strikes), commits)


def test_what_it_writes_is_what_the_chapter_reads(pretended, tmp_path, capsys):
    file = tmp_path / "trials.json"
    assert bench.main(["--seeds", "3", "--out", str(file)]) == 0
    kept = runs.fleet_trials(str(file))
    assert [(run.policy, run.seed) for run in kept.runs] == [(policy, seed) for policy in POLICIES for seed in range(3)]
    assert [len(pretended[i][1]) for i in (0, 4)] == [8, 8] and pretended[0][0].apart  # failures that give the times
    assert len(pretended) == 8  # for each policy one run for the times, and three
    assert [trial.time for trial, _ in pretended[:4]] == [pretended[0][0].time, 16.0, 16.0, 16.0]
    one = kept.runs[0]
    assert (one.replicas, one.step, one.repair, one.time, one.every, one.load) == (4, 0.2, 1.4, 16.0, 3.6, 0.3)
    assert one.usual == one.own_step == 0.2 and one.recovery == one.stall and one.recovery == pytest.approx(2.2)
    assert "--seeds 3" in kept.provenance.command and str(tmp_path) not in str(kept.provenance)
    shown = capsys.readouterr().out
    assert "all wait, seed 0:" in shown and f"written: {file}" in shown
    assert bench.main(["--read", str(file)]) == 0
    again = capsys.readouterr().out
    assert again.strip() in shown  # the same summary


def test_the_summary_is_simulated_less_measured(tmp_path, capsys):
    raw = json.loads((runs.FOLDER / "fleet_trials.json").read_text())
    for row in raw["runs"]:
        row["measured"] = round(row["measured"] - 0.1, 4)
    file = tmp_path / "lower.json"
    file.write_text(json.dumps(raw))
    bench.main(["--read", str(file)])
    waits, goes_on = capsys.readouterr().out.splitlines()[1:3]
    assert " 0.1049 ±" in waits and " 0.1083 ±" in goes_on


def test_one_run_has_no_spread(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--seeds", "1"])
    assert "at least 2" in capsys.readouterr().err
