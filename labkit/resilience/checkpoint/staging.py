"""Staging: the state copied to host memory, so that training may go on while the copy is written.

The memory is kept from one checkpoint to the next: new memory costs a page fault for every 4 KiB, several times what
the copy costs. For a GPU it is pinned, and all copies are under way at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

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

    def take(self, pieces: Sequence[Piece]) -> list[tuple[Piece, Tensor]]:
        """Copies of the pieces as they are now, each 1-D in host memory; valid until the next call."""
        staged = self.room(pieces)
        self.copy(staged)
        return staged

    def room(self, pieces: Sequence[Piece]) -> list[tuple[Piece, Tensor]]:
        """For each piece its place in host memory, not yet copied."""
        offsets, end = [], 0
        for piece in pieces:
            offsets.append(end)
            end += piece.nbytes + -piece.nbytes % ALIGNED
        self.prepare(end)
        return [(piece, self._memory[offset : offset + piece.nbytes].view(piece.tensor.dtype))
                for piece, offset in zip(pieces, offsets, strict=True)]  # fmt: skip

    @torch.no_grad()
    def copy(self, staged: Sequence[tuple[Piece, Tensor]], after: Any = None) -> None:
        """Copy these pieces. after: what `moment` gave, if another thread than the one that trains does it."""
        with contextlib.nullcontext() if after is None else self._beside(after):
            for piece, values in staged:
                values.copy_(piece.tensor, non_blocking=piece.tensor.is_cuda)
        if self._cuda and after is None:
            torch.cuda.synchronize()

    def moment(self) -> Any:
        """This moment in the work that a GPU still has to do: copies must not begin before it. None without a GPU."""
        return torch.cuda.current_stream().record_event() if self._cuda else None

    @contextlib.contextmanager
    def _beside(self, moment: Any) -> Iterator[None]:
        stream = torch.cuda.Stream()
        stream.wait_event(moment)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


def in_place(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Tensor]]:
    """The pieces themselves, one after the other; a copy only of what is not in host memory."""
    for piece in pieces:
        yield piece, piece.tensor.to("cpu").contiguous()
