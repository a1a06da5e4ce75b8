"""`Ftar`: a queue of all-reduces that runs beside the caller, ends as a whole when one fails, and is formed anew."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
from leftovers import NEVER
from slices import REBUILDABLE, few

import labkit
from labkit import Kill, Raise, RankFailed, collectives
from labkit.resilience.deadlines import Deadlines
from labkit.resilience.errors import Fatal, Recoverable, Skipped
from labkit.resilience.ftar.queued import Ftar

from .ftar_cases import raised

pytestmark = pytest.mark.ranks

LIMITS = {"message": 2.0, "exchange": 4.0, "vote": 5.0, "step": 10.0, "join": 12.0, "hang": 15.0}


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_they_run_in_order_beside_the_caller(transport) -> None:
    def work(group):
        ftar = Ftar(group, Deadlines(**LIMITS), chunk_bytes=1 << 16)
        tensors = [torch.full((50_000,), float(i + group.rank)) for i in range(8)]
        handles = [ftar.all_reduce(x) for x in tensors]
        computed = sum(i * i for i in range(1000))
        error = ftar.finish()
        done = [h.done() for h in handles]
        again = ftar.all_reduce(torch.ones(3))
        again.wait()
        ftar.close()
        return [x.unique().tolist() for x in tensors], error, done, computed, again.error

    for sums, error, done, _, again in labkit.launch(work, 3, transport=transport, timeout=30).results:
        assert sums == [[3.0 * i + 3] for i in range(8)] and error is None and all(done) and again is None


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_the_caller_goes_on_while_they_run(tmp_path, transport) -> None:
    def work(group):
        ftar, called = Ftar(group), tmp_path / "called"
        while group.rank == 1 and not called.exists():  # it takes part only when the other's call has returned
            time.sleep(0.01)
        handle = ftar.all_reduce(torch.ones(10))
        early = handle.done()
        called.touch()
        handle.wait()
        return early

    assert labkit.launch(work, 2, transport=transport, timeout=NEVER).results[0] is False


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_after_an_error_the_queue_is_skipped_until_the_group_is_formed_anew(transport) -> None:
    def work(group):
        ftar = Ftar(group, Deadlines(**LIMITS), chunk_bytes=4000, chunks=2)
        works = [ftar.all_reduce(torch.ones(12_000)) for _ in range(6)]
        error = ftar.finish()
        late = ftar.all_reduce(torch.ones(5))  # a call that does not know yet
        words = str(raised(Skipped, late.wait))
        states = [type(w.error).__name__ for w in works]
        ftar.rebuild([0, 2, 3], epoch=2)
        x = torch.ones(12_000)
        ftar.all_reduce(x)
        after = ftar.finish()
        return states, type(error).__name__, words, after, x.unique().tolist(), ftar.group.global_ranks

    run = labkit.launch(work, 4, transport=transport, on_failure="continue", faults=[Kill(1, message=40)], timeout=30)
    for rank in (0, 2, 3):
        states, error, words, after, values, members = run.results[rank]
        assert words.startswith("all-reduce 7 was skipped, because one before it failed: rank")
        assert error == "Recoverable" and after is None and values == [3.0] and members == (0, 2, 3)
        failed = states.index("Recoverable")
        assert failed in (2, 3) and states == ["NoneType"] * failed + ["Recoverable"] + ["Skipped"] * (5 - failed)


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_a_fatal_error_ends_this_rank_and_is_recoverable_for_the_others(transport) -> None:
    def work(group):
        ftar = Ftar(group, Deadlines(**LIMITS))
        works = [ftar.all_reduce(torch.ones(100)) for _ in range(3)]
        try:
            error = ftar.finish()
        except Fatal:
            assert [w.skipped for w in works] == [False, False, True]
            raised(Fatal, lambda: ftar.rebuild([0, 1, 2], epoch=1))
            raise
        return type(error).__name__, [type(w.error).__name__ for w in works]

    run = labkit.launch(work, 3, transport=transport, on_failure="continue",
                        faults=[Raise(2, message=7, text="a bug")], timeout=30)  # fmt: skip
    assert [(f.rank, f.error, f.message) for f in run.failures] == [(2, "Fatal", "RuntimeError: a bug")]
    assert {run.results[r][0] for r in (0, 1)} == {"Recoverable"}
    assert {tuple(run.results[r][1]) for r in (0, 1)} <= {("NoneType", "Recoverable", "Skipped"),
                                                          ("NoneType", "NoneType", "Recoverable")}  # fmt: skip


@pytest.mark.parametrize("how", ["abort", "rebuild", "close"])
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_giving_up_ends_what_runs_on_all_members_before_any_limit(how, tmp_path, transport) -> None:
    def work(group):
        ftar = Ftar(group, Deadlines.for_step(NEVER))
        if group.rank == 1:  # it does not take part, and is there until the others are through
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.01)
            return None
        work = ftar.all_reduce(torch.ones(100))
        queued = ftar.all_reduce(torch.ones(100))
        time.sleep(0.2)
        if group.rank == 0:
            {"abort": ftar.abort, "rebuild": lambda: ftar.rebuild([0], 1), "close": ftar.close}[how]()
        late = raised(Recoverable, work.wait).late
        raised(Skipped, queued.wait)
        (tmp_path / str(group.rank)).touch()
        return late

    run = labkit.launch(work, 3, transport=transport, on_failure="continue", timeout=NEVER)
    assert run.results == [False, None, False] and not run.failures


def test_waiting_for_work_can_be_limited(tmp_path) -> None:
    gate = str(tmp_path / "gate")

    def work(group):
        ftar = Ftar(group)
        while group.rank == 1 and not os.path.exists(gate):
            time.sleep(0.01)
        handle = ftar.all_reduce(torch.ones(10))
        try:
            with group.within(0.1 if group.rank == 0 else 20):
                handle.wait()
            return "over"
        except labkit.WaitTimeout as error:
            open(gate, "w").close()
            handle.wait()
            return str(error)

    results = labkit.launch(work, 2, transport="local", timeout=30).results
    assert results[0].endswith("s for a collective to end") and results[1] == "over"


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_sixty_epochs_leave_no_thread_and_no_descriptor_behind(transport) -> None:
    def work(group):
        ftar = Ftar(group.subgroup([group.rank]), chunk_bytes=4000)
        sums, counts = [], []
        for epoch in range(1, 61):
            ftar.rebuild([2, 0, 1] if epoch % 2 else [0, 1, 2], epoch)
            x = torch.full((2000,), float(epoch))
            ftar.all_reduce(x)
            assert ftar.finish() is None
            sums.append(float(x[0]) == 3.0 * epoch and float(x[-1]) == 3.0 * epoch)
            counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
        ftar.close()
        return all(sums), counts[5], counts[-1], collectives.all_reduce(torch.ones(1), group).item()

    for right, early, late, outside in labkit.launch(work, 3, transport=transport, timeout=30).results:
        assert right and outside == 3.0  # the world's own group is as it was
        assert late[0] <= early[0] + 6 and late[1] == early[1]


def test_bad_arguments() -> None:
    with pytest.raises(RankFailed, match="chunks=0: needs a whole number"):
        labkit.launch(lambda group: Ftar(group, chunks=0), 2, transport="local")
    with pytest.raises(RankFailed, match="bool"):
        labkit.launch(lambda group: Ftar(group).all_reduce(torch.ones(2) > 0), 2, transport="local")
    with pytest.raises(RankFailed, match="raised RefusedError: epoch=0: needs a whole number above 0"):
        labkit.launch(lambda group: Ftar(group).rebuild([0, 1], 0), 2, transport="local")
