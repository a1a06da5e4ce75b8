"""PipeDream: each microbatch uses one version of the weights, and training is what it would be in one process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from slices import few
from torch import nn

from labkit import cost, launch
from labkit.models import GPTConfig, next_token_loss
from labkit.parallel.pipeline import Pipeline, gpt_stages, pipedream
from labkit.parallel.pipeline.running.weights import Stash

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=8, layers=4, width=12, heads=2, vocab=31, tied=False, dropout=0.0)
TOKENS = torch.arange(12 * 9).reshape(12, 9) * 7 % 31
OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-5),
}
CASES = [("sgd", False), ("adamw", True)]  # (optimizer, checkpointing)


def emulated(stages, microbatches, steps, optimizer):
    """The same staleness in one process, without any pipeline: weights by stage and losses, after whole copies.

    Microbatch k of a step uses, on stage s, the weights after max(0, k - (p - 1 - s)) of the step's updates.
    """
    modules = [gpt_stages(CONFIG, (stages, 1), rank)[0].double() for rank in range(stages)]
    optimizers = [OPTIMIZERS[optimizer](m) for m in modules]
    losses = []
    for _ in range(steps):
        histories = [[{n: p.detach().clone() for n, p in m.named_parameters()}] for m in modules]
        for k, piece in enumerate(TOKENS.tensor_split(microbatches)):
            x, versions = piece[:, :-1], []
            for s, module in enumerate(modules):
                old = histories[s][max(0, k - (stages - 1 - s))]
                versions.append({n: v.clone().requires_grad_() for n, v in old.items()})
                x = torch.func.functional_call(module, versions[s], (x,))
            loss = next_token_loss(x, piece[:, 1:])
            loss.backward()
            losses.append(float(loss.detach()))
            for s, module in enumerate(modules):
                for n, p in module.named_parameters():
                    p.grad = versions[s][n].grad
                optimizers[s].step()
                histories[s].append({n: p.detach().clone() for n, p in module.named_parameters()})
    return {n: p.detach() for m in modules for n, p in m.named_parameters()}, losses


@pytest.mark.parametrize(("size", "count"), few([(3, 5), (2, 6), (4, 9), (4, 2)]))
def test_training_is_that_of_one_process_with_the_same_staleness(size, count):
    def on_rank(group):
        found = {}
        for name, checkpoint in CASES:
            make = OPTIMIZERS[name]
            modules = [m.double() for m in gpt_stages(CONFIG, (size, 1), group)]
            options = {"optimizers": [make(m) for m in modules], "checkpoint": checkpoint}
            pipeline = Pipeline(modules, group, next_token_loss, **options)
            losses, versions = [], 0
            for _ in range(2):
                step = pipeline.execute(pipedream(size, count), TOKENS[:, :-1], TOKENS[:, 1:])
                losses += [float(loss) for loss in step.losses]
                versions = step.versions
            weights = {n: p.detach() for m in modules for n, p in m.named_parameters()}
            grads = [p.grad for m in modules for p in m.parameters()]
            found[name, checkpoint] = weights, losses, versions, grads, pipeline.stashes[0].held
        return found

    results = launch(on_rank, size, transport="local").results
    for name, checkpoint in CASES:
        wanted, losses = emulated(size, count, 2, name)
        found = {}
        for rank, result in enumerate(results):
            weights, values, versions, grads, held = result[name, checkpoint]
            found |= weights
            assert versions == [min(count, size - rank)] == [cost.weight_versions_by_rank(size, count)[rank]]
            assert held == 1 and all(g is None for g in grads), "nothing is left over"
            assert len(values) == (2 * count if rank == size - 1 else 0)
        assert max(abs(a - b) for a, b in zip(results[-1][name, checkpoint][1], losses, strict=True)) < 1e-10
        assert found.keys() == wanted.keys()
        assert max(float((found[n] - w).abs().max()) for n, w in wanted.items()) < 1e-10, (name, checkpoint)


def test_a_version_is_copied_only_where_somebody_still_uses_it():
    module = nn.Linear(3, 3)
    stash = Stash(module, torch.optim.SGD(module.parameters(), lr=1.0))

    def backward(k):
        stash.of(k)["weight"].grad = torch.ones(3, 3)
        stash.done(k)

    first = module.weight.data_ptr()
    assert stash.of(0) is stash.of(1)
    assert stash.of(0)["weight"].data_ptr() == first and stash.held == 1, "the newest version is the weights themselves"
    before = stash.of(1)["weight"].detach().clone()
    backward(0)
    stash.update(0)
    assert module.weight.data_ptr() != first
    assert torch.equal(stash.of(1)["weight"], before), "what microbatch 1 uses has not changed"
    assert torch.allclose(module.weight, before - 1)
    assert stash.of(2)["weight"].data_ptr() == module.weight.data_ptr() and stash.held == 2
    backward(1)
    backward(2)
    second = module.weight.data_ptr()
    stash.update(1)
    assert module.weight.data_ptr() == second, "nobody uses the old weights: no copy"
    stash.update(2)
    assert stash.held == 1 and stash.most == 2
    assert torch.allclose(module.weight, before - 3)


def test_one_rank_trains_as_usual():
    def on_rank(group):
        torch.manual_seed(0)
        module = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        x = torch.randn(6, 4)
        Pipeline(module, group, F.mse_loss, optimizers=[optimizer]).execute(pipedream(1, 3), x, -x)
        torch.manual_seed(0)
        plain = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for piece in torch.randn(6, 4).split(2):
            optimizer.zero_grad()
            F.mse_loss(plain(piece), -piece).backward()
            optimizer.step()
        return torch.equal(module.weight, plain.weight)

    assert launch(on_rank, 1).results == [True]
