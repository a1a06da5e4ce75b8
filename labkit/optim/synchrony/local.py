"""Local SGD: every rank trains alone for H steps, then all take the average of their weights.

    model = LocalSGD(module, group, optimizer, every=8)
    loss.backward()
    model.step()                   # in place of optimizer.step()
    optimizer.zero_grad()

A round sends one all-reduce of the weights where data parallelism sends one of the gradients in every step: a share
1 / H of its bytes. What it costs is that ranks drift apart in between.

With an outer optimizer the average is not taken as it is. What the ranks have moved by, on average, is the gradient of
a second optimizer, whose weights begin the next round (DiLoCo: Douillard et al. 2023, with AdamW inside and Nesterov
momentum outside; FedOpt: Reddi et al. 2021; SlowMo: Wang et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.optim.synchrony.weights import Weights
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

Outer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def nesterov(lr: float = 0.7, momentum: float = 0.9) -> Outer:
    """The outer optimizer of DiLoCo, with the rate and the momentum of its paper."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=True)


class LocalSGD:
    """Trains the parameters of `module` with `optimizer` on this rank, and brings all ranks together in rounds.

    every: local steps in a round, H (Stich 2019; McMahan et al. 2017). With plain SGD or momentum, and no outer
    optimizer, H = 1 is data-parallel training, but for rounding. outer: a function that makes the outer optimizer of a
    list of parameters, which holds one flat tensor with all weights; its state is the same on every rank.
    start: until then every step ends with an average, and with none of the outer optimizer: post-local SGD (Lin et al.
    2020). algorithm: of the all-reduce.

    Each rank's `optimizer` keeps its own state; momentum and second moments are not averaged, as in DiLoCo.
    Bytes: `cost.local_sgd_bytes_by_rank`. Raises RefusedError, on every rank, if ranks bring different models or
    options; and, before anything is sent, on a rank whose weights are not finite.
    """

    def __init__(
        self, module: nn.Module, group: Group, optimizer: torch.optim.Optimizer, every: int, outer: Outer | None = None,
        start: int = 0, algorithm: str = "auto",
    ):  # fmt: skip
        if type(every) is not int or every < 1:
            raise RefusedError(f"every={every!r}: the local steps of a round, a whole number of at least 1")
        if type(start) is not int or start < 0:
            raise RefusedError(f"start={start!r}: the step from which on ranks train alone, 0 or later")
        self.group, self.optimizer, self.every, self.start, self.algorithm = group, optimizer, every, start, algorithm
        options = f"every={every}, start={start}, outer={'yes' if outer else 'no'}, algorithm={algorithm}"
        self.weights = Weights(module, group, options)
        self.steps = 0  # taken
        self.anchor = nn.Parameter(self.weights.read()) if outer else None  # the weights that the round began with
        self.outer = outer([self.anchor]) if outer and self.anchor is not None else None

    def step(self) -> None:
        """A step of this rank's own optimizer; the last one of a round ends with the average."""
        self.optimizer.step()
        self.steps += 1
        if self.steps <= self.start or (self.steps - self.start) % self.every == 0:
            self.synchronize()

    def synchronize(self) -> None:
        """End the round now, wherever it is. Every rank calls it: after the last step of a training, say."""
        mean: Tensor = all_reduce(self.weights.read(), self.group, "avg", algorithm=self.algorithm)
        if self.outer is not None and self.anchor is not None:
            if self.steps > self.start:
                self.anchor.grad = self.anchor.detach() - mean  # the pseudo-gradient: downhill is where the ranks went
                self.outer.step()
            else:
                self.anchor.data.copy_(mean)
            mean = self.anchor.detach()
        self.weights.write(mean)
