"""What the pools of a fleet send each other in a step: chunks to those that read them, and numbers back.

`labkit.cost.placement_bytes` has the bytes of all of it. Messages leave in the background, so that a rank writes its
next chunk while others read the last one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.align.fleet.chunks import Chunk
from labkit.cost import Placement
from labkit.wire.group import Group
from labkit.wire.handle import MessageHandle


class Mail:
    """Messages of one step about `count` chunks. All are sent by who has them, and received by who needs them.

    Between two ranks chunks arrive in the order of their numbers, and numbers in that of models, then chunks.
    """

    def __init__(self, group: Group, placement: Placement, count: int) -> None:
        self.group, self.placement, self.count = group, placement, count
        self._chunks, self._handles, self._next = dict[int, Chunk](), list[MessageHandle](), dict[int, int]()

    def own(self, role: str) -> list[int]:
        """The chunks that this rank meets as a rank of that model."""
        if self.group.rank not in self.placement.ranks(role):
            return []
        return [c for c in range(self.count) if self.placement.owner(role, c) == self.group.rank]

    def readers(self, number: int) -> list[int]:
        """The ranks that read a chunk."""
        return sorted({self.placement.owner(role, number) for role in self.placement.readers})

    def send_chunk(self, chunk: Chunk) -> None:
        """To every rank that reads it; it stays here too. Sent: 8 (2 + 2 sequences + tokens) bytes to each."""
        self._chunks[chunk.number] = chunk
        head = torch.tensor([len(chunk.sequences), sum(map(len, chunk.sequences))])
        body = torch.cat([torch.tensor([*chunk.prompts, *map(len, chunk.sequences)]).long(), *chunk.sequences])
        for rank in self.readers(chunk.number):
            self._send(head, rank)
            self._send(body, rank)

    def chunk(self, number: int) -> Chunk:
        """A chunk that this rank wrote, or that reaches it."""
        source = self.placement.owner("policy", number)
        while number not in self._chunks:
            after = self._next.get(source, 0)
            expected = next(
                c for c in range(after, self.count)
                if self.placement.owner("policy", c) == source and self.group.rank in self.readers(c)
            )  # fmt: skip
            self._next[source] = expected + 1
            self._chunks[expected] = self._receive(expected, source)
        return self._chunks[number]

    def send_numbers(self, x: Tensor, to: int) -> None:
        """float32, 4 bytes each; nothing to this rank itself."""
        self._send(x, to)

    def numbers(self, count: int, source: int) -> Tensor:
        """`count` numbers from another rank."""
        return self.group.recv(torch.empty(count), source) if count else torch.empty(0)

    def finish(self) -> None:
        """All that was sent has left."""
        while self._handles:
            self._handles.pop(0).wait()

    def _send(self, x: Tensor, to: int) -> None:
        if to != self.group.rank and x.numel():
            self._handles.append(self.group.isend(x.to(self.group.device), to))

    def _receive(self, number: int, source: int) -> Chunk:
        sequences, tokens = self.group.recv(torch.empty(2, dtype=torch.int64), source).tolist()
        if not sequences:  # the rank that should have written it could not, and will say why
            return Chunk(number, [], [])
        body = self.group.recv(torch.empty(2 * sequences + tokens, dtype=torch.int64), source)
        prompts, lengths = body[:sequences].tolist(), body[sequences : 2 * sequences].tolist()
        return Chunk(number, list(body[2 * sequences :].split(lengths)), prompts)
