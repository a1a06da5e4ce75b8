"""Which keys a query may read, asked for any two sets of positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Mask:
    """causal: a query reads its own position and those before it. window: it reads positions less than that far away,
    itself included (Beltagy et al. 2020, "Longformer"). documents: the number of each position's document, for
    sequences packed out of several texts: a query reads its own one only. `Mask(causal=False)` hides nothing.
    """

    causal: bool = True
    window: int | None = None
    documents: Tensor | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise RefusedError(f"a window of {self.window} positions: each query reads at least itself, so 1 or more")
        d = self.documents
        if d is not None and (d.dim() != 1 or d.is_floating_point() or bool((d.diff() < 0).any())):
            raise RefusedError(
                "documents: one whole number for each position, and a text stands in one piece, so they ascend "
                f"(shape {tuple(d.shape)}, {d.dtype})"
            )

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(q,), (k,) positions -> (q, k) bool."""
        far_qk = queries[:, None] - keys[None, :]
        seen_qk = far_qk >= 0 if self.causal else torch.ones_like(far_qk, dtype=torch.bool)
        if self.window is not None:
            seen_qk = seen_qk & (far_qk.abs() < self.window)
        if self.documents is not None:
            seen_qk = seen_qk & (self.documents[queries][:, None] == self.documents[keys][None, :])
        return seen_qk

    def none(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether no query may read any of the keys. Both ascend; the work grows with their number, not its square."""
        first, last = self._reach(queries)
        return not bool((torch.searchsorted(keys, first) < torch.searchsorted(keys, last, right=True)).any())

    def _reach(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the last position that each query may read: it may read all between them."""
        far = torch.iinfo(torch.int64).max // 2 if self.window is None else self.window - 1
        first, last = queries - far, queries if self.causal else queries + far
        if self.documents is not None:
            own = self.documents[queries]
            first = first.maximum(torch.searchsorted(self.documents, own))
            last = last.minimum(torch.searchsorted(self.documents, own, right=True) - 1)
        return first, last

    def all(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether every query may read every key."""
        first_q, last_q, first_k, last_k = int(queries[0]), int(queries[-1]), int(keys[0]), int(keys[-1])
        if self.causal and last_k > first_q:
            return False
        w = self.window
        if w is not None and max(last_q - first_k, last_k - first_q) >= w:
            return False
        d = self.documents
        return d is None or bool(d[first_q] == d[last_q] == d[first_k] == d[last_k])
