"""Asynchronous collectives: in order on their own lane, beside the reader's own messages."""

from __future__ import annotations

import time

import pytest
import torch
from leftovers import NEVER
from slices import WIRES

import labkit
from labkit import RankFailed, collectives

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("transport", WIRES)
def test_they_run_in_the_order_of_their_calls(transport) -> None:
    def work(group):
        tensors = [torch.full((100,), float(i + group.rank)) for i in range(12)]
        handles = [collectives.all_reduce(x, group, algorithm=("ring", "tree", "native")[i % 3], async_op=True)
                   for i, x in enumerate(tensors)]  # fmt: skip
        last = collectives.all_reduce(torch.ones(1), group, algorithm="ring")  # a blocking one waits its turn
        done = [h.done() for h in handles]
        return [float(h.wait()[0]) for h in handles], float(last), done

    for values, last, done in labkit.launch(work, 3, transport=transport).results:
        assert values == [3.0 * i + 3 for i in range(12)] and last == 3 and all(done)


@pytest.mark.parametrize("transport", WIRES)
def test_they_overlap_with_the_readers_own_messages(transport) -> None:
    def work(group):
        other = 1 - group.rank
        x = torch.ones(1 << 20)
        handle = collectives.all_reduce(x, group, algorithm="ring", async_op=True)
        got = [int(group.exchange(torch.tensor([i]), other, torch.tensor([-1]), other)) for i in range(50)]
        posted = group.irecv(torch.zeros(3), other), group.isend(torch.ones(3), other)
        for h in posted:
            h.wait()
        return got == list(range(50)), float(handle.wait().min()), float(posted[0].wait().sum())

    assert labkit.launch(work, 2, transport=transport).results == [(True, 2.0, 3.0)] * 2


def test_the_call_returns_before_the_work_can_end(tmp_path) -> None:
    def work(group):
        called = tmp_path / "called"
        while group.rank == 1 and not called.exists():  # it takes part only when the other's call has returned
            time.sleep(0.01)
        handle = collectives.all_reduce(torch.ones(4), group, algorithm="ring", async_op=True)
        called.touch()
        return handle.wait().tolist()

    assert labkit.launch(work, 2, timeout=NEVER).results == [[2.0] * 4] * 2


def test_an_error_comes_out_of_wait() -> None:
    def work(group):
        if group.rank == 1:
            raise ValueError("left")
        handle = collectives.all_reduce(torch.ones(4), group, algorithm="ring", async_op=True)
        try:
            handle.wait()
        except labkit.PeerLost as error:
            return str(error)

    run = labkit.launch(work, 2, transport="local", on_failure="continue")
    assert [(f.rank, f.error) for f in run.failures] == [(1, "ValueError")]
    assert "rank 0 lost rank 1" in run.results[0]


def test_a_bad_call_is_refused_at_once_and_not_in_the_background() -> None:
    with pytest.raises(RankFailed, match="raised RefusedError|raised TypeError"):
        labkit.launch(lambda g: collectives.all_reduce(torch.ones(4) > 0, g, algorithm="ring", async_op=True), 2)
