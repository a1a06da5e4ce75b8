"""The timeline of buckets: against its max-plus closed form, and against real ranks on the virtual clock."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

import labkit
from labkit import Link, Network, collectives, cost
from labkit.cost.units import MB, MS, MiB

layers = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 10**8)), min_size=1, max_size=20)
limits = st.floats(1, 1e9)
LINKS = cost.Links(1e-5, 1e-9)


def step_of(layers, size=4, links=LINKS, **options):
    backward, nbytes = zip(*layers, strict=True)
    return cost.data_parallel_step(backward, nbytes, size, links, **options)


@given(nbytes=st.lists(st.integers(0, 1000), max_size=40), limit=st.floats(1, 3000), first=st.floats(1, 3000))
def test_buckets_are_filled_in_order_and_closed_when_full(nbytes, limit, first):
    buckets = cost.fill_buckets(nbytes, limit, first)
    assert [i for bucket in buckets for i in bucket] == list(range(len(nbytes)))
    for number, bucket in enumerate(buckets):
        held, room = sum(nbytes[i] for i in bucket), limit if number else first
        assert held >= room or number == len(buckets) - 1
        assert held - nbytes[bucket[-1]] < room  # it was not full before its last gradient


def test_the_sizes_of_pytorch():
    assert (cost.BUCKET_BYTES, cost.FIRST_BUCKET_BYTES) == (25 * MiB, MiB)
    # 10 gradients of 5 MiB: the first is over 1 MiB at once, then five make 25 MiB.
    assert cost.fill_buckets([5 * MiB] * 10) == [(0,), (1, 2, 3, 4, 5), (6, 7, 8, 9)]
    assert cost.fill_buckets([]) == []


@given(layers=layers, limit=limits, first=limits, size=st.integers(1, 9))
def test_the_last_end_is_the_longest_way_through(layers, limit, first, size):
    step = step_of(layers, size, bucket_bytes=limit, first_bucket_bytes=first)
    backward = [seconds for seconds, _ in layers]
    # Max-plus: the stream ends when, for some bucket, it waits for that one and then sends all from it on.
    takes = [cost.ring_all_reduce_time(sum(layers[i][1] for i in b.gradients), size, 1e-5, 1e-9) for b in step.buckets]
    ready = [sum(backward[: b.gradients[-1] + 1]) for b in step.buckets]
    last = max(ready[i] + sum(takes[i:]) for i in range(len(takes)))
    assert step.buckets[-1].end == pytest.approx(last)
    assert step.communication == pytest.approx(sum(takes))
    assert step.hidden + step.exposed == pytest.approx(step.communication)
    assert step.seconds == pytest.approx(max(last, sum(backward)))
    assert 0 <= step.overlap <= 1 + 1e-9 and step.seconds <= step.seconds_without_overlap * (1 + 1e-9)
    assert all(b.waiting >= 0 for b in step.buckets)


def test_one_bucket_hides_nothing_and_many_hide_nearly_all():
    layers = [(0.010, 10 * MB)] * 10
    one = step_of(layers, bucket_bytes=1e9, first_bucket_bytes=1e9)
    many = step_of(layers, bucket_bytes=1, first_bucket_bytes=1, links=cost.Links(0, 0.5e-9))  # 7.5 ms each
    assert one.overlap == 0 and len(one.buckets) == 1
    assert many.overlap == pytest.approx(0.9) and many.exposed == pytest.approx(0.0075)  # all but the last bucket
    assert many.seconds == pytest.approx(0.1075) and many.seconds_without_overlap == pytest.approx(0.175)


def test_a_slow_network_is_never_done_before_its_bytes():
    step = step_of([(0.010, 10 * MB)] * 10, links=cost.Links(0, 1e-8), forward=0.05)
    assert step.forward == 0.05 and step.backward == pytest.approx(0.1)
    assert step.exposed > 0.5 * step.communication and step.seconds > 0.05 + step.communication


def test_one_rank_sends_nothing_and_no_gradients_take_no_time():
    assert step_of([(0.01, 1000)], size=1).communication == 0 and step_of([(0.01, 1000)], size=1).overlap == 1
    empty = cost.data_parallel_step([], [], 4, LINKS)
    assert (empty.seconds, empty.exposed, empty.communication) == (0, 0, 0)


def run_buckets(group, backward, numels):
    """A backward pass of stand-in kernels, with one asynchronous all-reduce behind each layer."""
    group.barrier()
    gradients, handles = [torch.ones(n) for n in numels], []
    for seconds, gradient in zip(backward, gradients, strict=True):
        group.compute(seconds)
        handles.append(collectives.all_reduce(gradient, group, algorithm="ring", async_op=True))
    for handle in handles:
        handle.wait()
    return [float(gradient[0]) for gradient in gradients]


@pytest.mark.ranks
@pytest.mark.parametrize("bandwidth", [1e7, 1e8, 1e9])
def test_real_ranks_take_the_time_of_the_model(bandwidth):
    # 1e7: the wire is the bottleneck; 1e9: the backward pass is. Sizes divide by 4.
    backward, numels = [2 * MS, 5 * MS, 1 * MS, 4 * MS], [4000, 12_000, 800, 20_000]
    link = Link(bandwidth=bandwidth, latency=20e-6)
    run = labkit.launch(run_buckets, 4, backward, numels, clock="virtual", network=Network(intra=link))
    assert run.results == [[4.0] * 4] * 4
    links = cost.Links(link.latency, 1 / link.bandwidth)
    model = cost.data_parallel_step(
        backward, [4 * n for n in numels], 4, links, bucket_bytes=1, first_bucket_bytes=1, algorithm="ring"
    )
    began = min(span.start for span in run.trace.spans("compute"))
    ended = max(message.arrived for message in run.trace.recvs)
    assert ended - began == pytest.approx(model.seconds, rel=1e-3)


@given(per_rank=st.integers(1, 100), size=st.integers(1, 100), accumulation=st.integers(1, 100))
def test_the_global_batch(per_rank, size, accumulation):
    batch = cost.global_batch(per_rank, size, accumulation)
    assert batch == sum(per_rank for _ in range(size) for _ in range(accumulation))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.data_parallel_step([1], [1, 2], 4, LINKS), "backward has 1, nbytes 2"),
        (lambda: cost.data_parallel_step([1, -1], [1, 2], 4, LINKS), r"backward\[1\] .*-1"),
        (lambda: cost.data_parallel_step([1], [-1], 4, LINKS), r"nbytes\[0\] .*-1"),
        (lambda: cost.data_parallel_step([1], [1], 0, LINKS), "size .*0"),
        (lambda: cost.data_parallel_step([1], [1], 2, LINKS, forward=-1), "forward .*-1"),
        (lambda: cost.data_parallel_step([1], [1], 2, LINKS, algorithm="bus"), "no closed form .*'bus'"),
        (lambda: cost.fill_buckets([1], 0), "bucket_bytes .*0"),
        (lambda: cost.global_batch(16, 8, 0), "accumulation .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
