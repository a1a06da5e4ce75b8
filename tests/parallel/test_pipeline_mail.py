"""Messages of a pipeline: no order of arrival can deadlock, nothing is kept longer than needed; layers with a time."""

from __future__ import annotations

import gc
import random
import time
import weakref

import pytest
import torch
import torch.nn.functional as F
from slices import SLOW_WIRES, TRANSPORTS
from torch import nn

from labkit import launch
from labkit.collectives import all_reduce
from labkit.models import GPT, MLP, GPTConfig, MLPConfig, next_token_loss
from labkit.parallel import Mesh, kernels
from labkit.parallel.pipeline import (
    Backward,
    Forward,
    InputGradient,
    Pipeline,
    gpipe,
    gpt_stages,
    interleaved,
    naive,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)
from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.traffic import incoming, made_by, needed_by

pytestmark = pytest.mark.ranks

WIDE = 400_000  # numbers: 1.6 MB, more than a socket holds


class Late(nn.Module):
    """A stage that takes its time, a different one for each call and rank."""

    def __init__(self, seed):
        super().__init__()
        self.weight, self.random = nn.Parameter(torch.ones(1)), random.Random(seed)

    def forward(self, x):
        time.sleep(self.random.choice([0, 0, 0.003, 0.01]))
        y = x * self.weight
        if y.requires_grad:
            y.register_hook(lambda g: time.sleep(self.random.choice([0, 0, 0.003, 0.01])))
        return y


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_no_order_of_arrival_deadlocks_and_messages_may_be_larger_than_what_a_socket_holds(transport):
    def on_rank(group):
        found = []
        for schedule in (gpipe(3, 5), interleaved(3, 3), zb_v(3, 5), zb_h2(3, 4)):
            for ahead in (0, 3):
                modules = [Late(10 * group.rank + c) for c in range(schedule.chunks)]
                x = torch.ones(schedule.microbatches, WIDE)
                Pipeline(modules, group, lambda y, t: y.mean(), ahead=ahead).execute(schedule, x, x)
                found.append([float(m.weight.grad) for m in modules])
        return found

    for result in launch(on_rank, 3, transport=transport, timeout=30).results:
        for gradients in result:
            assert all(abs(g - 1) < 1e-3 for g in gradients)


def test_tensors_are_let_go_of_when_they_were_taken():
    def on_rank(group):
        gc.freeze()  # what is there before makes each look slow
        sent, taken, begin = [], [], group.isend

        def isend(x, to):
            sent.append(weakref.ref(x))
            handle = begin(x, to)
            taken.append(handle.done)
            return handle

        def left():
            gc.collect()
            return sum(ref() is not None for ref in sent)

        def eventually(so):
            until = time.monotonic() + 10
            while not so() and time.monotonic() < until:
                time.sleep(0.001)

        group.isend = isend
        alive = []

        class Looks(nn.Linear):
            def forward(self, x):
                alive.append(left())
                eventually(lambda: all(done() for done in taken))  # the other rank takes what was sent
                return super().forward(x)

        x = torch.ones(8, 4)
        Pipeline(Looks(4, 4), group, F.mse_loss).execute(naive(2, 8), x, x)
        taken.clear()  # a handle knows its tensor
        eventually(lambda: not left())  # the thread that sent the last one may still be about to forget it
        return len(sent), alive, left()

    for count, alive, left in launch(on_rank, 2, transport="local").results:
        assert count == 8 and left == 0
        assert max(alive) <= 2, "a tensor goes when the next one is sent, if it has been taken by then"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_handle_may_let_go_before_it_is_waited_for(transport):
    def on_rank(group):
        if group.rank == 1:
            return group.recv(torch.empty(5), 0).tolist()
        handle = group.isend(torch.ones(5), 1)
        while not handle.done():
            time.sleep(0.001)
        handle.release()
        return handle.wait().numel()

    assert launch(on_rank, 2, transport=transport, clock="virtual").results == [0, [1.0] * 5]


def test_what_is_needed_is_what_was_made_and_comes_in_the_order_of_its_senders():
    for schedule in (gpipe(3, 4), interleaved(2, 4, 3), zb_h1(4, 6), zb_v(3, 5)):
        for rank, instructions in enumerate(schedule.ranks):
            made = {}
            for source, todo in enumerate(schedule.ranks):
                for i in todo:
                    found = made_by(schedule, source, i)
                    if found is not None and found[1] == rank:
                        made.setdefault(source, []).append(found[0])
            needed = [needed_by(schedule, rank, i) for i in instructions]
            taken = {}
            for found in needed:
                if found is not None:
                    taken.setdefault(found[1], []).append(found[0])
            assert {s: sorted(map(str, p)) for s, p in made.items()} == {
                s: sorted(map(str, p)) for s, p in taken.items()
            }
            made.pop(rank, None)
            assert incoming(schedule, rank) == made


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zb_h1])
def test_layers_with_a_time_of_their_own_run_in_a_pipeline(make):
    """`kernels` and no `seconds`: an input gradient takes a layer's whole backward, and a weight gradient nothing."""
    schedule = make(3, 4)

    def on_rank(group):
        module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
        x = torch.ones(4, 4)
        with kernels(module, group, lambda layer: (1e-3, 2e-3)):
            Pipeline(module, group, F.mse_loss).execute(schedule, x, x)

    run = launch(on_rank, 3, clock="virtual")
    timeline = simulate(schedule, Costs(2e-3, 4e-3, 0))
    for kind in (Forward, Backward, InputGradient):
        for rank, todo in enumerate(schedule.ranks):
            for position, i in enumerate(todo):
                if type(i) is kind:
                    (span,) = [s for s in run.trace.spans(f"{rank}{i.action}{i.microbatch}") if s.rank == rank]
                    assert round(span.end * 1e9) == timeline.end[rank][position], span


def test_pipelines_side_by_side_in_a_mesh():
    config = GPTConfig(context=8, layers=3, width=12, heads=2, vocab=31)
    tokens = torch.arange(8 * 9).reshape(8, 9) * 7 % 31

    def on_rank(group):
        mesh = Mesh(group, {"pp": 2, "dp": 2})
        modules = gpt_stages(config, (2, 1), mesh["pp"])
        mine = tokens.tensor_split(2)[mesh.coordinates["dp"]]
        Pipeline(modules, mesh["pp"], next_token_loss).execute(one_f_one_b(2, 4), mine[:, :-1], mine[:, 1:])
        found = {n: p.grad for m in modules for n, p in m.named_parameters()}
        return {n: all_reduce(g, mesh["dp"], op="avg") for n, g in found.items()}

    model = GPT(config)
    next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    found = {}
    for result in launch(on_rank, 4, transport="local").results:
        found |= result
    for name, p in model.named_parameters():
        assert float((found[name] - p.grad).abs().max()) < 1e-6, name


def test_checkpointing_keeps_the_inputs_of_stages_only():
    """Bytes kept of each microbatch in flight, as the rank's peak of resident tensors shows."""
    width = 256

    def on_rank(group, checkpoint):
        torch.manual_seed(0)
        module = MLP(MLPConfig((width,) * 9))
        for p in module.parameters():
            p.grad = torch.zeros_like(p)
        x = torch.ones(8 * 64, width)
        Pipeline(module, group, F.mse_loss, checkpoint=checkpoint).execute(gpipe(2, 8), x, x)

    peaks = [launch(on_rank, 2, c, memory="resident").trace.peak_bytes()[0] for c in (False, True)]
    row = 64 * width * 4  # bytes of a microbatch between two layers
    # eight microbatches of seven layers inside, against those of the one that is computed again
    assert peaks[0] - peaks[1] > 6 * 7 * row, peaks
