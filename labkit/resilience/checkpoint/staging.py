"""Staging: the state copied to host memory, so that training may go on while the copy is written.

The memory is kept from one checkpoint to the next: new memory costs a page fault for every 4 KiB, several times what
the copy costs. For a GPU it is pinned, and all copies are under way at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .pieces import Piece

ALIGNED = 64


class Staging:
    """Host memory for the pieces of one rank."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._memory = torch.empty(0, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """Host memory held."""
        return self._memory.nbytes

    def prepare(self, nbytes: int) -> None:
        """Have room for so many bytes, already touched."""
        if nbytes > len(self._memory):
            self._memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._cuda).zero_()

    @torch.no_grad()
    def take(self, pieces: Sequence[Piece]) -> list[tuple[Piece, Tensor]]:
        """Copies of the pieces as they are now, each 1-D in host memory; valid until the next call."""
        offsets, end = [], 0
        for piece in pieces:
            offsets.append(end)
            end += piece.nbytes + -piece.nbytes % ALIGNED
        self.prepare(end)
        staged = []
        for piece, offset in zip(pieces, offsets, strict=True):
            values = self._memory[offset : offset + piece.nbytes].view(piece.tensor.dtype)
            staged.append((piece, values.copy_(piece.tensor, non_blocking=piece.tensor.is_cuda)))
        if self._cuda:
            torch.cuda.synchronize()
        return staged


def in_place(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Tensor]]:
    """The pieces themselves, one after the other; a copy only of what is not in host memory."""
    for piece in pieces:
        yield piece, piece.tensor.to("cpu").contiguous()
