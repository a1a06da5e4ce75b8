"""Operations take the time of an emulated GPU: products by the roofline, the rest by its bytes, and nothing twice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import labkit
from labkit.parallel.emulated_gpu import EmulatedGpu, Speeds

pytestmark = pytest.mark.ranks
GPU = Speeds(products=1e6, attention=5e5, memory=1e6)


def took(group, work):
    """Seconds of `work()` on the virtual clock."""
    clock = group.context.clock_here()
    begin = clock.now()
    with EmulatedGpu(group, GPU):
        work()
    return (clock.now() - begin) / 1e9


def seconds(group):
    a, b, x = torch.zeros(64, 32), torch.zeros(32, 48), torch.zeros(1000)
    q = torch.zeros(1, 2, 16, 8, requires_grad=True)
    w = torch.zeros(32, 48, requires_grad=True)
    narrow, row = torch.zeros(1, 32), torch.zeros(1, 8)
    table, ids = torch.zeros(1000, 4), torch.arange(5)

    def fused():
        with group.compute(3.0):
            a @ b

    return {
        "product": took(group, lambda: a @ b), "narrow": took(group, lambda: narrow @ b),
        "backward": took(group, lambda: (a @ w).backward(torch.ones(64, 48))),
        "add": took(group, lambda: x + x), "add_": took(group, lambda: x.add_(x)), "zero_": took(group, x.zero_),
        "copy_": took(group, lambda: x.copy_(x.clone())), "views": took(group, lambda: a.view(-1)[3:].unsqueeze(0)),
        "expanded": took(group, lambda: row.expand(100, 8) * 1.0), "integers": took(group, lambda: ids + ids),
        "embedding": took(group, lambda: F.embedding(ids, table)),
        "attention": took(group, lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)),
        "both": took(group, lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True).backward(q.detach())),
        "collective": took(group, lambda: labkit.collectives.all_reduce(torch.ones(1000), group)),
        "fused": took(group, fused),
    }  # fmt: skip


def test_what_operations_take():
    found = labkit.launch(seconds, 2, clock="virtual", transport="local").results[1]
    product = 2 * 64 * 32 * 48 / 1e6
    attention = 2 * 2 * 2 * 8 * (16 * 17 / 2) / 5e5
    wanted = {
        "product": product, "narrow": 4 * (32 + 32 * 48 + 48) / 1e6,  # waits for memory
        "add": 12e3 / 1e6, "add_": 12e3 / 1e6, "zero_": 4e3 / 1e6, "copy_": 16e3 / 1e6, "views": 0.0, "integers": 0.0,
        "expanded": 4 * (8 + 800) / 1e6, "embedding": 2 * 80 / 1e6, "attention": attention, "fused": 3.0,
        "collective": 4e3 / 1e6,  # the ones; what the collective adds up is its own
    }  # fmt: skip
    for name, time in wanted.items():
        assert found[name] == pytest.approx(time, rel=1e-6, abs=1e-8), name
    ones = 4 * 64 * 48 / 1e6
    assert found["backward"] == pytest.approx(2 * product + ones, rel=1e-6)  # forward, and the weights' gradient
    assert found["both"] >= 3.5 * attention
