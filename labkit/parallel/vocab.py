"""A vocabulary cut among ranks: the embedding that reads it, and the logits and the loss that come out of it.

Rank r holds rows `torch.tensor_split(weight, N)[r]` of the matrix, so any vocabulary can be cut. The matrix that embeds
tokens can score them too (tied weights: Press & Wolf 2017), since both uses need the same rows.

    tokens   = VocabParallelEmbedding(vocab, width, group)
    x_btd    = tokens(ids_bt)                    one all-reduce, forward
    part_btv = tokens.logits(x_btd)              one all-reduce, backward; this rank's columns of the logits
    loss     = vocab_parallel_cross_entropy(part_btv, targets_bt, group, vocab=vocab)
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from labkit.parallel.tensor.placement import Shards, check_shards, shard_spec_of
from labkit.parallel.tensor.products import CommOptions, column_product
from labkit.parallel.tensor.regions import reduce_from_region, reduce_scatter_sequence
from labkit.parallel.vocab_loss import places_of, vocab_parallel_cross_entropy
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

__all__ = ["VocabParallelEmbedding", "vocab_parallel_cross_entropy"]


class VocabParallelEmbedding(nn.Module):
    """`nn.Embedding(vocab, width)` with its rows shared out among the ranks of `group`.

    weight: this rank's rows: (part, width). They are drawn as nn.Embedding draws them, all of them on every rank, so
        that ranks with the same random state hold parts of the same matrix.
    shards: the ids that each rank holds, in place of equal ranges of them: see `tensor/placement.py`.
    sequence: what comes out is this rank's part of dimension 1 (a reduce-scatter in place of the all-reduce), and what
        `logits` takes too (an all-gather, and a reduce-scatter in backward).
    overlap: backward of `logits` sums the input's gradient while it computes the weight's.
    algorithm: of all these collectives.
    """

    looks_up = True  # for stand-in kernels: no product, and no time

    def __init__(
        self, vocab: int, width: int, group: Group, *, sequence: bool = False, overlap: bool = True,
        algorithm: str = "auto", shards: Shards | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check(vocab, width, group)
        self._take(nn.Embedding(vocab, width).weight, group, sequence, overlap, algorithm, shards)

    @classmethod
    def of(
        cls, embedding: nn.Embedding, group: Group, *, sequence: bool = False, overlap: bool = True,
        algorithm: str = "auto", shards: Shards | None = None,
    ) -> VocabParallelEmbedding:  # fmt: skip
        """This rank's part of `embedding`, which is the same on every rank."""
        _check(embedding.num_embeddings, embedding.embedding_dim, group)
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(embedding.weight, group, sequence, overlap, algorithm, shards)
        return made

    def _take(
        self, weight: Tensor, group: Group, sequence: bool, overlap: bool, algorithm: str, shards: Shards | None
    ) -> None:
        self.vocab, self.width = weight.shape
        self.group, self.sequence, self.overlap, self.algorithm = group, sequence, overlap, algorithm
        if shards is not None:
            check_shards({"vocab": self.vocab}, shards, group.size)
        self.ids = None if shards is None else [list(mine) for mine in shards]
        self.shard_specs = {"weight": shard_spec_of(0, [self.vocab], group.size, shards)}
        self.weight = nn.Parameter(self.shard_specs["weight"].take(weight.detach(), group.rank).to(group.device))

    def forward(self, ids: Tensor) -> Tensor:
        """(b, t) ids -> (b, t, width); `ids` must be the same on every rank.

        One all-reduce of all rows, most of them zeros. The backward pass sends nothing; with `sequence` it gathers.
        """
        rows = self.partial(ids)
        if self.sequence:
            return reduce_scatter_sequence(rows, self.group, algorithm=self.algorithm)
        return reduce_from_region(rows, self.group, algorithm=self.algorithm)

    def partial(self, ids: Tensor) -> Tensor:
        """The rows of ids that this rank holds, and zeros in place of the others: the sum over ranks is the embedding.

        Raises RefusedError, on every rank alike, for an id outside the vocabulary.
        """
        bad = (ids < 0) | (ids >= self.vocab)
        if bad.any():
            raise RefusedError(
                f"id {int(ids[bad][0])} is not in the vocabulary of {self.vocab} ids, 0 to {self.vocab - 1} "
                f"({int(bad.sum())} such in all)"
            )
        places = places_of(ids, self.vocab, self.group, self.ids)
        rows = F.embedding(places.clamp_min(0), self.weight)
        return rows.masked_fill((places < 0)[..., None], 0)

    def logits(self, x: Tensor, *, length: int | None = None) -> Tensor:
        """(b, t, width) -> (b, t, part): this rank's columns of `x @ weight.T`, by the same matrix.

        x: the same on every rank; its gradient is summed over the ranks in backward, and forward sends nothing. With
        `sequence` this rank's positions, of `length` in all where the ranks have not equally many.
        """
        comm = CommOptions(self.group, self.sequence, self.overlap, self.algorithm, length)
        return column_product(x, self.weight, None, comm)

    def extra_repr(self) -> str:
        return f"{self.vocab}, {self.width}, {len(self.weight)} ids of rank {self.group.rank}"


def _check(vocab: int, width: int, group: Group) -> None:
    for name, value in (("vocab", vocab), ("width", width)):
        if type(value) is not int or value < 1:
            raise RefusedError(f"VocabParallelEmbedding({name}={value!r}): needs a whole number, 1 or more")
    if vocab < group.size:
        raise RefusedError(
            f"VocabParallelEmbedding(vocab={vocab}) on {group.size} ranks: every rank needs one id or more, "
            f"so the nearest degree of tensor parallelism that works is {vocab}"
        )
