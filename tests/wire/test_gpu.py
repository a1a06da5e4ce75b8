"""What only a GPU can show. Skipped without one; each needs two ranks, which may share a GPU where that is said."""

from __future__ import annotations

import pytest
import torch
from slices import TRANSPORTS

import labkit
from labkit import collectives, cost
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
