"""What goes over the wire, and when: bytes by rank against the closed forms, overlap against the model."""

from __future__ import annotations

import pytest
import torch
from slices import few
from torch import nn

import labkit
from labkit import Link, Network, cost
from labkit.models import GPT, MLP, GPTConfig, MLPConfig, next_token_loss
from labkit.parallel import DataParallel, kernels

pytestmark = pytest.mark.ranks

SMALL = {"bucket_bytes": 20_000, "first_bucket_bytes": 2_000}


def tokens(group):
    x = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(group.rank))
    return x[:, :-1], x[:, 1:]


def sent_in(run, step):
    """Payload bytes that each rank sent in a training step."""
    sent = [0] * run.trace.world_size
    for m in run.trace.sends:
        if m.step == step:
            sent[m.src] += m.nbytes
    return sent


@pytest.mark.parametrize("size", few([3, 1, 2, 4, 5], 2))
def test_a_step_sends_one_all_reduce_of_each_bucket_and_nothing_else(size):
    def work(group, options):
        model = DataParallel(GPT(GPTConfig(context=16, width=32, layers=2)), group, algorithm="ring", **options)
        optimizer = torch.optim.AdamW(model.parameters())
        planned = []
        for step in range(3):
            group.step(step)
            optimizer.zero_grad()
            x, y = tokens(group)
            next_token_loss(model(x), y).backward()
            planned.append(model.buckets)
            optimizer.step()
        return planned

    for options in (SMALL, {}):
        run = labkit.launch(work, size, options, transport="local")
        buckets = run.results[0][2]
        by_rank = [cost.ring_all_reduce_bytes_by_rank(b.nbytes // 4, 4, size) for b in buckets]
        assert sent_in(run, 2) == [sum(column) for column in zip(*by_rank, strict=True)]
        total = sum(b.nbytes for b in buckets)
        assert total == 4 * GPTConfig(context=16, width=32, layers=2).num_parameters
        exact = 2 * (size - 1) * total  # 2 (N-1)/N of the gradients, for all ranks together, to the byte
        assert sum(sent_in(run, 2)) == exact
        calls = [c for c in run.trace.collectives() if c.rank == 0 and c.step == 2]
        assert [(c.name, c.nbytes) for c in calls] == [("all_reduce", b.nbytes) for b in buckets]


def test_the_first_bucket_is_small_and_buckets_follow_arrival_after_the_first_step():
    class Crossed(nn.Module):
        """Declared a, b, c, used b, c, a: gradients arrive a, c, b."""

        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(10, 10, bias=False) for _ in range(3))

        def forward(self, x):
            return self.a(self.c(self.b(x)))

    def work(group, rebuild):
        model = DataParallel(Crossed(), group, bucket_bytes=500, first_bucket_bytes=100, rebuild=rebuild)
        found = []
        for _ in range(3):
            x = torch.ones(2, 10)
            model(x).sum().backward()
            found.append([b.names for b in model.buckets])
        return found

    first, then = [("c.weight",), ("b.weight", "a.weight")], [("a.weight",), ("c.weight", "b.weight")]
    for found in labkit.launch(work, 2, True).results:
        assert found == [first, then, then]
    for found in labkit.launch(work, 2, False).results:
        assert found == [first, first, first]


def test_the_new_order_is_that_of_rank_0_where_ranks_saw_different_ones():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))

        def forward(self, x, order):
            for i in order:
                x = self.parts[i](x)
            return x

    def work(group):
        model = DataParallel(Either(), group, bucket_bytes=64, first_bucket_bytes=64)
        order = [2, 0, 3, 1] if group.rank == 0 else [1, 0, 2, 3]
        for _ in range(3):
            model.zero_grad()
            model(torch.full((2, 4), group.rank + 1.0), order).sum().backward()
        return [b.names for b in model.buckets], [p.grad.clone() for p in model.parameters()]

    results = labkit.launch(work, 3).results
    for buckets, gradients in results:
        assert buckets == [("parts.1.weight",), ("parts.3.weight",), ("parts.0.weight",), ("parts.2.weight",)]
        assert all(torch.equal(a, b) for a, b in zip(gradients, results[0][1], strict=True))


# Ten layers of 256 x 256: 262,144 bytes each. The device takes 1 ms for a layer forward, 2 ms backward.
WIDTHS = (256,) * 11
LAYER, FORWARD, BACKWARD = 256 * 257 * 4, 1e-3, 2e-3


def overlap_of_a_step(size, bandwidth, latency, **options):
    def work(group):
        module = MLP(MLPConfig(WIDTHS))
        kernels(module, group, lambda layer: (FORWARD, BACKWARD))
        model = DataParallel(module, group, algorithm="ring", **options)
        for step in range(3):
            group.step(step)
            model.zero_grad()
            model(torch.zeros(1, 256)).sum().backward()

    link = Link(bandwidth, latency)
    network = Network(nodes=size, ranks_per_node=1, intra=link, inter=link)
    run = labkit.launch(work, size, clock="virtual", network=network)
    rows = run.trace.step_breakdown(2)
    hidden = [r["overlapped"] / (r["overlapped"] + r["transfer"] + r["waiting"]) for r in rows]
    return min(hidden), max(r["total"] for r in rows)


@pytest.mark.parametrize("size", [2, 4])
def test_backward_hides_at_least_80_percent_where_the_model_says_it_can(size):
    bandwidth, latency = 1e9, 10e-6
    one = cost.ring_all_reduce_time(LAYER, size, latency, 1 / bandwidth)
    assert one < BACKWARD, "a bucket is through before the next one is full: only the last one can show"
    hidden, seconds = overlap_of_a_step(size, bandwidth, latency, bucket_bytes=LAYER, first_bucket_bytes=LAYER)
    assert hidden >= 0.8
    assert hidden == pytest.approx(0.9, abs=0.02), "nine of ten buckets"
    assert seconds == pytest.approx(10 * (FORWARD + BACKWARD) + one, rel=0.02)


def test_with_one_bucket_or_a_slow_wire_little_can_be_hidden():
    everything = {"bucket_bytes": 1 << 30, "first_bucket_bytes": 1 << 30}
    hidden, seconds = overlap_of_a_step(2, 1e9, 10e-6, **everything)
    whole = cost.ring_all_reduce_time(10 * LAYER, 2, 10e-6, 1e-9)
    assert hidden <= 0.01 and seconds == pytest.approx(10 * (FORWARD + BACKWARD) + whole, rel=0.02)

    hidden, seconds = overlap_of_a_step(2, 2e7, 10e-6, bucket_bytes=LAYER, first_bucket_bytes=LAYER)
    one = cost.ring_all_reduce_time(LAYER, 2, 10e-6, 1 / 2e7)
    assert one > BACKWARD and hidden < 0.25
    assert seconds == pytest.approx(10 * FORWARD + BACKWARD + 10 * one, rel=0.02), "the wire is busy from the first"
