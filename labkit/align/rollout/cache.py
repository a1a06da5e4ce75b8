"""`PagedCache`: keys and values of the positions that a model has seen, in blocks of a fixed size.

A sequence grows by one token at a time, and nobody knows how long it will be. Memory for the longest possible sequence
would mostly stay empty, so a sequence gets a block of positions only when its last one is full, wherever a block
is free, and its *block table* says where its blocks are (Kwon et al. 2023, "PagedAttention", section 4). When it ends,
its blocks are free for others. At most one block of a sequence is partly empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.models.gpt import GPTConfig
from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Places:
    """Where the n new positions of b sequences stand; they lie side by side, one sequence after the other.

    row_n: the sequence, as a row of the batch. column_n: the how-manieth new position of that sequence, from 0.
    position_n: the position in that sequence. block_n, offset_n: the place in the cache.
    start_b: positions that each sequence had before. table_bm: the blocks of each, and 0 where it has fewer.
    """

    row_n: Tensor
    column_n: Tensor
    position_n: Tensor
    block_n: Tensor
    offset_n: Tensor
    start_b: Tensor
    table_bm: Tensor


class PagedCache:
    """Keys and values of all layers for `blocks` blocks of `block` positions, shared by all sequences.

    Takes 2 * layers * kv_heads * head_width * blocks * block values (`nbytes`), from the beginning. tables: the blocks
    of each sequence in order, by its id. lengths: how many positions each has.
    """

    def __init__(
        self, config: GPTConfig, blocks: int, block: int = 16, dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        for name, value in (("blocks", blocks), ("block", block)):
            if type(value) is not int or value < 1:
                raise RefusedError(f"PagedCache({name}={value!r}): a whole number of at least 1")
        self.block, self.blocks = block, blocks
        shape = (config.layers, 2, blocks, block, config.groups, config.width // config.heads)
        self.pages = torch.zeros(shape, dtype=dtype, device=device)  # what is masked is multiplied by 0: it is no NaN
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self._free = list(range(blocks))

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.pages.nbytes

    @property
    def used(self) -> int:
        """Blocks that belong to a sequence."""
        return self.blocks - len(self._free)

    def fits(self, counts: Mapping[int, int]) -> bool:
        """Whether there are blocks for so many new positions of each sequence, by its id."""
        return sum(self._missing(i, n) for i, n in counts.items()) <= len(self._free)

    def append(self, counts: Mapping[int, int]) -> Places:
        """Make room for so many new positions of each sequence; a new id is a new sequence. `write` fills them."""
        if not self.fits(counts):
            raise RefusedError(
                f"the cache has {len(self._free)} free blocks of {self.block} positions, and sequences "
                f"{list(counts)} need {sum(self._missing(i, n) for i, n in counts.items())} more: give it more blocks"
            )
        places = list[tuple[int, int, int, int, int]]()
        starts = [self.lengths.get(i, 0) for i in counts]
        for row, (i, n) in enumerate(counts.items()):
            missing = self._missing(i, n)
            table = self.tables.setdefault(i, [])
            table += [self._free.pop() for _ in range(missing)]
            self.lengths[i] = starts[row] + n
            for column, position in enumerate(range(starts[row], starts[row] + n)):
                places.append((row, column, position, table[position // self.block], position % self.block))
        most = max((len(self.tables[i]) for i in counts), default=0)
        tables = [self.tables[i] + [0] * (most - len(self.tables[i])) for i in counts]
        columns = torch.tensor(places, device=self.pages.device).view(-1, 5).unbind(1)
        return Places(*columns, *(torch.tensor(x, device=self.pages.device) for x in (starts, tables)))

    def write(self, layer: int, places: Places, keys_ngk: Tensor, values_ngk: Tensor) -> None:
        """Keep keys and values of the new positions."""
        for kind, x_ngk in enumerate((keys_ngk, values_ngk)):
            self.pages[layer, kind, places.block_n, places.offset_n] = x_ngk

    def read(self, layer: int, places: Places) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions of the batch, (b, g, t, k) each; beyond a sequence's end stands anything.

        This copies them side by side, which a kernel for paged attention does without: it follows the table itself.
        """
        keys_btgk, values_btgk = (self.pages[layer, kind][places.table_bm].flatten(1, 2) for kind in (0, 1))
        return keys_btgk.transpose(1, 2), values_btgk.transpose(1, 2)

    def cut(self, sequence: int, length: int) -> None:
        """Forget what the sequence has from position `length` on."""
        table, kept = self.tables.setdefault(sequence, []), -(-length // self.block)
        self._free += table[kept:]
        del table[kept:]
        self.lengths[sequence] = length

    def drop(self, sequence: int) -> None:
        """The sequence has ended: its blocks are free."""
        self._free += self.tables.pop(sequence)
        del self.lengths[sequence]

    def _missing(self, sequence: int, count: int) -> int:
        """How many more blocks a sequence needs for `count` new positions."""
        return -(-(self.lengths.get(sequence, 0) + count) // self.block) - len(self.tables.get(sequence, ()))
