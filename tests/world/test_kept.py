"""A world that is kept: the same processes from call to call, each call a run of its own, an end for every trouble."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from leftovers import NEVER, alive, eventually
from slices import SLOW_WIRES, few

import labkit
from labkit import Kill, RankFailed, RefusedError, cost
from labkit.collectives import all_reduce
from labkit.world import kept

pytestmark = pytest.mark.ranks


def count(group):
    group.kept["calls"] = group.kept.get("calls", 0) + 1
    return os.getpid(), group.kept["calls"]


def total(group, n):
    return float(all_reduce(torch.full((n,), float(group.rank)), group, algorithm="ring")[0])


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_the_ranks_stay_and_keep_what_a_call_left(transport):
    with labkit.world(3, transport=transport, timeout=NEVER) as world:
        assert not world.kept
        first, second = (world.run(count).results for _ in range(2))
        assert [pid for pid, _ in first] == [pid for pid, _ in second] and world.kept
        assert [n for _, n in second] == [2, 2, 2]
        offset = 10.0
        assert world.run(lambda group: group.rank + offset).results == [10.0, 11.0, 12.0], "functions of a cell travel"
    assert not world.kept and eventually(lambda: not any(alive(pid) for pid, _ in first))


@pytest.mark.parametrize(("size", "transport"), few([(3, "gloo"), (2, "local"), (5, "local"), (1, "local")]))
def test_a_trace_is_that_of_its_call(size, transport):
    with labkit.world(size, transport=transport, timeout=NEVER) as world:
        for n in (7, 1000, 12):
            run = world.run(total, n)
            assert run.trace.bytes_sent() == cost.ring_all_reduce_bytes_by_rank(n, 4, size)
            assert len(run.trace.collectives()) == size and len(run.trace.sends) == sum(run.trace.messages())
            assert all(0 <= m.start <= m.arrived <= run.trace.duration for m in run.trace.recvs)
            assert run.trace.duration <= run.seconds


def test_time_that_is_counted_begins_anew_with_every_call():
    def work(group, ms):
        group.compute(ms / 1000 * (1 + group.rank))
        all_reduce(torch.ones(4), group, algorithm="ring")

    with labkit.world(3, clock="virtual") as world:
        traces = [world.run(work, ms).trace for ms in (10, 2, 10)]
    assert [t.duration for t in traces] == pytest.approx([0.03, 0.006, 0.03], abs=1e-12)
    assert [[m.start for m in t.sends] for t in traces[::2]][0] == pytest.approx([m.start for m in traces[2].sends])


def test_what_comes_before_the_first_step_is_of_no_step_in_every_call():
    def work(group):
        total(group, 6)  # set up: of no step
        group.step(1)
        total(group, 3)

    with labkit.world(2, timeout=NEVER) as world:
        sent = [sorted((m.step, m.nbytes) for m in world.run(work).trace.sends) for _ in range(3)]
    assert sent[0] == sent[1] == sent[2] and {step for step, _ in sent[0]} > {1}, sent


def test_bytes_of_native_collectives_and_memory_are_those_of_the_call():
    def work(group, n):
        held = torch.ones(n)
        group.step(0)
        return float(all_reduce(held, group, algorithm="native")[0])

    with labkit.world(2, memory="resident") as world:
        runs = [world.run(work, 250_000)]
        time.sleep(0.3)  # gloo's thread lets go of the tensor a moment later
        runs += [world.run(work, n) for n in (1000, 250_000)]
    sent = [run.trace.bytes_sent() for run in runs]
    assert all(0.9e6 < b < 1.5e6 for each in sent[::2] for b in each) and max(sent[1]) < 50_000, sent
    peaks = [run.trace.peak_bytes() for run in runs]
    assert all(1e6 <= p < 2.5e6 for each in peaks[::2] for p in each) and max(peaks[1]) < 0.5e6, peaks


def test_what_a_call_prints_is_in_its_logs(capfd):
    def say(group, word):
        print(word, group.rank)

    with labkit.world(2) as world:
        runs = []
        for word in ("one", "two"):
            runs.append(world.run(say, word))
            assert eventually(lambda word=word: capfd.readouterr().out.count(word) or True)
    assert all("one" not in log for log in runs[1].logs)


TROUBLE = {
    "rank 1 raised ZeroDivisionError": lambda group: 1 / (1 - group.rank),
    "Deadlock: ranks 0 and 1 wait for each other": lambda group: (
        group.recv(torch.zeros(2), 1 - group.rank) if group.rank < 2 else None
    ),
    "rank 1 was killed": lambda group: os.kill(os.getpid(), signal.SIGKILL) if group.rank == 1 else time.sleep(60),
    "SystemExit": lambda group: sys.exit(3),
}


@pytest.mark.parametrize("words", TROUBLE)
def test_trouble_ends_the_world_with_its_reason_and_the_next_call_has_new_ranks(words):
    with labkit.world(3, timeout=NEVER) as world:
        pids = [pid for pid, _ in world.run(count).results]
        with pytest.raises(RankFailed, match=words) as caught:
            world.run(TROUBLE[words])
        assert "labkit/world/kept.py" not in str(caught.value), "only the reader's own lines"
        assert not world.kept and eventually(lambda: not any(alive(pid) for pid in pids))
        assert [n for _, n in world.run(count).results] == [1, 1, 1]


def test_a_rank_that_dies_between_two_calls_is_no_trouble_of_the_next():
    with labkit.world(2) as world:
        pids = [pid for pid, _ in world.run(count).results]
        os.kill(pids[1], signal.SIGKILL)
        assert eventually(lambda: not world.kept)
        assert [n for _, n in world.run(count).results] == [1, 1]


def test_a_call_may_take_so_long_and_no_longer():
    with labkit.world(2, deadline=0.5) as world:
        world.run(count)
        with pytest.raises(RankFailed, match="longer than deadline=0.5 s"):
            world.run(lambda group: time.sleep(60))
        assert [n for _, n in world.run(count).results] == [1, 1]


def test_an_interrupt_ends_the_call_and_its_ranks():
    with labkit.world(2) as world:
        pids = [pid for pid, _ in world.run(count).results]
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            world.run(lambda group: time.sleep(60))
        assert eventually(lambda: not any(alive(pid) for pid in pids))
        assert [n for _, n in world.run(count).results] == [1, 1]


def test_a_stop_that_comes_before_there_are_ranks_ends_the_call_all_the_same(monkeypatch):
    begin = kept.start

    def stopped_first(*args, **options):
        world.stop()
        return begin(*args, **options)

    with labkit.world(2, timeout=NEVER) as world:
        world.stop()  # nothing is under way, and the next call is not meant
        assert world.run(lambda group: group.rank).results == [0, 1]
        world.close()
        monkeypatch.setattr(kept, "start", stopped_first)
        with pytest.raises(RankFailed) as caught:
            world.run(lambda group: time.sleep(1000))
        assert caught.value.failure.kind == "stopped"
        monkeypatch.undo()
        assert world.run(lambda group: group.rank).results == [0, 1]


def test_nobody_asks_for_long_and_the_ranks_end_by_themselves():
    with labkit.world(2, idle=0.3) as world:
        pids = [pid for pid, _ in world.run(count).results]
        assert eventually(lambda: not any(alive(pid) for pid in pids)) and eventually(lambda: not world.kept)
        assert [n for _, n in world.run(count).results] == [1, 1]


def test_an_edit_is_seen(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "kept_module_of_a_reader.py"
    path.write_text("def answer(group):\n    return 41\n")
    module = importlib.import_module(path.stem)
    with labkit.world(2) as world:
        assert world.run(module.answer).results == [41, 41]
        path.write_text("def answer(group):\n    return 42\n")
        os.utime(path, (time.time() + 5, time.time() + 5))
        assert not world.kept and world.run(module.answer).results == [42, 42]
    del sys.modules[path.stem]


def test_a_world_that_is_forgotten_leaves_nothing():
    world = labkit.world(2)
    pids = [pid for pid, _ in world.run(count).results]
    del world
    assert eventually(lambda: not any(alive(pid) for pid in pids))


def test_what_cannot_work_is_refused_at_once():
    for options, words in (
        ({"faults": [Kill(0)]}, "takes no faults"),
        ({"on_failure": "continue"}, "takes no on_failure"),
        ({"sed": 1}, "no option 'sed'"),
        ({"deadline": -1}, "deadline=-1"),
    ):
        with pytest.raises(RefusedError, match=words):
            labkit.world(2, **options)
    with pytest.raises(RefusedError, match="world_size=0"):
        labkit.world(0)
    lock = threading.Lock()
    with labkit.world(2) as world:
        with pytest.raises(RefusedError, match="not int"):
            world.run(3)
        with pytest.raises(RefusedError, match="cannot be sent"):
            world.run(lambda group: lock)
        with pytest.raises(RankFailed, match="a rank cannot have a world of its own"):
            world.run(lambda group: labkit.world(2).run(count))


def test_the_door_is_there_before_anything_else_is_loaded():
    code = "import labkit\nwith labkit.world(2) as world:\n    print(world.run(lambda group: group.rank).results)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[0, 1]", ran.stderr


def slips(group, what):
    """Five sums; in the third one rank 1 does something else."""
    for step in range(5):
        x = torch.full((8,), float(step))
        if (group.rank, step) == (1, 2):
            if what == "left out":
                continue
            x = {"int32": x.int(), "half": x[:4]}.get(what, x)
        all_reduce(x, group, algorithm="ring")


@pytest.mark.parametrize(("what", "kind"), [("int32", "mismatch"), ("half", "mismatch"), ("left out", "deadlock")])
def test_ranks_that_disagree_are_named_in_any_call(what, kind):
    """Also in one that ends before anybody looked, and when who is awaited stands idle and not at its end."""
    for before in (1, 3):
        with labkit.world(3, transport="local", timeout=NEVER) as world:
            for _ in range(before):
                world.run(slips, "nothing")
            with pytest.raises(RankFailed) as failed:
                world.run(slips, what)
            assert failed.value.failure.kind == kind and "rank 1" in str(failed.value)
            assert "call 3" in str(failed.value) or what == "left out", "counted from where the function began"
            assert len(world.run(slips, "nothing").results) == 3
