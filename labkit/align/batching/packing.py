"""Packing: several sequences in one row, so that (nearly) no position is padding, and none sees another sequence.

Which sequences share a row is bin packing. First-fit decreasing is simple and close to the best: the longest first,
each into the first row that has room (Krell et al. 2021, "Efficient sequence packing without cross-contamination").

    packed = Packed.of(sequences, room=2048)
    logits_btv = model(packed.tokens_bt, packed.positions_bt, packed.core)
    logprobs_bt = token_logprobs(logits_btv, packed.tokens_bt)         # counts where packed.predicted_bt
    sums_n = packed.sums(logprobs_bt.where(packed.predicted_bt, 0))    # a number a sequence, in their order

In a row each sequence counts its positions from 0, and a query reads keys of its own sequence only. Logits and
gradients are then those of each sequence alone in a row, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from labkit.models.attention import attend


def first_fit_decreasing(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Rows of indices into `lengths`, each of at most `room` tokens; every index is in one row, ascending there.

    At most 11/9 of the fewest rows possible, and 6/9 of a row more (Dósa 2007). Takes n rows / 2 comparisons at worst.
    Raises ValueError for a length below 1 or above `room`.
    """
    check_lengths(lengths, room)
    rows: list[list[int]] = []
    left: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, free in enumerate(left) if free >= lengths[i]), len(rows))
        if row == len(rows):
            rows.append([])
            left.append(room)
        rows[row].append(i)
        left[row] -= lengths[i]
    return [sorted(row) for row in rows]


def check_lengths(lengths: Sequence[int], room: int) -> None:
    """Raise ValueError for the first length that is below 1 or above `room`."""
    for i, length in enumerate(lengths):
        if not 1 <= length <= room:
            raise ValueError(f"sequence {i} has {length} tokens, and a row has room for 1 to {room}: cut it or drop it")


@dataclass(frozen=True)
class Packed:
    """Rows (b, t) of sequences that lie one after the other. Padding stands at the end of a row, as token 0.

    documents_bt: the number of the sequence that a token belongs to, -1 for padding. positions_bt: from 0 in each
    sequence, and in the padding too. count: of sequences.
    """

    tokens_bt: Tensor
    documents_bt: Tensor
    positions_bt: Tensor
    count: int

    @classmethod
    def of(cls, sequences: Sequence[Tensor], room: int) -> Packed:
        """`sequences` (each (n,) int64, on one device) in the rows of `first_fit_decreasing`, of `room` tokens each."""
        rows = first_fit_decreasing([len(s) for s in sequences], room)
        like = sequences[0] if sequences else torch.zeros(0, dtype=torch.int64)
        tokens_bt = like.new_zeros(len(rows), room)
        documents_bt, positions_bt = torch.full_like(tokens_bt, -1), torch.zeros_like(tokens_bt)
        for b, row in enumerate(rows):
            ids = torch.tensor(row, device=like.device)
            sizes = torch.tensor([len(sequences[i]) for i in row], device=like.device)
            filled = int(sizes.sum())
            tokens_bt[b, :filled] = torch.cat([sequences[i] for i in row])
            documents_bt[b, :filled] = ids.repeat_interleave(sizes)
            restarts = torch.cat([sizes, sizes.new_tensor([room - filled])])
            starts = (restarts.cumsum(0) - restarts).repeat_interleave(restarts)
            positions_bt[b] = torch.arange(room, device=like.device) - starts
        return cls(tokens_bt, documents_bt, positions_bt, len(sequences))

    @property
    def predicted_bt(self) -> Tensor:
        """Bool: tokens that another one of their sequence predicts, which is all but the first ones and padding."""
        return (self.documents_bt >= 0) & (self.positions_bt > 0)

    @cached_property
    def core(self) -> Callable[..., Tensor]:
        """What attends, for `GPT.forward`: causal within each sequence, its positions turned by rotary models.

        Its mask has b t^2 bytes, once for all layers. Kernels for long rows take the sequences' bounds in its place,
        and skip what the mask forbids (`flash_attn_varlen_func`).
        """
        t = self.documents_bt.shape[1]
        causal_tt = torch.ones(t, t, dtype=torch.bool, device=self.documents_bt.device).tril()
        mask_btt = (self.documents_bt[:, :, None] == self.documents_bt[:, None, :]) & causal_tt
        return partial(attend, positions=self.positions_bt, mask_btt=mask_btt)

    def sums(self, x_bt: Tensor) -> Tensor:
        """The sum of `x` over each sequence, (count,), with its gradient. Padding adds to none."""
        flat, where = self._counted(x_bt)
        return flat.new_zeros(self.count).index_add(0, where, flat)

    def unpack(self, x_bt: Tensor) -> list[Tensor]:
        """The part of `x` (b, t, ...) that belongs to each sequence, in the order in which they were given."""
        flat, where = self._counted(x_bt)
        order = where.argsort(stable=True)
        return list(flat[order].split(where.bincount(minlength=self.count).tolist()))

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """The reverse of `unpack`: a number a token of each sequence, in the rows (b, t); 0 in the padding."""
        x_bt = torch.zeros(self.tokens_bt.shape, dtype=parts[0].dtype, device=self.tokens_bt.device)
        kept = self.documents_bt >= 0
        place = self.documents_bt[kept].argsort(stable=True).argsort()  # of each packed token among all, in order
        x_bt[kept] = torch.cat(list(parts))[place]
        return x_bt

    def _counted(self, x_bt: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.documents_bt >= 0
        return x_bt[kept], self.documents_bt[kept]
