"""AdamW on a shard of a flat tensor: what the owner of a shard does with it in `step()`.

Adam treats every element by itself (Kingma & Ba 2015), so a shard may begin and end in the middle of a parameter.
That is what lets ZeRO cut the optimizer's state anywhere. An optimizer that needs the norm of a whole layer
(LARS, LAMB) could not be cut like this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError

BLOCK = (
    1 << 16
)  # elements updated at a time on a CPU: four blocks stay in its cache while seven operations pass over them


@dataclass
class AdamW:
    """Settings of AdamW (Loshchilov & Hutter 2019), with the defaults of `torch.optim.AdamW`.

    A schedule sets `model.optimizer.lr` between steps, alike on every rank.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        for name, value in (("lr", self.lr), ("eps", self.eps), ("weight_decay", self.weight_decay)):
            if not 0 <= value < float("inf"):
                raise RefusedError(f"AdamW({name}={value}): {name} must be a finite number, 0 or more")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise RefusedError(f"AdamW(betas={self.betas}): needs two numbers, each at least 0 and below 1")

    @torch.no_grad()
    def update(self, values: Tensor, gradient: Tensor, momentum: Tensor, variance: Tensor, step: int) -> None:
        """One step on `values`, `momentum` and `variance` (1-D, equally long), in place.

        gradient: as long, of any floating dtype; it is widened to the dtype of `values` block by block. step: 1 for
        the first. The operations and their order are those of `torch.optim.AdamW`.
        """
        beta1, beta2 = self.betas
        size, root = self.lr / (1 - beta1**step), (1 - beta2**step) ** 0.5
        block = BLOCK if values.device.type == "cpu" else max(1, len(values))
        for start in range(0, len(values), block):
            x, g, m, v = (t[start : start + block] for t in (values, gradient, momentum, variance))
            g = g.to(x.dtype)
            x.mul_(1 - self.lr * self.weight_decay)  # decay acts on the weights, not through the gradient
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            x.addcdiv_(m, v.sqrt().div_(root).add_(self.eps), value=-size)
