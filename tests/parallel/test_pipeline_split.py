"""Backward in two parts: the bits of the ordinary one, and in between only what the weights' gradients need."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from labkit.models import CNN, GPT, CNNConfig, GPTConfig
from labkit.parallel import checkpoint_blocks
from labkit.parallel.pipeline.running.split import owners
from labkit.parallel.pipeline.running.stage import Stage

MICROBATCHES = 3


class Twice(nn.Module):
    """One layer used twice, another with a keyword, a pair of outputs, and a weight used outside of its module."""

    def __init__(self):
        super().__init__()
        self.layer, self.pair, self.loose = nn.Linear(6, 6), Pair(), nn.Linear(6, 6, bias=False)

    def forward(self, x):
        first, (second, word) = self.layer(x), self.pair(by=torch.tanh(x))
        assert word == "and"
        return torch.tanh(self.layer(first)) @ self.loose.weight + second


class Pair(nn.Module):
    """A module whose own weights make two products, and that returns more than a tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(6, 6)) for _ in range(2))

    def forward(self, *, by):
        return torch.sigmoid(by @ self.a) @ self.b, "and"


class Attends(nn.Module):
    """An island with an island's weights inside: `in_proj_weight` is its own, `out_proj` a child that is not called."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


CONFIG = GPTConfig(context=8, layers=2, width=12, heads=2, vocab=31)
CASES = {
    "gpt, tied": (lambda: GPT(CONFIG), lambda: torch.randint(0, 31, (3, 8))),
    "gpt, dropout": (lambda: GPT(GPTConfig(context=8, width=12, heads=2, vocab=31, dropout=0.3)),
                     lambda: torch.randint(0, 31, (3, 8))),
    "cnn": (lambda: CNN(CNNConfig()), lambda: torch.randn(4, 1, 8, 8)),
    "norms": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU(inplace=True)),
              lambda: torch.randn(5, 6)),
    "odd": (Twice, lambda: torch.randn(5, 6)),
    "attention": (Attends, lambda: torch.randn(2, 5, 6)),
    "frozen": (lambda: nn.Sequential(nn.Linear(6, 6).requires_grad_(False), nn.Tanh(), nn.Linear(6, 6)),
               lambda: torch.randn(5, 6)),
}  # fmt: skip


def run(make, inputs, split, checkpoint=False, change=None):
    """Gradients of inputs and weights of a stage in the middle of a pipeline, and how often hooks were called."""
    torch.manual_seed(4)
    module = make()
    if change is not None:
        change(module)
    calls = []
    for name, p in module.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(name)) if p.requires_grad else None
    index = 1 if inputs[0].is_floating_point() else 0
    stage = Stage(module, index, None, set(range(MICROBATCHES)) if split else set(), checkpoint=checkpoint, seed=0)
    outputs = [y for k, x in enumerate(inputs) for y in stage.forward(k, (x,))]
    gradients = [torch.cos(y + k) for k, y in enumerate(outputs)]
    back = []
    for k, g in enumerate(gradients):
        back += stage.input_gradient(k, (g,)) if split else stage.backward(k, (g,))
        if split and k:
            stage.weight_gradient(k - 1)
    if split:
        stage.weight_gradient(MICROBATCHES - 1)
    assert not stage.in_flight and not any("forward" in m.__dict__ for m in owners(module)) or change
    return outputs, back, {n: p.grad for n, p in module.named_parameters()}, sorted(calls)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_same_bits_as_in_an_ordinary_backward(name, checkpoint):
    make, draw = CASES[name]
    torch.manual_seed(9)
    inputs = [draw() for _ in range(MICROBATCHES)]
    a, b = run(make, inputs, False), run(make, inputs, True, checkpoint)
    assert all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
    assert len(a[1]) == (MICROBATCHES if inputs[0].is_floating_point() else 0)
    assert all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))
    for key, wanted in a[2].items():
        found = b[2][key]
        assert (wanted is None and found is None) or torch.equal(wanted, found), key
    if name != "odd":  # a weight used outside its own module has its gradient early, and without a hook
        assert a[3] == b[3]


def test_blocks_that_are_checkpointed_by_themselves():
    make, draw = CASES["gpt, tied"]
    inputs = [draw() for _ in range(MICROBATCHES)]
    a, b = run(make, inputs, False), run(make, inputs, True, change=checkpoint_blocks)
    for key, wanted in a[2].items():
        assert torch.equal(wanted, b[2][key]), key


class Alive(TorchDispatchMode):
    """Which of the tensors that operations made inside are still in memory. known: made outside."""

    def __init__(self, known):
        super().__init__()
        self.made, self.known = {}, {x.untyped_storage()._cdata for x in known}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in tree_flatten(out)[0]:
            if isinstance(x, torch.Tensor) and x.numel():
                storage = x.untyped_storage()
                if storage._cdata in self.known:
                    continue
                self.made[storage._cdata, storage.nbytes()] = StorageWeakRef(storage)
        return out

    def nbytes(self):
        return sum(n for (_, n), ref in self.made.items() if not ref.expired())


def test_between_the_two_parts_a_stage_keeps_islands_inputs_and_gradients_of_outputs_only():
    batch, width, hidden = 5, 8, 32
    module = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Softmax(-1),
                           nn.Linear(hidden, width))  # fmt: skip
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    stage = Stage(module, 1, None, {0}, checkpoint=False, seed=0)
    x, g = torch.randn(batch, width), torch.randn(batch, width)
    row = 4 * batch
    with Alive([*module.parameters(), *(p.grad for p in module.parameters()), x, g]) as alive:
        stage.forward(0, (x,))
        # made inside, and kept: GELU's input and output, Tanh's output, Softmax's output
        assert alive.nbytes() == row * 4 * hidden
        (back,) = stage.input_gradient(0, (g,))
        assert back.nbytes == row * width
        del back
        # inputs of the second and third product, gradients of the outputs of the first two; x and g were made outside
        assert alive.nbytes() == row * 4 * hidden
        kept = [n for (_, n), ref in alive.made.items() if not ref.expired()]
        assert kept == [row * hidden] * 4
        stage.weight_gradient(0)
        assert alive.nbytes() == 0
    assert not stage.in_flight


def test_what_lies_between_the_islands_is_freed_by_the_first_part():
    """Attention's products and the activation function's input, which a GPT block keeps for its own backward."""
    torch.manual_seed(0)
    config = GPTConfig(context=32, layers=1, width=16, heads=4, vocab=31)
    block = GPT(config).blocks[0]
    for p in block.parameters():
        p.grad = torch.zeros_like(p)
    d, rows = config.width, 4 * 2 * 32  # bytes of a number for each of two sequences' positions
    x = torch.randn(2, 32, d)
    whole = Stage(block, 1, None, {0}, checkpoint=False, seed=0)
    with Alive([*block.parameters(), *(p.grad for p in block.parameters()), x]) as alive:
        g = torch.ones_like(*whole.forward(0, (x,)))
        after_forward = alive.nbytes() - g.nbytes
        whole.input_gradient(0, (g,))
        inputs = d + d + d + d + 4 * d  # of qkv, out, norm2, up, down; norm1's is the stage's input, made outside
        outputs = d + 3 * d + d + d + 4 * d  # gradients at norm1, qkv, out, norm2, up; that at down is `g`
        statistics = 4  # mean and 1 / spread of both norms
        assert alive.nbytes() - g.nbytes == rows * (inputs + outputs + statistics)
        assert after_forward < rows * (inputs + outputs), "no less than before: attention here keeps no s x s table"
        whole.weight_gradient(0)
        del g
        assert alive.nbytes() == 0
