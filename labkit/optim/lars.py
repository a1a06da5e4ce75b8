"""LARS: a step whose length is a part of the layer's own length (You, Gitman & Ginsburg 2017, algorithm 1).

With a large batch the rate must be large, and then the layer with the largest |gradient| / |weight| is the one that
diverges. LARS divides that ratio out: every layer moves by about `lr * trust` of its length, whatever its gradient's.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from labkit.optim.layers import check_settings, dense, norm
from labkit.wire.errors import RefusedError


class LARS(Optimizer):
    """SGD with momentum and, for each layer w with gradient g, its own rate.

        local = trust * |w| / (|g| + weight_decay * |w|)
        v     = momentum * v + lr * local * (g + weight_decay * w)
        w     = w - v

    The rate stands inside the momentum, as in the paper: when `lr` changes, what v has gathered keeps the old one.
    (`torch.optim.SGD` multiplies afterwards; with a constant rate the two are the same.)

    params: tensors, or groups, such as those of `layer_groups(model, weight_decay)`. A group may set any of the
    settings for itself. adapt: False gives local = 1, plain SGD with momentum, for biases and norms.
    Where |w| is zero, or |g| + weight_decay * |w| is, local is 1.
    Each parameter must be whole on this rank, with the averaged gradient: the norm of a shard is not the layer's.

    Resident state: one tensor like each parameter.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
    ) -> None:
        check_settings(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        if momentum >= 1:
            raise RefusedError(f"momentum={momentum}: it must be below 1, or old gradients never fade")
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust, adapt=adapt))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. Returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, dense(w), group)
        return loss

    def _update(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        decay, state = group["weight_decay"], self.state[w]
        if "v" not in state:
            state["v"] = torch.zeros_like(w)
        step = g.add(w, alpha=decay)
        if group["adapt"]:
            step.mul_(self.local_rate(w, g, decay, group["trust"]))
        state["v"].mul_(group["momentum"]).add_(step, alpha=group["lr"])
        w.sub_(state["v"])

    @staticmethod
    def local_rate(w: Tensor, g: Tensor, weight_decay: float, trust: float) -> Tensor:
        """trust * |w| / (|g| + weight_decay * |w|), a tensor of one element; 1 where either norm is zero."""
        length = norm(w)
        below = norm(g) + weight_decay * length
        return (trust * length / below).where((length > 0) & (below > 0), 1.0).to(w.dtype)
