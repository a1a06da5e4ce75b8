"""Stand-in kernels: layers take exactly the time they are given, before their gradients are ready."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import labkit
from labkit.models import GPT, GPTConfig
from labkit.parallel import kernels
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def spans(run, rank=0):
    """(start, end) of each compute span of a rank, in microseconds."""
    return [(round(s.start * 1e6), round(s.end * 1e6)) for s in run.trace.spans("compute") if s.rank == rank]


def test_layers_take_their_time_forward_then_backward_in_reverse():
    def work(group):
        module = net()
        kernels(module, group, {"0": (1e-3, 2e-3), "2": (3e-3, 5e-3)})
        module(torch.ones(1, 4)).sum().backward()

    # 1 and 3 ms forward; 5 and 2 ms backward
    assert spans(labkit.launch(work, 1, clock="virtual")) == [(0, 1000), (1000, 4000), (4000, 9000), (9000, 11000)]


def test_the_time_passes_before_the_gradients_are_ready():
    def work(group):
        module, ready = net(), []
        kernels(module, group, {"0": (0, 2e-3), "2": (0, 5e-3)})
        for name, p in module.named_parameters():
            p.register_post_accumulate_grad_hook(
                lambda _, n=name: ready.append((n[0], round(group.context.clock_here().now() / 1e3)))
            )
        start = round(group.context.clock_here().now() / 1e3)
        module(torch.ones(1, 4)).sum().backward()
        return {(layer, t - start) for layer, t in ready}

    assert labkit.launch(work, 1, clock="virtual").results == [{("2", 5000), ("0", 7000)}]


def test_by_function_and_by_rate():
    def by_function(group):
        module = net()
        kernels(module, group, lambda layer: (1e-3, 2e-3) if isinstance(layer, nn.Linear) else (0.0, 0.0))
        module(torch.ones(1, 4)).sum().backward()

    def by_rate(group):
        module = GPT(GPTConfig())
        kernels(module, group, flops=1e12)
        module(torch.zeros(3, 64, dtype=torch.int64)).sum().backward()

    assert sum(end - start for start, end in spans(labkit.launch(by_function, 1, clock="virtual"))) == 2 * 3000
    config = GPTConfig()
    matrices = config.layers * 12 * config.width**2 + config.vocab * config.width
    run = labkit.launch(by_rate, 1, clock="virtual")
    seconds = sum(s.end - s.start for s in run.trace.spans("compute"))
    assert seconds == pytest.approx(6 * matrices * 3 * 64 / 1e12, rel=1e-3), "6 P operations a token, in the products"


def test_a_convolution_counts_its_outputs():
    def work(group):
        module = nn.Conv2d(3, 8, 3)
        with kernels(module, group, flops=1e9):
            module(torch.ones(2, 3, 6, 6))

    assert spans(labkit.launch(work, 1, clock="virtual")) == [(0, round(2 * (2 * 8 * 4 * 4) * 27 / 1e3))]


def test_a_layer_called_twice_takes_its_time_twice_each_way():
    def work(group):
        layer = nn.Linear(4, 4)
        kernels(layer, group, {"": (1e-3, 2e-3)})
        layer(layer(torch.ones(1, 4))).sum().backward()

    assert [e - s for s, e in spans(labkit.launch(work, 1, clock="virtual"))] == [1000, 1000, 2000, 2000]


def test_without_gradients_there_is_no_backward_and_removed_there_is_nothing():
    def work(group):
        module = net()
        with kernels(module, group, {"0": (1e-3, 2e-3)}):
            with torch.no_grad():
                module(torch.ones(1, 4))
            module(torch.ones(1, 4)).sum().backward()
        module(torch.ones(1, 4)).sum().backward()

    assert [e - s for s, e in spans(labkit.launch(work, 1, clock="virtual"))] == [1000, 1000, 2000]


def test_a_forward_without_gradients_between_forward_and_backward_changes_nothing():
    def work(group):
        layer = nn.Linear(10, 10)
        kernels(layer, group, flops=1e6)
        loss = layer(torch.ones(1, 10)).sum()
        with torch.no_grad():
            layer(torch.ones(5, 10))
        loss.backward()

    assert [e - s for s, e in spans(labkit.launch(work, 1, clock="virtual"))] == [200, 1000, 400]


def test_what_cannot_work_is_refused():
    def work(group):
        found = []
        for args, options in [((), {}), (({},), {"flops": 1}), ((), {"flops": 0}), (({"9": (1, 1)},), {})]:
            with pytest.raises(RefusedError) as refusal:
                kernels(net(), group, *args, **options)
            found.append(str(refusal.value))
        return found

    either, both, none, unknown = labkit.launch(work, 1).results[0]
    assert "either" in either and "either" in both and "more than 0" in none and "no part called '9'" in unknown


def test_three_numbers_are_forward_and_both_gradients():
    def work(group):
        layer = nn.Linear(4, 4)
        with kernels(layer, group, {"": (1e-3, 2e-3, 4e-3)}):
            layer(torch.ones(1, 4)).sum().backward()

    assert [e - s for s, e in spans(labkit.launch(work, 1, clock="virtual"))] == [1000, 6000]
