"""Activation checkpointing: the same gradients, less kept, the same random numbers."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import labkit
from labkit.models import GPT, GPTConfig, flat_gradient, next_token_loss
from labkit.parallel import AdamW, DataParallel, ZeRO2, ZeRO3, checkpoint, checkpoint_blocks


class Layer(nn.Module):
    def __init__(self, seed, dropout=0.5):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down, self.drop = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x, scale=1.0, *, shift=None):
        self.calls += 1
        y = self.drop(self.down(torch.tanh(self.up(x))))
        return x + y * scale + (0 if shift is None else shift)


def gradients(run, layers, x):
    """Gradients of inputs and weights, what is drawn next, and the result of `run`."""
    torch.manual_seed(7)
    x = x.clone().requires_grad_()
    for layer in layers:
        layer.zero_grad()
    out = run(x)
    out.square().sum().backward()
    return [x.grad, *(p.grad for layer in layers for p in layer.parameters()), torch.rand(3), out.detach()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_gradients_random_numbers_and_what_is_drawn_afterwards_are_the_same():
    layers, x = [Layer(i) for i in range(3)], torch.randn(4, 8)
    shift = torch.randn(8, requires_grad=True)

    def plain(x, call=lambda f, *a, **k: f(*a, **k)):
        for i, layer in enumerate(layers):
            x = call(layer, x, 0.5 + i, shift=shift)
        return x

    expected = gradients(plain, layers, x)
    of_shift, shift.grad = shift.grad, None
    for layer in layers:
        layer.calls = 0
    assert same(gradients(lambda x: plain(x, checkpoint), layers, x), expected)
    assert torch.equal(shift.grad, of_shift)
    assert [layer.calls for layer in layers] == [2, 2, 2]


def test_nested_calls_and_two_backward_passes():
    layers, x = [Layer(i) for i in range(4)], torch.randn(4, 8)

    def plain(x):
        for layer in layers:
            x = layer(x)
        return x

    def nested(x):
        def pair(i, x):
            return checkpoint(layers[i + 1], checkpoint(layers[i], x))

        return checkpoint(pair, 2, checkpoint(pair, 0, x))

    assert same(gradients(nested, layers, x), gradients(plain, layers, x))
    leaf = x.clone().requires_grad_()
    loss = nested(leaf).sum()
    (once,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    (twice,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(once, twice)


def saved_bytes(run, x):
    """Bytes of the tensors that come to be and stay between forward and backward, each storage once."""
    seen: dict[int, int] = {}

    def keep(t):
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        run(x)
    return sum(seen.values())


def test_only_the_inputs_are_kept_and_nested_calls_keep_only_the_outer_ones():
    layers = [Layer(i, dropout=0.0) for i in range(4)]
    x = torch.randn(1000, 8, requires_grad=True)
    size = x.nbytes

    def one(x):
        for layer in layers:
            x = checkpoint(layer, x)
        return x

    def nested(x):
        def pair(i, x):
            return checkpoint(layers[i + 1], checkpoint(layers[i], x))

        return checkpoint(pair, 2, checkpoint(pair, 0, x))

    plain = saved_bytes(lambda x: layers[3](layers[2](layers[1](layers[0](x)))), x)
    assert plain > 4 * 5 * size
    assert saved_bytes(one, x) == 4 * size
    assert saved_bytes(nested, x) == 2 * size


def test_what_was_computed_again_is_freed_and_without_gradient_nothing_is_kept():
    layer, x = Layer(0, dropout=0.0), torch.randn(1001, 8, requires_grad=True)
    out = checkpoint(layer, x)
    out.sum().backward(retain_graph=True)
    gc.collect()
    large = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == (1001, 32)]
    assert large == []
    with torch.no_grad():
        assert checkpoint(layer, x).grad_fn is None


def test_autocast_is_the_same_when_computed_again():
    layer, x = Layer(0, dropout=0.0), torch.randn(4, 8)

    def mixed(call):
        def run(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return call(layer, x).float()

        return run

    assert same(gradients(mixed(checkpoint), [layer], x), gradients(mixed(lambda f, x: f(x)), [layer], x))


def test_a_function_that_does_something_else_the_second_time_is_refused():
    layer, calls = Layer(0), []

    def fickle(x):
        calls.append(1)
        return layer(layer(x)) if len(calls) > 1 else layer(x)

    out = checkpoint(fickle, torch.randn(2, 8, requires_grad=True))
    with pytest.raises(labkit.RefusedError, match=r"saved \d+ tensors at first and \d+ when"):
        out.sum().backward()
    with pytest.raises(labkit.RefusedError, match="no submodule 'blocks.7'"):
        checkpoint_blocks(GPT(GPTConfig(layers=1)), ["blocks.7"])


@pytest.mark.ranks
def test_under_data_parallelism_and_zero_gradients_are_those_without_it():
    config = GPTConfig(context=16, width=32, layers=2)
    x = torch.randint(0, 256, (4, 17), generator=torch.Generator().manual_seed(0))

    def work(group):
        mine, found = x.tensor_split(group.size)[group.rank], []
        for wrap in (
            lambda m: DataParallel(m, group, bucket_bytes=20_000, first_bucket_bytes=2_000),
            lambda m: ZeRO2(m, group, AdamW(), "single", bucket_bytes=20_000),
            lambda m: ZeRO3(m, group, AdamW(), "single"),
        ):
            model = wrap(checkpoint_blocks(GPT(config).double()))
            for _ in range(2):
                model.zero_grad()
                next_token_loss(model(mine[:, :-1]), mine[:, 1:]).backward()
            if isinstance(model, DataParallel):
                found.append({name: p.grad.clone() for name, p in model.module.named_parameters()})
            else:
                found.append(model.gradients())
        return found

    alone = GPT(config).double()
    next_token_loss(alone(x[:, :-1]), x[:, 1:]).backward()
    expected = flat_gradient(alone)
    for result in labkit.launch(work, 2).results:
        for ours in result:
            flat = torch.cat([ours[name].flatten() for name, _ in alone.named_parameters()])
            assert float((flat - expected).abs().max()) <= 1e-12
