"""A neighbour that is killed, stopped or slow at any message: all others learn of it, and go on without it."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from leftovers import NEVER, eventually
from slices import REBUILDABLE, few

import labkit
from labkit import Drop, Hang, Kill, Raise
from labkit.resilience.errors import Fatal, Recoverable, classify
from labkit.resilience.ftar.exchange import ft_all_reduce

from .ftar_cases import raised, sum_of_ones, until_it_breaks

pytestmark = pytest.mark.ranks

CUT = {"chunk_bytes": 4000, "chunks": 2}  # of 12,000 floats: 4 ranks send 3 chunks of each part, 18 messages each


def with_survivors(group, victim, options, again=None):
    """Exchange until it breaks, then once more without the victim."""
    good, error = until_it_breaks(group, 12_000, **CUT, **options)
    living = group.rebuild([r for r in range(group.size) if r != victim], epoch=7)
    return good, (type(error).__name__, error.late, error.peer), sum_of_ones(living, 12_000, **CUT)


@pytest.mark.parametrize("message", few([1, 7, 12, 18, *(n for n in range(2, 18) if n not in (7, 12))], 4))
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_killed_at_any_message_all_others_learn_it_before_any_limit_and_go_on(message, transport) -> None:
    victim = message % 4
    job = labkit.start(with_survivors, 4, victim, {"deadline": NEVER}, transport=transport, on_failure="continue",
                       faults=[Kill(victim, message=message)], timeout=NEVER)  # fmt: skip
    run = job.wait()
    assert [(f.rank, f.kind) for f in run.failures] == [(victim, "died")]
    for rank in set(range(4)) - {victim}:
        good, error, after = run.results[rank]
        assert good in (0, 1) and error[:2] == ("Recoverable", False)
        assert after == [3.0]


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_who_fails_tells_the_others_before_anything_else(tmp_path, transport) -> None:
    """Ranks that are no neighbours of the dead one learn it from those, although nobody rebuilds or ends."""

    def work(group):
        _, error = until_it_breaks(group, 12_000, **CUT)
        (tmp_path / str(group.rank)).touch()
        while len(list(tmp_path.iterdir())) < 5:
            time.sleep(0.01)
        return error.late

    run = labkit.launch(work, 6, transport=transport, on_failure="continue", faults=[Kill(2, message=9)], timeout=NEVER)
    assert run.results == [False, False, None, False, False, False]


@pytest.mark.parametrize("ranks", few([2, 3, 8], 2))
@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_killed_with_other_numbers_of_ranks(ranks, transport) -> None:
    """Also one that dies between two exchanges, and long after others have finished theirs."""
    for message in (1, ranks, 6 * (ranks - 1), 6 * (ranks - 1) + 1):
        job = labkit.start(with_survivors, ranks, 1, {}, transport=transport, on_failure="continue",
                           faults=[Kill(1, message=message)], timeout=NEVER)  # fmt: skip
        run = job.wait()
        for rank in set(range(ranks)) - {1}:
            _, error, after = run.results[rank]
            assert error[:2] == ("Recoverable", False) and after == [ranks - 1.0]


@pytest.mark.parametrize("message", few([9, 1, 4, 14, 18]))
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_stopped_at_any_message_all_others_learn_it_at_the_limit_and_go_on(message, tmp_path, transport) -> None:
    """The stopped one is continued when the others are through: it finds its old group dead, and joins a new epoch."""
    gate = str(tmp_path / "gate")

    def work(group, victim):
        good, error = until_it_breaks(group, 12_000, quiet=0.5, **CUT)
        others = [r for r in range(4) if r != victim]
        after = None
        if group.rank != victim:
            living = group.rebuild(others, epoch=7)
            after = sum_of_ones(living, 12_000, **CUT)
            open(f"{gate}{group.rank}", "w").close()
        else:
            living = group
        whole = living.rebuild(range(4), epoch=8)
        return good, (type(error).__name__, error.late, error.peer), after, sum_of_ones(whole, 12_000, **CUT)

    victim = message % 4
    job = labkit.start(work, 4, victim, transport=transport, on_failure="continue",
                       faults=[Hang(victim, message=message)], timeout=30)  # fmt: skip
    assert eventually(lambda: sum(os.path.exists(f"{gate}{r}") for r in range(4)) == 3)
    os.kill(job.pids[victim], signal.SIGCONT)
    run = job.wait()
    assert run.failures == []
    late = []
    for rank in range(4):
        good, error, after, whole = run.results[rank]
        assert error[0] == "Recoverable" and whole == [4.0]
        if rank != victim:
            assert good in (0, 1) and after == [3.0]
            late += [error[2]] if error[1] else []
    assert late, "somebody's wait ran out first"
    assert run.results[victim][1][1] is False, "the slow one finds its group left by the others"


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_who_does_not_take_what_it_is_sent_is_named_by_its_left_neighbour(tmp_path, transport) -> None:
    def work(group):
        if group.rank == 2:
            while len(list(tmp_path.iterdir())) < 3:
                time.sleep(0.01)
            return None
        quiet = 0.3 if group.rank == 1 else NEVER
        error = raised(Recoverable, lambda: ft_all_reduce(torch.ones(100_000), group, quiet=quiet, **CUT))
        (tmp_path / str(group.rank)).touch()
        return error.late, error.peer, str(error)

    run = labkit.launch(work, 4, transport=transport, on_failure="continue", timeout=NEVER)
    late, peer, words = run.results[1]
    assert late and peer == 2 and "rank 1 waited 0.3 s: nothing moved. It waits for rank 2 to take what it was" in words
    assert [run.results[r][0] for r in (0, 3)] == [False, False]  # they learned it from rank 1


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_the_deadline_of_the_whole_exchange(transport) -> None:
    """Something moves all the time, and still it takes too long."""

    def work(group):
        x = torch.ones(40_000_000)
        error = raised(Recoverable, lambda: ft_all_reduce(x, group, deadline=0.02, chunk_bytes=1 << 16, chunks=2))
        return error.late, str(error)

    results = labkit.launch(work, 2, transport=transport, on_failure="continue", timeout=NEVER).results
    assert any(late and "waited 0.02 s: the exchange has not ended" in words for late, words in results)


def test_a_lost_message_is_recoverable_and_a_bug_is_fatal() -> None:
    def work(group):
        try:
            ft_all_reduce(torch.ones(12_000), group, quiet=1.0, **CUT)
        except (Recoverable, Fatal) as error:
            return type(error).__name__, str(error)

    def launch(fault):
        return labkit.launch(work, 3, transport="local", on_failure="continue", faults=[fault], timeout=30).results

    results = launch(Drop(1, message=3))
    assert {kind for kind, _ in results} == {"Recoverable"}
    assert "message 4, but message 3 is due: one was lost" in results[2][1]
    results = launch(Raise(1, message=3, text="a bug"))
    assert results[1] == ("Fatal", "RuntimeError: a bug")
    assert [results[r][0] for r in (0, 2)] == ["Recoverable"] * 2


def test_over_gloo_what_was_lost_or_has_another_size_is_waited_for_in_vain() -> None:
    def lost(group):
        return raised(Recoverable, lambda: ft_all_reduce(torch.ones(12_000), group, quiet=1.0, **CUT)).late

    def uneven(group):
        return raised(Recoverable, lambda: ft_all_reduce(torch.ones(1000 + group.rank), group, quiet=1.0)).late

    faults = [Drop(1, message=3)]
    assert any(labkit.launch(lost, 3, transport="gloo", on_failure="continue", faults=faults, timeout=NEVER).results)
    assert any(labkit.launch(uneven, 2, transport="gloo", on_failure="continue", timeout=NEVER).results)


def test_ranks_that_brought_different_tensors_end() -> None:
    def work(group):
        with pytest.raises((Fatal, Recoverable)) as caught:
            ft_all_reduce(torch.ones(1000 + group.rank), group, quiet=2.0)
        return type(caught.value).__name__, str(caught.value)

    results = labkit.launch(work, 2, transport="local", on_failure="continue", timeout=30).results
    assert (
        "Fatal",
        "Mismatch: rank 1 sent rank 0 float32[500], but this rank receives float32[501]",
    ) in results or any(kind == "Fatal" and "float32[500]" in words for kind, words in results)


def test_the_classes() -> None:
    recoverable = [labkit.PeerLost("x", 3), labkit.WaitTimeout("x"), ConnectionResetError(), Recoverable("x")]
    fatal = [labkit.Mismatch("x"), labkit.RefusedError("x"), ValueError(), MemoryError(), Fatal("x"), RuntimeError()]
    assert {classify(e) for e in recoverable} == {Recoverable} and {classify(e) for e in fatal} == {Fatal}
    import pickle

    copy = pickle.loads(pickle.dumps(Recoverable("x", 3, True)))
    assert (str(copy), copy.peer, copy.late) == ("x", 3, True)
