"""One stage of a pipeline on its rank: what it keeps of each microbatch between forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.parallel.pipeline.running.split import Islands, owners

Tensors = tuple[Tensor, ...]  # what crosses a boundary, or comes back: one tensor, or several
LossFn = Callable[[Any, int], Tensor]  # the last stage: (what it returns, microbatch) -> its share of the loss


def comes_back(dtype: torch.dtype) -> bool:
    """Whether numbers of this kind have a gradient: floating-point and complex ones. Masks only travel forward."""
    return dtype.is_floating_point or dtype.is_complex


def have_gradients(tensors: Iterable[Tensor]) -> Tensors:
    """Those of which a gradient comes back."""
    return tuple(x for x in tensors if comes_back(x.dtype))


@dataclass
class SavedActivations:
    """What one microbatch leaves behind: its inputs, and where backward begins. With checkpointing the inputs alone.

    roots: of each output that has a gradient; None where nothing with a gradient went into it.
    """

    inputs: Tensors
    roots: Sequence[GradientEdge | None] = ()
    islands: Islands | None = None


class Stage:
    """Runs `module` as stage `index`, for one step.

    head: what the last stage does with its output. split: microbatches whose backward comes in two parts.
    checkpoint: keep the input only, and run forward again when backward comes.
    seed: of random numbers. Every stage and microbatch draws its own, so that the order of a schedule, and running
        again, change nothing.
    """

    def __init__(
        self, module: nn.Module, index: int, loss_fn: LossFn | None, split: set[int], *, checkpoint: bool, seed: int
    ) -> None:
        self.module, self.index, self.loss_fn = module, index, loss_fn
        self.split, self.checkpoint, self.seed = split, checkpoint, seed
        self.saved: dict[int, SavedActivations] = {}  # between forward and the gradient of the input
        self.waiting: dict[int, Islands] = {}  # between the gradient of the input and that of the weights
        self._owners = owners(module) if split else []

    def forward(self, microbatch: int, inputs: Tensors) -> Tensors:
        """Run forward; returns the outputs, or the last stage's share of the loss, without a graph."""
        if self.index > 0:
            inputs = tuple(x.detach().requires_grad_(comes_back(x.dtype)) for x in inputs)
        if self.checkpoint:
            with torch.no_grad():
                outputs = self._run(microbatch, inputs)
            self.saved[microbatch] = SavedActivations(inputs)
            return outputs
        saved, outputs = self._with_graph(microbatch, inputs)
        self.saved[microbatch] = saved
        return outputs

    def backward(self, microbatch: int, gradients: Tensors | None) -> Tensors:
        """Add the gradients of the weights to `.grad`, and return those of the inputs (none for the first stage).

        gradients: of the outputs that have one, in their order; None for the last stage, whose loss begins with 1.
        """
        saved = self._take(microbatch)
        begin = _begin(saved.roots, gradients)
        if begin:
            torch.autograd.backward([root for root, _ in begin], [g for _, g in begin])
        return self._of_inputs(saved, [x.grad for x in have_gradients(saved.inputs)])

    def input_gradient(self, microbatch: int, gradients: Tensors | None) -> Tensors:
        """Return the gradients of the inputs; what the weights' gradients are made of is kept."""
        saved = self._take(microbatch)
        assert saved.islands is not None
        self.waiting[microbatch] = saved.islands
        targets = have_gradients(saved.inputs)
        begin = _begin(saved.roots, gradients)
        return self._of_inputs(saved, saved.islands.input_gradient(begin, targets) if begin else [None] * len(targets))

    def weight_gradient(self, microbatch: int) -> None:
        """Add the gradients of the weights to `.grad`."""
        self.waiting.pop(microbatch).weight_gradient()

    def update(self, microbatch: int) -> None:
        """Only a stage that keeps versions of its weights can update them in the middle of a step."""
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """Microbatches of which something is kept, from forward to the end of the backward."""
        return len(self.saved) + len(self.waiting)

    def _take(self, microbatch: int) -> SavedActivations:
        saved = self.saved.pop(microbatch)
        if self.checkpoint:
            saved, _ = self._with_graph(microbatch, saved.inputs)
        return saved

    def _with_graph(self, microbatch: int, inputs: Tensors) -> tuple[SavedActivations, Tensors]:
        islands = Islands(self.module) if microbatch in self.split else None
        with contextlib.nullcontext() if islands is None else islands.around(self._owners):
            outputs = self._run(microbatch, inputs)
        # The places in the graph are enough for backward: what the next stage got need not be kept here.
        roots = [get_gradient_edge(y) if y.requires_grad else None for y in have_gradients(outputs)]
        return SavedActivations(inputs if self.index > 0 else (), roots, islands), tuple(y.detach() for y in outputs)

    def _run(self, microbatch: int, inputs: Tensors) -> Tensors:
        with drawing(self.seed, self.index, microbatch, inputs[0].device):
            y = self._call(microbatch, inputs)
            if self.loss_fn is not None:
                return (self.loss_fn(y, microbatch),)
            return y if isinstance(y, tuple) else (y,)

    def _call(self, microbatch: int, inputs: Tensors) -> Any:
        return self.module(*inputs)

    def _of_inputs(self, saved: SavedActivations, gradients: Sequence[Tensor | None]) -> Tensors:
        pairs = zip(have_gradients(saved.inputs), gradients, strict=True)
        return tuple(torch.zeros_like(x) if g is None else g for x, g in pairs)  # zeros: nothing depends on this one


Begin = list[tuple[GradientEdge, Tensor | None]]  # where backward starts, with what; None is the 1 of a loss


def _begin(roots: Sequence[GradientEdge | None], gradients: Tensors | None) -> Begin:
    given = [None] * len(roots) if gradients is None else gradients
    return [(root, g) for root, g in zip(roots, given, strict=True) if root is not None]


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
