"""PipeDream's stages: a weight update for each microbatch, and old weights kept for microbatches on their way.

Source: Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", section 3.3. Without a
flush a stage updates its weights between the forward and the backward of a microbatch. Backward with the new weights
would be the gradient of nothing. So each microbatch keeps the version that its forward has used (*weight stashing*),
and the gradient found with it is applied to the newest one. Stage s of p holds p - s versions at most, the newest
included.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from labkit.parallel.pipeline.running.stage import Stage, Tensors

Version = dict[str, Tensor]


class Stash:
    """The versions of one module's weights. It lasts as long as the pipeline; `most` is the most that were held."""

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self.module, self.optimizer = module, optimizer
        self.used: dict[int, Version] = {}  # by microbatch, from its forward to its backward
        self.gradients: dict[int, list[Tensor | None]] = {}  # from its backward to its update
        self._newest: Version | None = None
        self.most = 1

    def of(self, microbatch: int) -> Version:
        """The version that a microbatch uses: the newest one when its forward begins."""
        if microbatch not in self.used:
            if self._newest is None:
                # `.data` has a count of changes of its own: the optimizer may change one while autograd keeps the other
                self._newest = {n: p.data.requires_grad_(p.requires_grad) for n, p in self.module.named_parameters()}
            self.used[microbatch] = self._newest
        return self.used[microbatch]

    @property
    def held(self) -> int:
        """Versions in memory now: the newest weights, and older ones that a microbatch still uses."""
        return 1 + len({id(version) for version in self.used.values() if version is not self._newest})

    def done(self, microbatch: int) -> None:
        """Backward of a microbatch is over: take its gradients, and let go of its version."""
        version = self.used.pop(microbatch)
        self.gradients[microbatch] = [v.grad for v in version.values()]
        for v in version.values():
            v.grad = None

    def update(self, microbatch: int) -> None:
        """Apply the gradients of a microbatch to the newest weights; the result is a new version."""
        parameters = list(self.module.parameters())
        if any(version is self._newest for version in self.used.values()):
            for p in parameters:
                p.data = p.data.clone()  # what the others go on using is the old memory
        self._newest = None
        self.most = max(self.most, self.held)
        for p, gradient in zip(parameters, self.gradients.pop(microbatch), strict=True):
            p.grad = gradient
        self.optimizer.step()
        for p in parameters:
            p.grad = None


class StashingStage(Stage):
    """A stage whose microbatches each use the version of the weights that their forward began with."""

    def __init__(self, module: nn.Module, index: int, loss_fn: Any, stash: Stash, **options: Any) -> None:
        super().__init__(module, index, loss_fn, set(), **options)
        self.stash = stash

    def _call(self, microbatch: int, inputs: Tensors) -> Any:
        return functional_call(self.module, self.stash.of(microbatch), inputs)

    def backward(self, microbatch: int, gradients: Tensors | None) -> Tensors:
        """As `Stage.backward`; gradients of the weights are kept for the update."""
        found = super().backward(microbatch, gradients)
        self.stash.done(microbatch)
        return found

    def update(self, microbatch: int) -> None:
        """The optimizer's step with the gradient of this microbatch alone."""
        self.stash.update(microbatch)
