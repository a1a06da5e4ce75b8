"""Tensors on a GPU over gloo and local. There was no GPU: tensors of the CPU play the part, by another predicate.

What that shows is the way of the data: the transport sees host buffers only, and what arrives reaches the tensor
through the operator. It does not show that CUDA's copies are ordered as they should be; `test_gpu.py` would.
"""

from __future__ import annotations

import pytest
import torch
from slices import TRANSPORTS

import labkit
from labkit import RankFailed, collectives
from labkit.book import record
from labkit.wire.ops import MAX, SUM

pytestmark = pytest.mark.ranks


def stage_everything() -> list[int]:
    """In a rank: take every tensor for one on a GPU. Returns the list in which staged bytes are counted from now on."""
    from labkit.wire import messenger, staging

    seen: list[int] = []
    room = staging._room

    def watched(m):
        seen.append(m.nbytes)
        return room(m)

    staging._room = watched
    staging.needs_staging = lambda x: True
    lane = messenger.Messenger._move

    def checked(self, send, recv, *messages):
        run = self._lane.run

        def look(*messages, **limits):
            for _, m in messages:  # neither the bytes nor the sum may touch the tensor's own memory
                assert m.nbytes == 0 or m.raw.data_ptr() != m.x.data_ptr()
                assert m.op is None
            return run(*messages, **limits)

        self._lane.run = look
        try:
            return lane(self, send, recv, *messages)
        finally:
            del self._lane.run

    messenger.Messenger._move = checked
    return seen


def every_door(group):
    seen = stage_everything()
    me, other = float(group.rank + 1), 1 - group.rank
    x, like, total = torch.full((3, 5), me), torch.zeros(3, 5), torch.full((7,), me)
    group.exchange(x, other, like, other)
    group.exchange(torch.full((7,), me), other, total, other, SUM)
    if group.rank == 0:
        group.send(x, 1)
        late = group.isend(x, 1)
        late.wait()
        return like.sum().item(), total.tolist(), len(seen)
    got, most = torch.zeros(3, 5), torch.tensor([[1.5], [0.5], [0.5]]).repeat(1, 5)
    group.recv(got, 0)
    handle = group.irecv(most, 0, MAX)
    assert handle.wait() is most
    return like.sum().item(), total.tolist(), len(seen), got.sum().item(), most.sum().item()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_call_takes_the_way_through_host_memory(transport: str) -> None:
    run = labkit.launch(every_door, 2, transport=transport)
    assert run.results == [(30.0, [3.0] * 7, 6), (15.0, [3.0] * 7, 6, 15.0, 17.5)]
    assert run.trace.bytes_sent() == [3 * 60 + 28, 60 + 28]  # the payload, once
    combined = [m.combine for m in run.trace.recvs if m.dst == 1]
    assert combined == [False, True, False, True]


def all_reduces(group):
    x = torch.arange(103.0) * (group.rank + 1)
    plain = [collectives.all_reduce(x.clone(), group, algorithm=name) for name in ("ring", "tree", "halving_doubling")]
    seen = stage_everything()
    staged = [collectives.all_reduce(x.clone(), group, algorithm=name) for name in ("ring", "tree", "halving_doubling")]
    assert seen
    handle = collectives.all_reduce(x, group, algorithm="ring", async_op=True)
    return all(map(torch.equal, plain, staged)) and torch.equal(handle.wait(), plain[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_collectives_give_the_same_and_can_be_replayed(transport: str) -> None:
    run = labkit.launch(all_reduces, 3, transport=transport)
    assert run.results == [True] * 3
    assert record(run.trace, nth=3).flaws == []


def test_empty_messages_arrive() -> None:
    def work(group):
        stage_everything()
        x, like, other = torch.zeros(0), torch.zeros(0), 1 - group.rank
        group.exchange(x, other, like, other)
        group.exchange(torch.zeros(0), other, like, other, SUM)
        return tuple(like.shape)

    assert labkit.launch(work, 2, transport="local").results == [(0,), (0,)]


def test_a_wire_between_gpus_refuses_a_tensor_of_the_cpu() -> None:
    def work(group):
        group.context.transport.host_memory = False  # as over nccl
        group.send(torch.zeros(2), 1 - group.rank)

    with pytest.raises(RankFailed, match="needs a tensor on cpu, and this one is on cpu: call .to.group.device."):
        labkit.launch(work, 2, transport="local")
