"""LAMB: Adam's step, stretched to the layer's own length (You et al. 2020, algorithm 2).

What LARS does to the gradient, LAMB does to Adam's direction r, which knows each element's own scale already.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from labkit.optim.layers import check_settings, dense, norm
from labkit.wire.errors import RefusedError


class LAMB(Optimizer):
    """For each layer w with gradient g, at its own step t = 1, 2, ...

        m = beta1 * m + (1 - beta1) * g             m^ = m / (1 - beta1^t)
        v = beta2 * v + (1 - beta2) * g^2           v^ = v / (1 - beta2^t)
        r = m^ / (sqrt(v^) + eps)
        u = r + weight_decay * w
        w = w - lr * phi(|w|) / |u| * u             phi(z) = min(max(z, bounds[0]), bounds[1])

    So the step's length is lr * phi(|w|), whatever the gradient's. Where phi(|w|) or |u| is zero, the factor is 1.
    adapt: False gives the factor 1 always, which is `torch.optim.AdamW` with the same settings; for biases and norms.

    params: tensors, or groups, such as those of `layer_groups(model, weight_decay)`. A group may set any of the
    settings for itself. Each parameter must be whole on this rank, with the averaged gradient.

    Resident state: two tensors like each parameter, and a step count.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bounds: tuple[float, float] = (0.0, math.inf),
        adapt: bool = True,
    ) -> None:
        check_settings(lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise RefusedError(f"betas={betas}: both must be at least 0 and below 1")
        if not 0 <= bounds[0] <= bounds[1]:
            raise RefusedError(f"bounds={bounds}: give the least and the greatest phi, in this order")
        super().__init__(
            params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bounds=bounds, adapt=adapt)
        )

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
        state, (beta1, beta2) = self.state[w], group["betas"]
        if "t" not in state:
            state["t"], state["m"], state["v"] = 0, torch.zeros_like(w), torch.zeros_like(w)
        state["t"] += 1
        m, v = state["m"], state["v"]
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        spread = (v / (1 - beta2 ** state["t"])).sqrt_().add_(group["eps"])
        u = (m / (1 - beta1 ** state["t"])).div_(spread).add_(w, alpha=group["weight_decay"])
        if group["adapt"]:
            u.mul_(self.stretch(w, u, group["bounds"]))
        w.add_(u, alpha=-group["lr"])

    @staticmethod
    def stretch(w: Tensor, u: Tensor, bounds: tuple[float, float]) -> Tensor:
        """phi(|w|) / |u|, a tensor of one element; 1 where either is zero."""
        phi, length = norm(w).clamp(*bounds), norm(u)
        return (phi / length).where((phi > 0) & (length > 0), 1.0).to(w.dtype)
