"""Local SGD: H = 1 is data parallelism, H > 1 is averages of lonely runs, and bytes are those of the formula."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from slices import few
from torch import nn

import labkit
from labkit import cost
from labkit.models import MLP, MLPConfig
from labkit.optim.synchrony import LocalSGD, nesterov
from labkit.parallel import DataParallel
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

WIDTHS = (6, 9, 3)
NUMEL = MLPConfig(WIDTHS).num_parameters


def batch(rank, step):
    dice = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(4, 6, generator=dice), torch.randint(3, (4,), generator=dice)


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def descend(module, rank, step):
    x, y = batch(rank, step)
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()


def sgd(parameters, momentum=0.9):
    return torch.optim.SGD(parameters, lr=0.3, momentum=momentum)


def local(group, steps, every, outer=None, start=0):
    module = MLP(MLPConfig(WIDTHS), seed=group.rank)  # those of rank 0 count
    model = LocalSGD(module, group, sgd(module.parameters()), every, outer, start, algorithm="ring")
    group.step(1)
    for step in range(steps):
        descend(module, group.rank, step)
        model.step()
    return flat(module)


def data_parallel(group, steps):
    module = MLP(MLPConfig(WIDTHS), seed=group.rank)
    model, optimizer = DataParallel(module, group), sgd(module.parameters())
    for step in range(steps):
        x, y = batch(group.rank, step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(module)


def alone(size, steps, every, outer=None, start=0):
    """The same training on one device: one model for each rank, and averages in between."""
    modules = [MLP(MLPConfig(WIDTHS), seed=0) for _ in range(size)]
    optimizers = [sgd(m.parameters()) for m in modules]
    anchor = nn.Parameter(flat(modules[0]))
    outside = outer([anchor]) if outer else None
    for step in range(steps):
        for rank, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            descend(module, rank, step)
            optimizer.step()
        if step < start or (step + 1 - start) % every == 0:
            mean = torch.stack([flat(m) for m in modules]).mean(0)
            if outside is not None and step >= start:
                anchor.grad = anchor.detach() - mean
                outside.step()
                mean = anchor.detach().clone()
            anchor.data.copy_(mean)
            for module in modules:
                nn.utils.vector_to_parameters(mean.clone(), module.parameters())
    return [flat(m) for m in modules]


def test_one_local_step_without_outer_optimizer_is_data_parallelism():
    ours = labkit.launch(local, 3, 4, 1).results
    theirs = labkit.launch(data_parallel, 3, 4).results
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "every", "outer", "start"),
    few([(3, 3, nesterov(), 2), (1, 2, None, 0), (2, 3, None, 2), (5, 2, nesterov(0.5, 0.5), 0)], 2),
)
def test_rounds_are_those_of_one_device_and_bytes_those_of_the_formula(size, every, outer, start):
    steps = 9  # the last round is not finished: ranks end apart
    run = labkit.launch(local, size, steps, every, outer, start, transport="local")
    for mine, expected in zip(run.results, alone(size, steps, every, outer, start), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
    sent = [0] * size
    for m in run.trace.sends:
        sent[m.src] += m.nbytes if m.step == 1 else 0
    assert sent == cost.local_sgd_bytes_by_rank(NUMEL, 4, size, steps, every, start)


def test_rounds_are_counted():
    assert [cost.local_sgd_rounds(steps, 4) for steps in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert cost.local_sgd_rounds(10, 4, start=3) == 4 and cost.local_sgd_rounds(2, 4, start=3) == 2
    with pytest.raises(ValueError, match="every must be a whole number"):
        cost.local_sgd_rounds(10, 0)


def test_what_cannot_be_is_refused_on_every_rank_and_nan_by_rank_and_name():
    def refused(group):
        module = MLP(MLPConfig(WIDTHS))
        said = []

        def attempt(module, **options):
            try:
                model = LocalSGD(module, group, sgd(module.parameters()), **options)
            except RefusedError as refusal:
                said.append(str(refusal))
                return None
            return model

        attempt(module, every=0)
        attempt(module, every=2, start=-1)
        attempt(module, every=1 + (group.rank == 2))
        attempt(MLP(MLPConfig((6, 3) if group.rank == 1 else WIDTHS)), every=2)
        mixed = copy.deepcopy(module)
        mixed.layers[1].double()
        attempt(mixed, every=2)
        for p in mixed.parameters():
            p.requires_grad_(False)
        attempt(mixed, every=2)
        model = attempt(module, every=1)
        with torch.no_grad():
            module.layers[1].bias[0] = float("nan")
        try:
            model.synchronize()
        except RefusedError as refusal:
            said.append(str(refusal))
        return said

    for rank, said in enumerate(labkit.launch(refused, 3).results):
        assert "every=0: the local steps" in said[0] and "start=-1" in said[1]
        assert said[2].startswith("rank 2 brought other options (every=")
        assert said[3].startswith("rank 1 brought another model than rank 0")
        assert "not of one dtype" in said[4]
        assert "no parameter that is trained" in said[5]
        assert said[6].startswith(f"rank {rank}: 1 of the 3 numbers of parameter 'layers.1.bias' are NaN")
