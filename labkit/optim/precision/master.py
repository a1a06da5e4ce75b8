"""Master weights: a model of 16 bits, and a copy of its weights in 32 that the updates are added to.

An update is about the learning rate times the weight's own size, and a BF16 number has 8 significant bits: whatever is
less than 1/512 of a weight is rounded away, in every step again, and the weight never moves. Added to a float32 copy
the updates are kept, and after some steps they are large enough to be seen in 16 bits (Micikevicius et al. 2018, 3.1).
Adam holds 8 bytes for each weight anyway; the copy makes them 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class MasterWeights:
    """optimizer = MasterWeights(model.parameters(), lambda masters: torch.optim.AdamW(masters, lr=1e-3))

    `model` is of 16 bits (`model.to(torch.bfloat16)`), and so are its gradients. `step` gives them to the optimizer
    in float32, and rounds the new masters into the model. Parameters without a gradient are left alone.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make: Callable[[list[Tensor]], Optimizer]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.masters = [p.detach().float().clone().requires_grad_() for p in self.parameters]
        self.optimizer = make(list(self.masters))

    @torch.no_grad()
    def step(self) -> None:
        for p, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        self.optimizer.step()
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.copy_(master)

    def zero_grad(self) -> None:
        """Forget the gradients of the model."""
        for p in self.parameters:
            p.grad = None
