"""The backward of a stage in two parts: first the gradient of its input, later the gradients of its weights.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism". The stage before waits for the gradient of the input only.
The gradients of the weights can wait until there is nothing more urgent to do.

How: while the stage runs forward, each module that owns weights is an *island*. It works on a detached input, and has
a small autograd graph of its own. In the graph of the stage one node stands for it, the *bridge*. Backward through
the bridge asks the island for the gradient of its input alone, and notes the gradient of its output. After that the
graph of the stage is freed, with all that lies between the islands: attention's products, what GELU kept. What is left
are the islands, each with its input and the gradient of its output; the second part takes the gradients of the
weights from there. That need not be less than before: of a GPT block it is 18 b t d numbers, where forward with an
attention that writes no t x t table keeps 15.5.

A matrix product computes the same two products as in an ordinary backward, so the gradients are the same bits. A module
that does more than one product with its own weights computes what lies between twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten


def owners(module: nn.Module) -> list[nn.Module]:
    """The modules that become islands: the outermost ones that own trained weights themselves."""
    if any(p is not None and p.requires_grad for p in module._parameters.values()):
        return [module]
    found = dict.fromkeys(owner for child in module.children() for owner in owners(child))
    return list(found)


class Islands:
    """The islands of one forward pass of one stage, and what is to be done with them."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = [p for p in module.parameters() if p.requires_grad]
        # Bridges hang on it, so that backward goes through those too whose inputs are tokens.
        self.anchor = torch.empty(0, requires_grad=True)
        self._edges: list[GradientEdge] = []
        self._gradients: list[Tensor] = []
        self._loose: list[tuple[Tensor, Tensor]] = []

    @contextlib.contextmanager
    def around(self, islands: Sequence[nn.Module]) -> Iterator[None]:
        """Inside, calls of these modules are islands of this forward pass."""
        before = [module.__dict__.get("forward") for module in islands]
        for module in islands:
            module.__dict__["forward"] = partial(self._bridged, module.forward)
        try:
            yield
        finally:
            for module, forward in zip(islands, before, strict=True):
                if forward is None:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = forward

    def _bridged(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        given, spec = tree_flatten((args, kwargs))
        # A tensor given twice is one tensor inside too: modules look (`query is key`), and it has one gradient.
        tensors = list({id(x): x for x in given if isinstance(x, Tensor)}.values())
        shape: list[Any] = []
        out = _Bridge.apply(self, forward, given, spec, shape, self.anchor, *tensors)
        return tree_unflatten([out[i] if i is not None else rest for i, rest in shape[1:]], shape[0])

    def keep(self, edges: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
        """An island's outputs, as places in its graph, and the gradients that arrived at them."""
        self._edges += edges
        self._gradients += gradients

    def input_gradient(
        self, begin: Sequence[tuple[GradientEdge, Tensor | None]], inputs: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Backward from where it begins to the stage's `inputs` and to the islands; returns the inputs' gradients.

        A weight that is used outside its own module is no island: its gradient is computed now, and kept.
        """
        targets = [self.anchor, *self.weights, *inputs]
        roots, gradients = zip(*begin, strict=True)
        found = torch.autograd.grad(roots, targets, gradients, allow_unused=True)
        behind = 1 + len(self.weights)
        self._loose = [(p, g) for p, g in zip(self.weights, found[1:behind], strict=True) if g is not None]
        return found[behind:]

    def weight_gradient(self) -> None:
        """Add the gradients of the weights to their `.grad`; nothing is kept after it.

        One backward for all islands, so that a weight used twice is added up in the usual order, and hooks are called.
        """
        if self._edges:
            torch.autograd.backward(self._edges, self._gradients, inputs=self.weights)
        for p, g in self._loose:
            p.grad = g if p.grad is None else p.grad + g
        self._edges, self._gradients, self._loose = [], [], []


class _Bridge(torch.autograd.Function):
    """Stands in the stage's graph for an island: forward runs it, backward asks it for its input's gradient."""

    @staticmethod
    def forward(
        ctx: Any, islands: Islands, forward: Any, given: list[Any], spec: Any, shape: list[Any], anchor: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
        ours = {id(x): own for x, own in zip(tensors, inputs, strict=True)}
        args, kwargs = tree_unflatten([ours.get(id(x), x) for x in given], spec)
        with torch.enable_grad():
            flat, out_spec = tree_flatten(forward(*args, **kwargs))
        outputs = [y for y in flat if isinstance(y, Tensor)]
        count = iter(range(len(outputs)))
        shape += [out_spec, *((next(count), None) if isinstance(y, Tensor) else (None, y) for y in flat)]
        ctx.islands, ctx.inputs = islands, inputs
        ctx.edges = [get_gradient_edge(y) if y.requires_grad else None for y in outputs]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(y for y in outputs if not y.requires_grad))
        return tuple(y.detach() if y.requires_grad else y for y in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        arrived = [(e, g) for e, g in zip(ctx.edges, gradients, strict=True) if e is not None and g is not None]
        wanted = [x for x in ctx.inputs if x.requires_grad]
        found: Iterator[Tensor | None] = iter(())
        if arrived:
            edges, values = zip(*arrived, strict=True)
            if wanted:
                found = iter(torch.autograd.grad(edges, wanted, values, retain_graph=True, allow_unused=True))
            ctx.islands.keep(edges, values)
        into = [next(found, None) if x.requires_grad else None for x in ctx.inputs]
        ctx.islands = ctx.inputs = ctx.edges = None  # a node frees what autograd saved, not what hangs on it
        return (None,) * 6 + tuple(into)
