"""Models that were changed after wrapping, or cannot be wrapped: what would be wrong without anybody noticing."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from torch import nn

from labkit.wire.errors import RefusedError

if TYPE_CHECKING:
    from labkit.parallel.fsdp.flat_parameter import FlatParameter


class Unchanged:
    """Remembers the parameters of a module, and refuses it when they have changed since."""

    def __init__(self, module: nn.Module, rank: int):
        self._rank = rank
        self._known = [(name, p, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]

    def check(self, module: nn.Module) -> None:
        """The same parameters, in the same shapes, trained or frozen as before."""
        for known, p in zip_longest(self._known, module.parameters()):
            if known is None or p is None or p is not known[1]:
                what = "a parameter was added" if known is None else f"parameter {known[0]!r} was replaced or removed"
            elif tuple(p.shape) != known[2]:
                what = f"parameter {known[0]!r} was resized from {known[2]} to {tuple(p.shape)}"
            elif p.requires_grad != known[3]:
                what = f"parameter {known[0]!r} was {'frozen' if known[3] else 'unfrozen'}"
            else:
                continue
            raise RefusedError(
                f"rank {self._rank}: {what} after wrapping, and its gradient has no place in the buckets: "
                "change the module first, then wrap it (again)"
            )


def refuse_sparse(module: nn.Module) -> None:
    """A sparse gradient lists the rows that it has, and these differ between ranks: a bucket has no place for it."""
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) is True:
            raise RefusedError(
                f"{name!r} makes sparse gradients, which cannot lie in a bucket: build it with sparse=False"
            )


def refuse_replaced(flat_param: FlatParameter, module: nn.Module, attribute: str, name: str) -> None:
    """A module may not hold a parameter of its own where a gathered one goes."""
    if attribute in module._parameters:
        raise RefusedError(
            f"rank {flat_param.world_rank}: parameter {name!r} was replaced or resized after wrapping (now "
            f"{list(module._parameters[attribute].shape)}): the optimizer and the other ranks know nothing "  # type: ignore[union-attr]
            "of it. Change the model first, then wrap it"
        )
