"""A chunk: a few prompts with their responses, which stay together from generation to the last update.

Chunks are what a fleet deals out. A chunk is generated, read and learned from as one, in the same microbatches wherever
that is, so its numbers are the same to the bit on any rank. "A number a token" is a flat tensor (r,): for every token
of every response, one response after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.align.batching import length_buckets, padded
from labkit.align.rollout import Sample
from labkit.cost import ChunkLoad


@dataclass(frozen=True)
class Rows:
    """Some sequences of a chunk, padded to the longest of them.

    which: their places in the chunk. mask_bt: true for the tokens of responses.
    """

    which: list[int]
    tokens_bt: Tensor
    mask_bt: Tensor


@dataclass(frozen=True)
class Chunk:
    """number: of the chunk in its batch. sequences: prompt and response of each, int64. prompts: length of each prompt.

    steps: decoding steps that it took to write them. together: how many that follow each other share a microbatch.
    """

    number: int
    sequences: list[Tensor]
    prompts: list[int]
    steps: int = 0
    together: int = 1

    @classmethod
    def of(cls, number: int, samples: Sequence[Sample], steps: int = 0) -> Chunk:
        """The samples of a rollout."""
        whole = [torch.tensor(s.prompt + s.tokens) for s in samples]
        return cls(number, whole, [len(s.prompt) for s in samples], steps)

    @classmethod
    def of_pairs(cls, number: int, pairs: Sequence[tuple[Sequence[int], ...]]) -> Chunk:
        """Of (prompt, chosen response, rejected response): both sequences, one after the other."""
        both = [(prompt, answer) for prompt, *answers in pairs for answer in answers]
        whole = [torch.tensor([*prompt, *answer]) for prompt, answer in both]
        return cls(number, whole, [len(prompt) for prompt, _ in both], together=2)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each response."""
        return [len(s) - n for s, n in zip(self.sequences, self.prompts, strict=True)]

    @property
    def responses(self) -> list[Tensor]:
        """The tokens of each response."""
        return [s[n:] for s, n in zip(self.sequences, self.prompts, strict=True)]

    @property
    def load(self) -> ChunkLoad:
        """What `labkit.cost` wants to know of it."""
        return ChunkLoad(len(self.sequences), sum(map(len, self.sequences)), sum(self.lengths), self.steps)

    def rows(self, which: Sequence[int] | None = None) -> Rows:
        """Some sequences, or all, as one padded batch."""
        which = list(range(len(self.sequences)) if which is None else which)
        tokens_bt, mask_bt = padded([self.sequences[i] for i in which])
        for b, i in enumerate(which):
            mask_bt[b, : self.prompts[i]] = False
        return Rows(which, tokens_bt, mask_bt)

    def microbatches(self, budget: int) -> Iterator[Rows]:
        """All sequences, in padded batches of at most `budget` positions."""
        n = self.together
        places = [range(i, i + n) for i in range(0, len(self.sequences), n)]
        longest = [n * max(len(self.sequences[i]) for i in unit) for unit in places]
        for units in length_buckets(longest, budget):
            yield self.rows([i for unit in units for i in places[unit]])

    def spread(self, x_r: Tensor, rows: Rows) -> Tensor:
        """The numbers of those rows at the places of their tokens: (b, t), and 0 elsewhere."""
        parts = x_r.split(self.lengths)
        x_bt = x_r.new_zeros(rows.mask_bt.shape)
        x_bt[rows.mask_bt] = torch.cat([parts[i] for i in rows.which])
        return x_bt

    def gather(self, found: Mapping[int, Tensor]) -> Tensor:
        """(r,) of the numbers of each response, by its place in the chunk."""
        return torch.cat([found[i] for i in range(len(self.sequences))])

    def kept(self, which: Sequence[int]) -> Chunk:
        """A chunk of these sequences only."""
        return Chunk(self.number, [self.sequences[i] for i in which], [self.prompts[i] for i in which], self.steps)
