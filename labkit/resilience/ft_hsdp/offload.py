"""The optimizer's state in host memory between steps: on the device only while it is needed.

Every copy is a real one and is counted, also where the device is the CPU and nothing is saved. A paper that trains at
100,000 GPUs takes about 60 ms a GB for the way back (Salpekar et al. 2026, section 5).
"""

from __future__ import annotations

import torch
from torch import Tensor


class Offload:
    """Moves what `optimizer` keeps for its parameters. copied: bytes to the host and back. on: False does nothing.

    Numbers and tensors without dimensions stay where they are.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, on: bool):
        self.optimizer, self.on = optimizer, on
        self.copied = {"to_host": 0, "to_device": 0}

    @torch.no_grad()
    def to_host(self) -> None:
        """Copy the state to host memory (pinned, for a GPU) and let the device's go."""
        for p, found in self._states():
            for key, x in found.items():
                if isinstance(x, Tensor) and x.dim():
                    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=p.is_cuda)
                    found[key] = host.copy_(x)
                    self.copied["to_host"] += x.nbytes

    @torch.no_grad()
    def to_device(self) -> None:
        """Copy it back, for the optimizer to work on."""
        for p, found in self._states():
            for key, x in found.items():
                if isinstance(x, Tensor) and x.dim():
                    found[key] = torch.empty(x.shape, dtype=x.dtype, device=p.device).copy_(x, non_blocking=True)
                    self.copied["to_device"] += x.nbytes

    def _states(self) -> list[tuple[Tensor, dict]]:
        return list(self.optimizer.state.items()) if self.on else []
