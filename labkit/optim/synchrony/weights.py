"""The weights of a module as one flat tensor, which is what goes from rank to rank in this room."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from labkit.collectives import all_gather, broadcast
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class Weights:
    """The trained parameters of `module`, which become those of rank 0. Buffers stay each rank's own.

    options: what else must be the same on all ranks, in words. Costs an all-gather of 16 bytes a rank and a broadcast
    of the weights. Raises RefusedError on every rank if they do not bring the same model and options, and for a module
    without trained parameters or with several dtypes.
    """

    def __init__(self, module: nn.Module, group: Group, options: str = "") -> None:
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.group, self.names, self.parameters = group, [n for n, _ in trained], [p for _, p in trained]
        said = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in trained]
        _refuse_others(options, said, group)
        if not trained:
            raise RefusedError("this module has no parameter that is trained: there is nothing to average")
        if len({p.dtype for p in self.parameters}) > 1:
            raise RefusedError(f"the weights travel as one tensor, and these parameters are not of one dtype: {said}")
        flat = self.read()
        self.numel = len(flat)
        self.write(broadcast(flat, group))

    @torch.no_grad()
    def read(self) -> Tensor:
        """A flat copy of the weights (numel). Raises RefusedError if one is NaN or infinite, by its rank and name."""
        flat = torch.cat([p.flatten() for p in self.parameters])
        if not torch.isfinite(flat.sum()):
            for name, p in zip(self.names, self.parameters, strict=True):
                if bad := p.numel() - int(torch.isfinite(p).sum()):
                    raise RefusedError(
                        f"rank {self.group.rank}: {bad} of the {p.numel()} numbers of parameter {name!r} are NaN or "
                        "infinite, and nothing of it was sent: look at this rank's batch, loss and learning rate"
                    )
        return flat

    @torch.no_grad()
    def write(self, flat: Tensor) -> None:
        """Copy `flat` (numel) into the parameters."""
        for p, part in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
            p.copy_(part.view_as(p))


def _refuse_others(options: str, said: list[str], group: Group) -> None:
    """Raise RefusedError on every rank unless options and parameters are the same on all."""
    mine = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") for text in (options, repr(said))]
    rows = all_gather(torch.tensor([mine], device=group.device), group).tolist()
    for rank, (theirs, model) in enumerate(rows):
        if [theirs, model] != rows[0]:
            what = f"other options ({options} on rank {group.rank})" if theirs != rows[0][0] else "another model"
            raise RefusedError(
                f"rank {rank} brought {what} than rank 0: build both from the same configuration on every rank"
            )
