"""Weights that lie on several ranks of a pipeline and are one weight of the model: their gradients are added up.

A language model's first stage embeds tokens and its last scores them, often with the same matrix (Press & Wolf 2017).
Each of the two ranks then has a copy. Equal copies with equal gradients stay equal under any optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.parallel.pipeline.running.agreement import words
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class Tied:
    """The tied weights of this rank, by the name that all their holders call them by."""

    def __init__(self, weights: Mapping[str, nn.Parameter], group: Group) -> None:
        """Every rank of the group calls it, with what it holds, or nothing."""
        lines = [f"{name}\t{tuple(p.shape)} {p.dtype}" for name, p in weights.items()]
        holders: dict[str, list[int]] = {}
        kinds: dict[str, tuple[int, str]] = {}
        for rank, text in enumerate(words(group, "\n".join(lines))):
            for line in text.splitlines():
                name, kind = line.split("\t")
                first, known = kinds.setdefault(name, (rank, kind))
                if known != kind:
                    raise RefusedError(
                        f"the tied weight {name!r} is {kind} on rank {rank} and {known} on rank {first}: "
                        "tied weights have one shape and one dtype"
                    )
                holders.setdefault(name, []).append(rank)
        self.shared = any(len(ranks) > 1 for ranks in holders.values())
        self._weights = [(p, group.subgroup(holders[name])) for name, p in sorted(weights.items())
                         if len(holders[name]) > 1]  # fmt: skip
        self._before: list[Tensor | None] = []

    def begin(self) -> None:
        """Set aside what earlier steps have added up: it has been summed already."""
        self._before = [p.grad for p, _ in self._weights]
        for p, _ in self._weights:
            p.grad = None

    def finish(self) -> None:
        """Add up this step's gradients over their holders: an all-reduce of each weight between its ranks."""
        for (p, holders), before in zip(self._weights, self._before, strict=True):
            if not p.requires_grad:
                continue
            gradient = (torch.zeros_like(p) if p.grad is None else p.grad).contiguous()
            all_reduce(gradient, holders)
            p.grad = gradient if before is None else before.add_(gradient)
        self._before = []
