"""LARS and LAMB against their papers' formulas, written down once more and slowly, in Python floats."""

import copy
import math
from functools import partial

import pytest
import torch

from labkit.data import digits
from labkit.models import CNN, GPT, MLP
from labkit.optim import LAMB, LARS, layer_groups
from labkit.wire.errors import RefusedError


def length(xs):
    return math.sqrt(sum(x * x for x in xs))


def slow_lars(w, gradients, lr, momentum, decay, trust, adapt):
    v = [0.0] * len(w)
    for rate, g in zip(lr, gradients, strict=True):
        below = length(g) + decay * length(w)
        local = trust * length(w) / below if adapt and below and length(w) else 1.0
        v = [momentum * a + rate * local * (b + decay * c) for a, b, c in zip(v, g, w, strict=True)]
        w = [a - b for a, b in zip(w, v, strict=True)]
    return w


def slow_lamb(w, gradients, lr, betas, eps, decay, bounds, adapt):
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, (rate, g) in enumerate(zip(lr, gradients, strict=True), 1):
        m = [betas[0] * a + (1 - betas[0]) * b for a, b in zip(m, g, strict=True)]
        v = [betas[1] * a + (1 - betas[1]) * b * b for a, b in zip(v, g, strict=True)]
        r = [a / (1 - betas[0] ** t) / (math.sqrt(b / (1 - betas[1] ** t)) + eps) for a, b in zip(m, v, strict=True)]
        u = [a + decay * b for a, b in zip(r, w, strict=True)]
        phi = min(max(length(w), bounds[0]), bounds[1])
        stretch = phi / length(u) if adapt and phi and length(u) else 1.0
        w = [a - rate * stretch * b for a, b in zip(w, u, strict=True)]
    return w


def train(make, start, gradients, lr):
    w = torch.tensor(start, dtype=torch.float64).view(2, -1).requires_grad_()
    optimizer = make([w])
    for rate, g in zip(lr, gradients, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        w.grad = torch.tensor(g, dtype=torch.float64).view_as(w)
        optimizer.step()
    return w.detach().flatten().tolist()


def problem(steps=7, n=6, seed=1):
    random = torch.Generator().manual_seed(seed)
    w, *gradients = torch.randn(steps + 1, n, generator=random, dtype=torch.float64).tolist()
    return w, gradients, [0.5 / (1 + t) for t in range(steps)]


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("zero", ["nothing", "weight", "gradient"])
def test_both_follow_their_formula_with_zeros_too(adapt, decay, zero):
    w, gradients, lr = problem()
    if zero == "weight":
        w = [0.0] * len(w)
    if zero == "gradient":
        gradients[0] = gradients[3] = [0.0] * len(w)
    got = train(lambda p: LARS(p, 1, 0.8, decay, 0.02, adapt), w, gradients, lr)
    assert got == pytest.approx(slow_lars(w, gradients, lr, 0.8, decay, 0.02, adapt), rel=1e-12)
    for bounds in ((0.0, math.inf), (0.0, 0.5), (3.0, 10.0)):
        got = train(lambda p, b=bounds: LAMB(p, 1, (0.8, 0.95), 1e-6, decay, b, adapt), w, gradients, lr)
        assert got == pytest.approx(slow_lamb(w, gradients, lr, (0.8, 0.95), 1e-6, decay, bounds, adapt), rel=1e-12)
    assert all(map(math.isfinite, got)) and got != w


def test_the_step_of_lars_ignores_the_scale_of_the_gradient_and_that_of_lamb_nearly():
    w, gradients, lr = problem()
    scaled = [[1000.0**t * x for x in g] for t, g in enumerate(gradients)]
    for scale in (1e-3, 1e3):
        larger = [[scale * x for x in g] for g in gradients]
        assert train(lambda p: LAMB(p, 1, eps=0), w, larger, lr) == pytest.approx(
            train(lambda p: LAMB(p, 1, eps=0), w, gradients, lr), rel=1e-12
        )
    assert train(lambda p: LARS(p, 1), w, scaled, lr) == pytest.approx(train(lambda p: LARS(p, 1), w, gradients, lr))


def test_a_first_step_has_the_length_that_was_asked_for():
    w, gradients, _ = problem()
    for make, part in ((lambda p: LARS(p, 1, trust=0.01), 0.01), (lambda p: LAMB(p, 1), 1.0)):
        after = train(make, w, gradients[:1], [0.3])
        assert length([a - b for a, b in zip(after, w, strict=True)]) == pytest.approx(0.3 * part * length(w))


def test_without_layers_they_are_sgd_and_adamw():
    torch.manual_seed(0)
    images = digits()[0]
    models = [CNN() for _ in range(4)]
    optimizers = [
        LARS(models[0].parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, adapt=False),
        torch.optim.SGD(models[1].parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
        LAMB(models[2].parameters(), lr=0.01, eps=1e-5, weight_decay=0.1, adapt=False),
        torch.optim.AdamW(models[3].parameters(), lr=0.01, eps=1e-5, weight_decay=0.1),
    ]
    for step in range(5):
        part = slice(32 * step, 32 * step + 32)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images.x[part]), images.y[part]).backward()
            optimizer.step()
    for ours, theirs in ((models[0], models[1]), (models[2], models[3])):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("model", [MLP(), CNN(), GPT()])
def test_matrices_are_adapted_biases_and_norms_are_not(model):
    first = next(model.parameters())
    first.requires_grad_(False)
    layers, others = layer_groups(model, weight_decay=0.1)
    named = {id(p): name for name, p in model.named_parameters()}
    assert (layers["adapt"], layers["weight_decay"]) == (True, 0.1)
    assert (others["adapt"], others["weight_decay"]) == (False, 0.0)
    assert {id(p) for p in layers["params"] + others["params"]} == {id(p) for p in model.parameters()} - {id(first)}
    plain = [named[id(p)] for p in others["params"]]
    assert plain and all("bias" in name or "norm" in name for name in plain)
    assert not [n for n in (named[id(p)] for p in layers["params"]) if "bias" in n or "norm" in n]
    optimizer = LAMB([layers, others], lr=0.1)
    assert [group["adapt"] for group in optimizer.param_groups] == [True, False]


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_state_travels_in_a_state_dict_and_parameters_without_gradient_stay(make):
    torch.manual_seed(0)
    a, idle = torch.randn(3, 3, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    before = idle.detach().clone()
    first = make([a, idle], lr=0.1)
    a.grad = torch.randn(3, 3)
    first.step()
    b = a.detach().clone().requires_grad_()
    second = make([b, idle], lr=0.5)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    b.grad = a.grad.clone()
    assert first.step(lambda: 3.5) == 3.5 and second.step() is None
    assert torch.equal(a, b) and torch.equal(idle, before)


@pytest.mark.parametrize("make", [partial(LARS, trust=1.0), partial(LAMB, bounds=(0.0, 9e9))])
def test_a_norm_that_fp16_cannot_hold_gives_a_step_all_the_same(make):
    w = torch.full((300, 300), 300.0).half().requires_grad_()  # |w| = 90,000
    w.grad = torch.full_like(w, 250.0)
    make([w], lr=0.1).step()
    torch.testing.assert_close(w.detach(), torch.full_like(w, 270.0), rtol=2e-3, atol=0)


@pytest.mark.parametrize("make, said", [
    (lambda p: LARS(p, -1), "lr=-1"), (lambda p: LARS(p, 1, momentum=1), "momentum=1"),
    (lambda p: LARS(p, 1, trust=math.nan), "trust=nan"), (lambda p: LAMB(p, 1, betas=(0.9, 1)), "betas"),
    (lambda p: LAMB(p, 1, bounds=(2, 1)), "bounds"), (lambda p: LAMB(p, 1, eps=-1), "eps=-1"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused_by_name(make, said):
    with pytest.raises(RefusedError, match=said):
        make([torch.zeros(1, requires_grad=True)])


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_sparse_gradients_are_refused(make):
    table = torch.nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RefusedError, match="sparse=False"):
        make(table.parameters(), lr=0.1).step()
