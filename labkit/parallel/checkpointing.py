"""Activation checkpointing: keep the inputs of a block, and compute what is inside again when backward needs it.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost". A block keeps its input in place of all that
its layers would keep (`labkit.cost.checkpointed_activation_bytes`), and its forward pass runs twice.

How: autograd hands every tensor that it saves to a pair of hooks. The first notes only "number i", and drops the
tensor. When backward asks for number i, the second runs the block again and keeps what is saved this time. The graph
is that of the first forward pass, so gradients arrive once for each parameter and in the usual order: hooks of
data parallelism and ZeRO see nothing unusual.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from labkit.wire.errors import RefusedError


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, whose intermediate tensors are not kept, but computed again in backward.

    function: must do the same when it is called again with the same inputs and random state; changing what it reads
        (a list, a buffer) between forward and backward is not noticed unless it saves other tensors then.
    args, kwargs: their tensors (not those inside lists) are kept. A call inside another `checkpoint` keeps nothing
        until the outer block has been computed again.
    Random numbers (CPU, and the current GPU) and autocast are the same in both runs, and what comes after backward
    draws the numbers that it would have drawn. Kept for that: about 5 kB a call.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    region = _Region(function, args, kwargs)
    with saved_tensors_hooks(region.note, region.recall):
        return function(*args, **kwargs)


def checkpoint_blocks(module: nn.Module, blocks: Sequence[str] | None = None) -> nn.Module:
    """Checkpoint the forward pass of each block of `module`, in place; returns `module`.

    blocks: names of submodules; by default the members of every `nn.ModuleList`. Do it before the model is wrapped.
    """
    if blocks is None:
        lists = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
        blocks = [f"{name}.{i}" if name else str(i) for name, part in lists for i in range(len(part))]
    known = dict(module.named_modules())
    for name in blocks:
        if name not in known:
            raise RefusedError(f"blocks={list(blocks)!r}: the model has no submodule {name!r}")
        known[name].forward = functools.partial(checkpoint, known[name].forward)
    return module


class _Keep(torch.autograd.Function):
    """Saves its inputs, for `_Region`. The node is never reached by backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing depends on this")


class _Region:
    """One call: its inputs, its random state, and what was saved when it ran again, by number."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.names = function, list(kwargs)
        everything = [*args, *kwargs.values()]
        self.is_tensor = [isinstance(x, Tensor) for x in everything]
        self.wants = [x.requires_grad for x in everything if isinstance(x, Tensor)]
        self.rest = [None if isinstance(x, Tensor) else x for x in everything]
        # Inside another region the inputs must not be kept either. So autograd saves them, by the hooks of that one.
        anchor = torch.empty(0, requires_grad=True)
        self.kept = _Keep.apply(anchor, *(x for x in everything if isinstance(x, Tensor))).grad_fn
        self.random, self.autocast = _random_state(), _autocast()
        self.count, self.again = 0, dict[int, Tensor]()

    def note(self, x: Tensor) -> int:
        """Autograd saves `x` in the first run: only its number is kept."""
        self.count += 1
        return self.count - 1

    def recall(self, number: int) -> Tensor:
        """Autograd wants what it saved under `number`."""
        if number not in self.again:  # the first to be asked for, or backward runs a second time
            self._run_again()
        return self.again.pop(number)

    def _run_again(self) -> None:
        saved: list[Tensor] = []
        given = iter([x.detach().requires_grad_(w) for x, w in zip(self.kept.saved_tensors, self.wants, strict=True)])
        values = [next(given) if t else x for t, x in zip(self.is_tensor, self.rest, strict=True)]
        split = len(values) - len(self.names)
        before = _random_state()
        _set_random_state(self.random)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.enable_grad())
                for kind, dtype, enabled in self.autocast:
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
                stack.enter_context(saved_tensors_hooks(_appending(saved), _nobody_asks))
                self.function(*values[:split], **dict(zip(self.names, values[split:], strict=True)))
        finally:
            _set_random_state(before)
        if len(saved) != self.count:
            raise RefusedError(
                f"a checkpointed function saved {self.count} tensors at first and {len(saved)} when it was "
                "computed again: it must do the same with the same inputs"
            )
        self.again = dict(enumerate(saved))


def _appending(saved: list[Tensor]) -> Callable[[Tensor], int]:
    def keep(x: Tensor) -> int:
        saved.append(x.detach())
        return len(saved) - 1

    return keep


def _nobody_asks(number: int) -> Tensor:
    raise AssertionError("the second run has no backward pass of its own")


def _random_state() -> list[Tensor]:
    gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if gpu else [])]


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


def _autocast() -> list[tuple[str, torch.dtype, bool]]:
    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]
