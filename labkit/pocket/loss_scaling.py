"""Dynamic loss scaling (Micikevicius et al. 2018, section 3.2) on several ranks: one answer for all of them.

    scaler = LossScaler(group)
    (loss * scaler.scale).backward()       # small gradients of 16 bits are now large enough
    scaler.step(optimizer)                 # all ranks take it, or none

Nobody knows how large the scale may be, so it is found by trying: it doubles after many good steps, and is halved
after one whose gradients are not finite. A rank may hold a shard of the gradients only (ZeRO, FSDP), and see an
infinity that no other sees. So all ranks ask for the worst of them, by an all-reduce of 4 bytes.

What the full one (`labkit.optim.precision.LossScaler`) does more: other factors, a static scale, counts, refusals.
"""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from labkit.collectives import all_reduce
from labkit.wire import Group


class LossScaler:
    def __init__(self, group: Group, scale: float = 2.0**16, interval: int = 2000) -> None:
        self.group, self.scale, self.interval, self.good = group, scale, interval, 0

    def step(self, optimizer: Optimizer) -> bool:
        gradients = [p.grad for some in optimizer.param_groups for p in some["params"] if p.grad is not None]
        bad = torch.tensor([float(any(not g.isfinite().all() for g in gradients))])
        all_reduce(bad, self.group, op="max")  # also the ranks whose own gradients are fine
        if bad:
            self.scale, self.good = self.scale / 2, 0
            return False
        for gradient in gradients:
            gradient.div_(self.scale)
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0
        return True
