"""How gradients become an update: what each worker has pushed in a clock, their average, and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.optim.synchrony import DelayCompensation
from labkit.parallel.server.shards import summed
from labkit.wire.errors import RefusedError

Part = tuple[Tensor | None, Tensor]  # ids of rows, in ascending order, or None for all; a gradient for each
Pushed = dict[str, list[Part]]  # what one worker pushed in one clock, by parameter


class Updates:
    """The weights of one server (`pieces`: by name, the rows that it has), and what changes them.

    optimizer: makes one of torch for a list of parameters; of the rows that a push names it gets a sparse gradient.
    With several servers it must treat every element by itself, as SGD and Adam do.
    rate: staleness -> what the learning rate is multiplied by.
    """

    def __init__(
        self, pieces: Mapping[str, Tensor], optimizer: Callable[[list[nn.Parameter]], Optimizer],
        rate: Callable[[int], float], compensation: DelayCompensation | None,
    ):  # fmt: skip
        self.pieces = {name: nn.Parameter(x.detach().clone()) for name, x in pieces.items()}
        self._optimizer, self._rate, self._compensation = optimizer(list(self.pieces.values())), rate, compensation
        self._then: dict[tuple[int, str], Tensor] = {}  # the weights that a worker computes on

    def read(self, worker: int, name: str, rows: Tensor | None) -> Tensor:
        """A copy of the weights for `worker`: they change while it is on its way."""
        piece = self.pieces[name].detach()
        copy = piece.clone() if rows is None else piece[rows]
        if self._compensation is not None and rows is None:
            self._then[worker, name] = copy
        return copy

    def check(self, name: str, rows: Tensor | None, gradient: Tensor, whose: str) -> None:
        """Refuse a gradient that is not finite, or that cannot be compensated."""
        bad = gradient.numel() - int(torch.isfinite(gradient).sum())
        if bad:
            raise RefusedError(
                f"{whose} pushed a gradient of {name!r} in which {bad} of {gradient.numel()} numbers are NaN or "
                "infinite, and nothing of it was applied: look at that rank's batch and loss"
            )
        if self._compensation is not None and rows is not None:
            raise RefusedError(f"{whose} pushed rows of {name!r}, and delay compensation is for whole parameters only")

    def apply(self, pushed: Sequence[tuple[int, Pushed]], tau: int) -> None:
        """One step with the average of what these workers pushed, added in this order; who pushed none counts as 0."""
        for name, p in self.pieces.items():
            parts = [self._compensated(worker, name, part) for worker, own in pushed for part in own.get(name, ())]
            p.grad = _average(parts, p, len(pushed)) if parts else None
        factor, groups = self._rate(tau), self._optimizer.param_groups
        before = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= factor
        self._optimizer.step()
        for group, lr in zip(groups, before, strict=True):
            group["lr"] = lr

    def _compensated(self, worker: int, name: str, part: Part) -> Part:
        then = self._then.get((worker, name))
        if self._compensation is None or then is None:
            return part
        return None, self._compensation(part[1], then, self.pieces[name].detach())


def _average(parts: Sequence[Part], p: Tensor, count: int) -> Tensor:
    """The sum of the parts, in order, divided by `count`: sparse if all of them are rows."""
    if all(rows is not None for rows, _ in parts):
        rows, values = summed(torch.cat([r for r, _ in parts if r is not None]), torch.cat([v for _, v in parts]))
        return torch.sparse_coo_tensor(rows[None], values / count, p.shape, check_invariants=False, is_coalesced=True)
    total = torch.zeros_like(p)
    for some, values in parts:
        total = total + values if some is None else total.index_add(0, some, values)
    return total / count
