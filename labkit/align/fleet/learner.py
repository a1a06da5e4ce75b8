"""A model that a pool of ranks trains together: gradients are summed, because losses are shares of one mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.models.weights import flat_gradient
from labkit.wire.group import Group


class Learner:
    """`model` with Adam, replicated on the ranks of `pool`.

    rate: of Adam. max_norm: to which the norm of the summed gradient is clipped.
    """

    def __init__(self, model: nn.Module, pool: Group, rate: float, max_norm: float = 1.0) -> None:
        self.model, self.pool, self.max_norm = model, pool, max_norm
        self.optimizer = torch.optim.Adam(model.parameters(), rate)

    def step(self) -> None:
        """One update by the gradients of all ranks; a rank that has none counts as zeros.

        Sent: one all-reduce of all parameters.
        """
        summed = all_reduce(flat_gradient(self.model), self.pool)
        parameters = list(self.model.parameters())
        for p, part in zip(parameters, summed.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)
        nn.utils.clip_grad_norm_(parameters, self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> list[Tensor]:
        """Adam's moments, in a fixed order; none before the first step."""
        state = self.optimizer.state
        return [state[p][name] for p in self.model.parameters() if p in state for name in ("exp_avg", "exp_avg_sq")]
