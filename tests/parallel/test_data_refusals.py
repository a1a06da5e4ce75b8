"""Bad input: a clear error on every rank, or the documented behaviour, and never a hang."""

from __future__ import annotations

import pytest
import torch
from leftovers import NEVER
from slices import SLOW_WIRES
from torch import nn

import labkit
from labkit import RankFailed
from labkit.parallel import DataParallel
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks


def refused(work, size=3, **options):
    """The refusals of all ranks: `work` must raise RefusedError on each of them."""

    def caught(group):
        try:
            work(group)
        except RefusedError as refusal:
            return str(refusal)
        return "not refused"

    return labkit.launch(caught, size, timeout=20, **options).results


def fails(work, size=2, **options):
    """The message of the run that one rank's error ends: no limit could."""
    with pytest.raises(RankFailed) as caught:
        labkit.launch(work, size, timeout=NEVER, **options)
    return str(caught.value)


def net(width=4, bias=True):
    return nn.Sequential(nn.Linear(3, width, bias=bias), nn.ReLU(), nn.Linear(width, 2))


class Wide(nn.Module):
    def __init__(self, dtype=torch.float32, extra=False, frozen=False):
        super().__init__()
        self.a = nn.Linear(3, 3, dtype=dtype)
        self.register_buffer("count", torch.zeros(2 + extra))
        self.a.bias.requires_grad_(not frozen)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_models_that_differ_are_named_on_every_rank(transport):
    cases = [
        (lambda r: net(5 if r == 2 else 4), ["rank 2", "'0.weight'", "(5, 3)", "(4, 3)"]),
        (lambda r: net(bias=r != 1), ["rank 1", "'0.bias'", "missing"]),
        (lambda r: Wide(torch.float64 if r == 1 else torch.float32), ["rank 1", "'a.weight'", "float64"]),
        (lambda r: Wide(extra=r > 0), ["rank 1", "rank 2", "'count'", "(3,)"]),
        (lambda r: Wide(frozen=r == 2), ["rank 2", "'a.bias'", "frozen"]),
    ]

    def work(group):
        found = []
        for make, _ in cases:
            try:
                DataParallel(make(group.rank), group)
            except RefusedError as refusal:
                found.append(str(refusal))
        return found

    results = labkit.launch(work, 3, transport=transport).results
    assert results[0] == results[1] == results[2]
    for message, (_, words) in zip(results[0], cases, strict=True):
        assert all(word in message for word in words), message


def test_options_that_differ_are_named_too():
    for messages in refused(lambda g: DataParallel(net(), g, bucket_bytes=1000 if g.rank else 2000)):
        assert "rank 1" in messages and "bucket_bytes" in messages and "1000" in messages


def test_sparse_gradients():
    messages = refused(lambda g: DataParallel(nn.Sequential(nn.Embedding(4, 2, sparse=True)), g), 2)
    assert all("'0'" in m and "sparse=False" in m for m in messages)


def test_a_backward_that_broke_off_before_the_first_gradient_leaves_nothing_behind():
    def work(group):
        model = DataParallel(net(), group)
        x = torch.full((2, 3), group.rank + 1.0)
        output = model(x)
        output.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            output.sum().backward()
        model(x).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    for a, b in zip(*labkit.launch(work, 2).results, strict=True):
        assert torch.equal(a, b) and a.any()


def test_options_that_cannot_work():
    for options, word in [({"average": "tokens"}, "average"), ({"bucket_bytes": 0}, "at least 1")]:
        assert all(word in m for m in refused(lambda g, o=options: DataParallel(net(), g, **o), 1))
    assert "nothing to average" in refused(lambda g: DataParallel(nn.ReLU(), g), 1)[0]
    for use, word in [(lambda m: m.weight(3), "average='weights'"), (lambda m: m.join(divide="x"), "divide")]:
        assert word in refused(lambda g, use=use: use(DataParallel(net(), g)), 1)[0]
    for n in (-1, float("nan"), float("inf")):
        messages = refused(lambda g, n=n: DataParallel(net(), g, average="weights").weight(n), 1)
        assert "0 or more" in messages[0]
    messages = refused(lambda g: DataParallel(net(), g, average="weights")(torch.ones(1, 3)), 2)
    assert all("model.weight(n)" in m for m in messages)


def test_weights_that_add_up_to_nothing_are_refused_everywhere():
    def work(group):
        model = DataParallel(net(), group, average="weights")
        model.weight(0)
        model(torch.ones(2, 3)).sum().backward()

    assert all("no example" in message for message in refused(work))


def test_a_module_that_changed_after_wrapping():
    def resize(module):
        module[0].weight.data = torch.zeros(7, 3)

    def replace(module):
        module[2] = nn.Linear(4, 2)

    def add(module):
        module.append(nn.Linear(2, 2))

    def remove(module):
        del module[2]

    def freeze(module):
        module[0].weight.requires_grad_(False)

    for change, words in [
        (resize, ["'0.weight'", "(4, 3)", "(7, 3)"]), (replace, ["'2.weight'", "replaced"]), (add, ["added"]),
        (remove, ["'2.weight'", "removed"]), (freeze, ["'0.weight'", "frozen"]),
    ]:  # fmt: skip

        def work(group, change=change):
            model = DataParallel(net(), group)
            model(torch.ones(2, 3)).sum().backward()
            change(model.module)
            model(torch.ones(2, 3))

        for message in refused(work, 2):
            assert all(word in message for word in [*words, "wrap"]), message


class Half(nn.Module):
    """Uses `second` only if it is asked to."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both=False):
        return self.second(self.first(x)) if both else self.first(x)


def test_a_parameter_without_gradient():
    for message in refused(lambda group: DataParallel(Half(), group)(torch.ones(2, 3)).sum().backward(), 2):
        assert "'second.weight'" in message and "'second.bias'" in message and "find_unused_parameters=True" in message


def test_a_graph_that_is_not_static():
    def work(group, then):
        model = DataParallel(Half(), group, static_graph=True)
        for both in (not then, then):
            model(torch.ones(2, 3), both).sum().backward()

    for then in (False, True):
        for message in refused(lambda group, then=then: work(group, then), 2):
            assert "'second." in message and "static_graph=True" in message and "find_unused_parameters=True" in message


def test_a_loss_made_of_something_that_was_not_returned():
    def work(group):
        model = DataParallel(Half(), group, find_unused_parameters=True)
        x = torch.ones(2, 3)
        (model(x).sum() + model.module.second(x).sum()).backward()

    assert all("'second." in m and "return every tensor" in m for m in refused(work, 2))


def test_a_step_after_a_backward_that_broke_off():
    def work(group):
        model = DataParallel(net(), group, bucket_bytes=1, first_bucket_bytes=1)
        x = torch.ones(2, 3)
        hidden = model.module[0].register_full_backward_hook(lambda *_: 1 / 0)
        try:
            model(x.requires_grad_()).sum().backward()
        except ZeroDivisionError:
            hidden.remove()
        for handle in model._reducer._handles:  # what left before the error arrives
            handle.wait()
        model(x)

    assert all("did not come to its end" in m and "wrap" in m for m in refused(work, 2))


def test_a_forward_that_raises_on_one_rank_ends_the_run_with_its_traceback():
    def work(group):
        model = DataParallel(net(), group)
        for step in range(3):
            x = torch.ones(2, 3 if (group.rank, step) != (1, 1) else 5)
            model(x).sum().backward()

    message = fails(work, 3)
    assert "rank 1" in message and "mat1 and mat2 shapes cannot be multiplied (2x5 and 3x4)" in message


def test_a_step_with_gradients_that_were_never_averaged():
    """no_sync left open, or around the last microbatch too: the optimizer refuses, on every rank."""

    def left_open(model, optimizer):
        context = model.no_sync()
        context.__enter__()
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    def around_all(model, optimizer):
        with model.no_sync():
            model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    for train in (left_open, around_all):

        def work(group, train=train):
            model = DataParallel(net(), group)
            train(model, torch.optim.SGD(model.parameters(), lr=0.1))

        for rank, message in enumerate(refused(work)):
            assert f"rank {rank}" in message and "no_sync" in message and "model.module" in message


def test_no_sync_left_open_on_one_rank_ends_the_run():
    def work(group):
        model = DataParallel(net(), group)
        optimizer = torch.optim.AdamW(model.parameters())
        context = model.no_sync()
        if group.rank == 1:
            context.__enter__()
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    message = fails(work)
    assert "rank 1" in message and "no_sync" in message


def test_steps_that_are_legitimate_are_not_refused():
    def work(group):
        model = DataParallel(net(), group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 3)
        with model.no_sync():
            model(x).sum().backward()
        model(x).sum().backward()
        optimizer.step()  # averaged
        with model.no_sync():
            model(x).sum().backward()
        optimizer.zero_grad()
        optimizer.step()  # thrown away
        model.module(x).sum().backward()
        optimizer.step()  # apart, on purpose
        with model.no_sync():
            model(x).sum().backward()
        other = net()
        other(x).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()  # another model
        with torch.no_grad():
            model(x)
        return True

    assert labkit.launch(work, 2).results == [True, True]


def test_a_gradient_of_nan_is_named_before_it_spreads():
    def work(group, check):
        model = DataParallel(net(), group, check_nan=check, bucket_bytes=1, first_bucket_bytes=1)
        x = torch.ones(2, 3)
        model(x).sum().backward()
        if group.rank == 1:
            with torch.no_grad():
                model.module[0].weight[2] = float("inf")  # its input's gradient is fine: only this layer breaks
        model.zero_grad()
        out = model(x)
        loss = (out * torch.tensor([1.0, float("nan")])).sum() if group.rank == 1 else out.sum()
        loss.backward()
        return [bool(p.grad.isnan().any()) for p in model.parameters()]

    assert all(any(spread) for spread in labkit.launch(work, 2, False).results), "without the check it spreads"
    message = fails(lambda group: work(group, True))
    assert "rank 1" in message and "'2.bias'" in message and "NaN" in message


def test_an_empty_batch_on_one_rank():
    """Refused where it would count as much as the others; adds nothing with a weight of 0."""

    def work(group, average):
        model = DataParallel(net(), group, average=average)
        x = torch.ones(0 if group.rank == 1 else 2, 3) * (group.rank + 1)
        if average == "weights":
            model.weight(len(x))
        model(x).mean().backward()
        found = [p.grad.clone() for p in model.parameters()]
        if average == "weights":  # a weight of 0 holds for any gradient, NaN included
            model.zero_grad()
            model.weight(len(x))
            model(torch.full((2, 3), float("nan") if group.rank else 1.0)).mean().backward()
            found += [p.grad.clone() for p in model.parameters()]
        return found

    message = fails(lambda group: work(group, "ranks"))
    assert "rank 1" in message and "empty" in message and "(0, 3)" in message and "average='weights'" in message
    results = labkit.launch(work, 2, "weights").results
    half = len(results[0]) // 2
    for gradients in results:
        assert all(torch.equal(a, b) for a, b in zip(gradients, results[0], strict=True))
        assert gradients[0].any() and all(
            torch.equal(a, b) for a, b in zip(gradients[:half], gradients[half:], strict=True)
        )


def test_wrapping_again_leaves_the_old_wrapper_behind():
    def work(group):
        module = net()
        first = DataParallel(module, group)
        first(torch.ones(2, 3)).sum().backward()
        del first
        module.zero_grad()
        group.step(1)
        second = DataParallel(module, group)
        group.step(2)
        second(torch.ones(2, 3) * group.rank).sum().backward()
        return [p.grad.clone() for p in module.parameters()]

    run = labkit.launch(work, 2)
    assert all(torch.equal(a, b) for a, b in zip(*run.results, strict=True))
    assert len([c for c in run.trace.collectives("all_reduce") if c.step == 2 and c.rank == 0]) == 1
