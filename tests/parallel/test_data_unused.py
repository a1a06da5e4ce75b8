"""Parameters that take no part, buffers, and ranks whose data ends at different steps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from slices import SLOW_WIRES, few
from torch import nn

import labkit
from labkit.models import flat_gradient
from labkit.parallel import DataParallel, Sampler
from labkit.parallel.reach import reached, tensors_in

pytestmark = pytest.mark.ranks

TINY = {"bucket_bytes": 40, "first_bucket_bytes": 40}


class Branches(nn.Module):
    """Four branches in a row; only those that are named are used."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.branches = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def forward(self, x, used, wrap=lambda x: x):
        for i in used:
            x = self.branches[i](x)
        return wrap(x)


class Opaque:
    """An output that cannot be looked into."""

    def __init__(self, value):
        self.value = value


@dataclass
class Told:
    value: torch.Tensor
    words: str = "a dataclass"


def inputs(n):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("way", ["tensor", "dataclass", "opaque"])
def test_no_gradient_is_not_a_gradient_of_zero(way):
    """Rank r uses other branches: what nobody uses has no gradient, what somebody uses has the average."""
    wrap = {"tensor": lambda x: [x], "dataclass": Told, "opaque": Opaque}[way]
    unwrap = (lambda o: o[0]) if way == "tensor" else (lambda o: o.value)
    used_by = [[0], [0, 1], [0, 1, 3]]

    def work(group):
        model = DataParallel(Branches(), group, find_unused_parameters=True, **TINY)
        found = []
        x = inputs(6).tensor_split(group.size)[group.rank]
        for shift in range(3):
            model.zero_grad()
            (unwrap(model(x, used_by[(group.rank + shift) % 3], wrap)) ** 2).mean().backward()
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        before = model.module.branches[2].weight.clone()
        optimizer.step()
        return found, torch.equal(before, model.module.branches[2].weight)

    for size in (1, 2, 3):
        results = labkit.launch(work, size).results
        for shift in range(3):
            one = Branches()
            for rank, x in enumerate(inputs(6).tensor_split(size)):
                ((one(x, used_by[(rank + shift) % 3]) ** 2).mean() / size).backward()
            for found, same in results:
                assert same, "weight decay would have moved a parameter with a gradient of zero"
                for got, p in zip(found[shift], one.parameters(), strict=True):
                    assert (got is None) == (p.grad is None)
                    assert got is None or float((got - p.grad).abs().max()) <= 1e-6


def test_unused_parameters_found_early_do_not_hold_their_bucket_back():
    """Branch 3 is the first bucket. Known to be unused, it leaves at the first gradient, and not at the end."""

    def work(group, wrap):
        model = DataParallel(Branches(), group, find_unused_parameters=True, rebuild=False, **TINY)
        left = []
        model.module.branches[0].weight.register_post_accumulate_grad_hook(lambda _: left.append(model._reducer._sent))
        output = model(inputs(2), [0, 1, 2], wrap)
        (output if isinstance(output, torch.Tensor) else output.value).sum().backward()
        return left[0], len(model.buckets)

    early, late = labkit.launch(work, 2, lambda x: x).results[0], labkit.launch(work, 2, Opaque).results[0]
    assert early[0] > 0 and late[0] == 0 and early[1] == late[1]


def test_a_static_graph_is_learned_in_the_first_step_and_costs_nothing_after():
    used_by = [[0, 3], [0, 1, 3]]

    def work(group):
        model = DataParallel(Branches(), group, static_graph=True, algorithm="ring", **TINY)
        found = []
        x = inputs(4).tensor_split(group.size)[group.rank]
        for step in range(3):
            group.step(step)
            model.zero_grad()
            (model(x, used_by[group.rank]) ** 2).mean().backward()
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        return found, len(model.buckets)

    run = labkit.launch(work, 2)
    one = Branches()
    for rank, x in enumerate(inputs(4).tensor_split(2)):
        ((one(x, used_by[rank]) ** 2).mean() / 2).backward()
    for found, buckets in run.results:
        for step in range(3):
            for got, p in zip(found[step], one.parameters(), strict=True):
                assert (got is None) == (p.grad is None)
                assert got is None or float((got - p.grad).abs().max()) <= 1e-6
        calls = [c.name for c in run.trace.collectives() if c.step == 2 and c.rank == 0]
        assert calls == ["all_reduce"] * buckets
    first = [c.name for c in run.trace.collectives() if c.step == 0 and c.rank == 0]
    assert first.count("all_reduce") == 5, "four buckets, and who used what"


@pytest.mark.parametrize("none", [True, False])
def test_a_parameter_used_only_in_an_accumulated_microbatch_is_averaged(none):
    def work(group):
        model = DataParallel(Branches(), group, find_unused_parameters=True, **TINY)
        x = inputs(4).tensor_split(group.size)[group.rank]
        for _ in range(2):
            model.zero_grad(set_to_none=none)
            with model.no_sync():
                model(x, [0, 1] if group.rank else [0]).mean().backward()  # rank 0 never sees branch 1
            model(x, [0]).mean().backward()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    one = Branches()
    first, second = inputs(4).tensor_split(2)
    (one(first, [0]).mean() / 2 + one(second, [0, 1]).mean() / 2 + one(inputs(4), [0]).mean()).backward()
    for gradients in labkit.launch(work, 2).results:
        for got, p in zip(gradients, one.parameters(), strict=True):
            assert (got is None) == (p.grad is None)
            assert got is None or float((got - p.grad).abs().max()) <= 1e-6


def test_the_graph_says_which_leaves_an_output_reaches():
    model = Branches()
    names = {id(p): name for name, p in model.named_parameters()}
    output = model(inputs(2), [1, 2])
    assert {names[i] for i in reached([output])} == {f"branches.{i}.{n}" for i in (1, 2) for n in ("weight", "bias")}
    assert reached([output.detach()]) == set() and reached([model.branches[0].weight]) == {id(model.branches[0].weight)}
    nested = {"a": [output, (None, 3, "x")], "b": Told(output)}
    assert [t is output for t in tensors_in(nested)] == [True, True] and tensors_in([Opaque(output)]) is None
    assert tensors_in([Told]) is None, "a class is no output"


# Buffers


class Counted(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.tensor(start))

    def forward(self, x):
        self.seen += len(x)
        return self.norm(self.linear(x))


@pytest.mark.parametrize("broadcast", [True, False])
def test_buffers_are_those_of_rank_0_before_each_step_with_communication(broadcast):
    def work(group):
        model = DataParallel(Counted(group.rank * 100), group, broadcast_buffers=broadcast)
        seen = [int(model.module.seen)]
        for _ in range(2):
            model(torch.randn(2 + group.rank, 3)).sum().backward()
            seen.append(int(model.module.seen))
        with torch.no_grad():
            model(torch.randn(2, 3))
        with model.no_sync():
            model(torch.randn(2, 3)).sum().backward()
        seen.append(int(model.module.seen))
        return seen

    for rank, seen in enumerate(labkit.launch(work, 3).results):
        each = 2 + rank
        assert seen == ([0, each, 2 + each, 2 + each + 4] if broadcast else [0, each, 2 * each, 2 * each + 4])


# Uneven data

COUNT, BATCH = 49, 4  # one more than full steps of 1, 2, 3 and 4 ranks


def examples():
    x = inputs(COUNT)
    return x, x.sin().sum(1, keepdim=True)


def model_of_the_join():
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize("size", few([3, 1, 2, 4]))
@pytest.mark.parametrize("static", [False, True])
def test_uneven_ends_with_weights_are_one_device_over_all_examples(size, static):
    """last="exact": ranks take different numbers of steps, and momentum is the same everywhere in the end."""
    x, y = examples()

    def alone():
        model = model_of_the_join()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(3):
            for indices in Sampler(COUNT, (0, 1), batch=BATCH * size, seed=3, last="exact").epoch(epoch):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x[indices]), y[indices]).backward()
                optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def work(group):
        model = DataParallel(model_of_the_join(), group, average="weights", static_graph=static, **TINY)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        steps = 0
        for epoch in range(3):
            with model.join(step=optimizer.step):
                for indices in Sampler(COUNT, group, batch=BATCH, seed=3, last="exact").epoch(epoch):
                    optimizer.zero_grad()
                    model.weight(len(indices))
                    nn.functional.mse_loss(model(x[indices]), y[indices]).backward()
                    optimizer.step()
                    steps += 1
        momentum = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
        return torch.cat([p.detach().flatten() for p in model.parameters()]), momentum, steps

    results = labkit.launch(work, size).results
    for weights, momentum, _ in results:
        assert float((weights - alone()).abs().max()) <= 1e-6
        assert all(torch.equal(a, b) for a, b in zip(momentum, results[0][1], strict=True))
    full = 3 * (COUNT // (BATCH * size))
    assert [steps for *_, steps in results] == [full + 3] + [full] * (size - 1)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_ranks_that_end_early_follow_the_others(transport):
    """Rank 0 has no data at all, rank 1 takes two steps, rank 2 five, with buffers, and a new model at the end."""

    def work(group, divide):
        model = DataParallel(Counted(0), group)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        gradients = []
        with model.join(divide=divide):
            for _ in range([0, 2, 5][group.rank]):
                optimizer.zero_grad()
                model.module.linear(torch.ones(1, 3))  # a call of a part is nobody's business
                (model(torch.eye(3)) * torch.arange(9.0).view(3, 3) ** 2).sum().backward()
                gradients.append(flat_gradient(model.module))
                optimizer.step()
        return [x.clone() for x in (*model.parameters(), *model.buffers())], gradients, int(model.module.seen)

    worlds = {}
    for divide in ("world", "active"):
        results = labkit.launch(work, 3, divide, transport=transport).results
        for state, _, seen in results:
            assert all(torch.equal(a, b) for a, b in zip(state, results[0][0], strict=True)) and seen == 15
        worlds[divide] = results[2][1]
    assert torch.allclose(worlds["world"][0] * 3, worlds["active"][0] * 2, atol=1e-4)


def test_join_refuses_what_it_cannot_finish():
    def work(group):
        model = DataParallel(model_of_the_join(), group)
        with model.join():
            with model.no_sync():
                model(torch.ones(2, 3)).sum().backward()

    def nested(group):
        model = DataParallel(model_of_the_join(), group)
        with model.join(), model.join():
            pass

    def caught(group, work):
        with pytest.raises(ValueError) as refusal:
            work(group)
        return str(refusal.value)

    for work_, word in ((work, "inside of no_sync"), (nested, "inside of join() already")):
        assert all(word in m for m in labkit.launch(caught, 2, work_).results)


def test_join_costs_one_small_message_round_a_step():
    def work(group):
        model = DataParallel(model_of_the_join(), group)
        with model.join():
            for step in range(3):
                group.step(step)
                model.zero_grad()
                model(torch.ones(2, 3)).sum().backward()

    trace = labkit.launch(work, 2).trace
    calls = [(c.name, c.nbytes) for c in trace.collectives() if c.rank == 0 and c.step == 1]
    assert calls == [("all_gather", 1), ("all_reduce", 4 * (3 * 8 + 8 + 8 + 1))]
