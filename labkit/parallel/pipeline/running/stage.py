"""One stage of a pipeline on its rank: what it keeps of each microbatch between forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.parallel.pipeline.running.split import Islands, owners

Head = Callable[[Tensor, int], Tensor]  # the last stage: (output, microbatch) -> its share of the loss


@dataclass
class Kept:
    """What one microbatch leaves behind: the input, and where backward begins. With checkpointing the input alone."""

    x: Tensor | None
    root: GradientEdge | None = None
    islands: Islands | None = None


class Stage:
    """Runs `module` as stage `index`, for one step.

    head: what the last stage does with its output. split: microbatches whose backward comes in two parts.
    checkpoint: keep the input only, and run forward again when backward comes.
    seed: of random numbers. Every stage and microbatch draws its own, so that the order of a schedule, and running
        again, change nothing.
    """

    def __init__(
        self, module: nn.Module, index: int, head: Head | None, split: set[int], *, checkpoint: bool, seed: int
    ) -> None:
        self.module, self.index, self.head = module, index, head
        self.split, self.checkpoint, self.seed = split, checkpoint, seed
        self.kept: dict[int, Kept] = {}  # between forward and the gradient of the input
        self.waiting: dict[int, Islands] = {}  # between the gradient of the input and that of the weights
        self._owners = owners(module) if split else []

    def forward(self, microbatch: int, x: Tensor) -> Tensor:
        """Run forward; returns the output, or the last stage's share of the loss, without a graph."""
        if self.index > 0:
            x = x.detach().requires_grad_()
        if self.checkpoint:
            with torch.no_grad():
                y = self._run(microbatch, x)
            self.kept[microbatch] = Kept(x)
            return y
        kept, y = self._with_graph(microbatch, x)
        self.kept[microbatch] = kept
        return y

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Add the gradients of the weights to `.grad`, and return that of the input (None for the first stage)."""
        kept = self._take(microbatch)
        x = kept.x
        if kept.root is not None:
            torch.autograd.backward([kept.root], [gradient])
        return self._of_input(x, None if x is None else x.grad)

    def input_gradient(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Return the gradient of the input; what the weights' gradients are made of is kept."""
        kept = self._take(microbatch)
        assert kept.islands is not None
        self.waiting[microbatch] = kept.islands
        if kept.root is None:
            return self._of_input(kept.x, None)
        return self._of_input(kept.x, kept.islands.input_gradient(kept.root, gradient, kept.x))

    def weight_gradient(self, microbatch: int) -> None:
        """Add the gradients of the weights to `.grad`."""
        self.waiting.pop(microbatch).weight_gradient()

    def update(self, microbatch: int) -> None:
        """Only a stage that keeps versions of its weights can update them in the middle of a step."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """Microbatches of which something is kept, from forward to the end of the backward."""
        return len(self.kept) + len(self.waiting)

    def _take(self, microbatch: int) -> Kept:
        kept = self.kept.pop(microbatch)
        if self.checkpoint:
            assert kept.x is not None
            kept, _ = self._with_graph(microbatch, kept.x)
        return Kept(kept.x if self.index > 0 else None, kept.root, kept.islands)

    def _with_graph(self, microbatch: int, x: Tensor) -> tuple[Kept, Tensor]:
        islands = Islands(self.module) if microbatch in self.split else None
        with contextlib.nullcontext() if islands is None else islands.around(self._owners):
            y = self._run(microbatch, x)
        # The place in the graph is enough for backward: what the next stage got need not be kept here.
        root = get_gradient_edge(y) if y.requires_grad else None
        return Kept(x if self.index > 0 else None, root, islands), y.detach()

    def _run(self, microbatch: int, x: Tensor) -> Tensor:
        with drawing(self.seed, self.index, microbatch, x.device):
            y = self._call(microbatch, x)
            return y if self.head is None else self.head(y, microbatch)

    def _call(self, microbatch: int, x: Tensor) -> Tensor:
        y: Tensor = self.module(x)
        return y

    def _of_input(self, x: Tensor | None, gradient: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        return torch.zeros_like(x) if gradient is None else gradient  # zeros: nothing here depends on the input


@contextlib.contextmanager
def drawing(seed: int, stage: int, microbatch: int, device: torch.device) -> Iterator[None]:
    """Inside, random numbers follow from seed, stage and microbatch; the caller's sequence is left alone."""
    number = seed
    for part in (stage, microbatch):
        number = (number * 1_000_003 + part + 1) % (1 << 63)
    devices: list[Any] = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(number)
        yield
