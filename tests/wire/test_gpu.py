"""What only a GPU can show, beside `test_nccl.py`. Skipped without one; ranks may share a GPU where that is said."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from slices import TRANSPORTS

import labkit
from labkit import collectives, cost
from labkit.wire.accelerator import of, poll
from labkit.world.devices import gpu_count

pytestmark = [pytest.mark.ranks, pytest.mark.gpu, pytest.mark.skipif(gpu_count() < 1, reason="needs a CUDA device")]


def on_the_gpu(group):
    torch.cuda.set_device(group.rank % torch.cuda.device_count())
    x = torch.full((1003,), float(group.rank + 1), device="cuda")
    y = collectives.all_reduce(x * 2, group, algorithm="ring")  # the product is still queued when the first send begins
    handle = collectives.all_reduce(x.clone(), group, algorithm="ring", async_op=True)
    return y.device.type, y.unique().tolist(), handle.wait().unique().tolist()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_staged_all_reduce_of_cuda_tensors(transport: str) -> None:
    run = labkit.launch(on_the_gpu, 2, backend="gloo", transport=transport)
    assert run.results == [("cuda", [6.0], [3.0])] * 2
    assert run.trace.bytes_sent() == [2 * n for n in cost.ring_all_reduce_bytes_by_rank(1003, 4, 2)]


def over_nccl(group):
    x = torch.full((1003,), float(group.rank + 1), device=group.device)
    return collectives.all_reduce(x, group, algorithm="ring").unique().tolist()


@pytest.mark.skipif(gpu_count() < 2, reason="needs two CUDA devices")
def test_bytes_of_an_all_reduce_over_nccl() -> None:
    run = labkit.launch(over_nccl, 2, backend="nccl", transport="nccl")
    assert run.results == [[3.0]] * 2
    assert run.trace.bytes_sent() == cost.ring_all_reduce_bytes_by_rank(1003, 4, 2)


def slow_kernel(group):
    a = torch.randn(4096, 4096, device=group.device)
    torch.mm(a, a)
    torch.cuda.synchronize()
    with group.span("queued"):
        for _ in range(50):
            a = torch.mm(a, a) / 4096
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(50):
        a = torch.mm(a, a) / 4096
    ended.record()
    torch.cuda.synchronize()
    return begun.elapsed_time(ended) / 1e3


def test_a_span_takes_the_time_of_the_gpu_and_not_of_the_queue() -> None:
    run = labkit.launch(slow_kernel, 1, backend="nccl")
    (span,) = run.trace.spans("queued")
    assert span.end - span.start == pytest.approx(run.results[0], rel=0.3)


def streams_and_memory(group):
    device, x = of(group.device), torch.zeros(4, device=group.device)
    torch.cuda.synchronize()
    with device.use(device.stream()):
        torch.cuda._sleep(500_000_000)  # clock cycles
        device.launch(torch.Tensor.fill_, x, 3.0)
        event = device.event()
    early = event.query()
    over = poll(event.query, time.monotonic() + 30, lambda: None)
    room = device.host_room(16)
    return early, over, x.tolist(), device.holds(x), device.holds(room), room.is_pinned()


def test_work_is_queued_and_an_event_tells_its_end() -> None:
    run = labkit.launch(streams_and_memory, 1, backend="nccl")
    assert run.results == [(False, True, [3.0] * 4, True, False, True)]


def a_communicator_alone(group):
    device, store = of(group.device), dist.HashStore()
    first = device.communicator(store, 0, 1, "alone")
    made = poll(first._is_initialized, time.monotonic() + 30, lambda: None)
    second = device.communicator(store, 0, 1, "split", first)
    split = poll(second._is_initialized, time.monotonic() + 30, lambda: None)
    whole = device.failure(first), device.failure(second)
    for one in (second, first):
        one.abort()
    return made, split, whole


def test_a_communicator_is_made_without_blocking_split_and_aborted() -> None:
    assert labkit.launch(a_communicator_alone, 1, backend="nccl").results == [(True, True, (None, None))]


def nobody_comes(group):
    device = of(group.device)
    one = device.communicator(dist.HashStore(), 0, 2, "without rank 1")
    made = poll(one._is_initialized, time.monotonic() + 2, lambda: None)
    one.abort()
    return made


def test_a_communicator_without_a_member_is_not_there_and_can_be_aborted() -> None:
    assert labkit.launch(nobody_comes, 1, backend="nccl").results == [False]
