"""Plain torch.distributed calls inside a rank: recorded, counted, diagnosed."""

import pytest
import torch
import torch.distributed as dist
from leftovers import NEVER

import labkit

pytestmark = pytest.mark.ranks


def failure(fn, size=2):
    with pytest.raises(labkit.RankFailed) as caught:
        labkit.launch(fn, size, timeout=NEVER)
    return str(caught.value)


def test_they_work_and_are_on_the_trace_with_measured_bytes():
    def program(group):
        x = torch.full((250_000,), float(group.rank))
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        return x[0].item()

    run = labkit.launch(program, 4)
    assert run.results == [6.0] * 4
    assert [c.name for c in run.trace.collectives() if c.rank == 2] == ["all_reduce", "broadcast"]
    total = sum(run.trace.bytes_sent()) / 1e6
    assert total == pytest.approx(4 * 1.5 + 3, rel=0.1)  # 2 (p-1)/p M each, and p-1 copies


def test_a_mismatch_is_named():
    def program(group):
        dist.all_reduce(torch.ones(8, dtype=torch.int32 if group.rank else torch.float32))

    text = failure(program)
    assert "rank 1 called all_reduce on int32[8]" in text and "rank 0 called all_reduce on float32[8]" in text


def test_different_operations_are_named():
    text = failure(lambda group: dist.barrier() if group.rank else dist.all_reduce(torch.ones(8)))
    assert "rank 1 called barrier" in text and "rank 0 called all_reduce" in text


def test_a_deadlock_of_receives_is_named():
    text = failure(lambda group: dist.recv(torch.ones(8), 1 - group.rank))
    assert "ranks 0 and 1 wait for each other" in text


def test_a_rank_that_left_is_named():
    text = failure(lambda group: None if group.rank else dist.all_reduce(torch.ones(8)))
    assert "rank 1 has finished while others wait for it" in text


@pytest.mark.parametrize("way", ["isend", "irecv"])
def test_an_asynchronous_message_with_a_rank_that_left_is_named(way):
    def program(group):
        if group.rank == 0:
            getattr(dist, way)(torch.ones(8), 1).wait()

    assert "rank 1 has finished while others wait for it" in failure(program)


def test_an_isend_that_nobody_takes_or_waits_for_is_named():
    def program(group):
        if group.rank == 0:
            dist.isend(torch.ones(8), 1)

    text = failure(program)
    assert "send float32[8] to rank 1" in text or "sent float32[8] to rank 1" in text


def test_waits_for_handles_in_a_circle_are_named():
    def program(group):
        dist.barrier()  # the two are connected
        dist.irecv(torch.ones(8), 1 - group.rank).wait()

    assert "ranks 0 and 1 wait for each other" in failure(program)


def test_asynchronous_messages_arrive_alone_and_in_a_batch():
    def program(group):
        other, x, y, z = 1 - group.rank, torch.full((3,), float(group.rank)), torch.zeros(3), torch.zeros(3)
        sending, receiving = dist.isend(x, other), dist.irecv(y, other)
        receiving.wait()
        sending.wait()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, z, other)]):
            work.wait()
        return y.tolist(), z.tolist()

    run = labkit.launch(program, 2)
    assert run.results == [([1.0] * 3, [1.0] * 3), ([0.0] * 3, [0.0] * 3)]
    assert [m.nbytes for m in run.trace.sends if m.src == 0] == [12, 12]
