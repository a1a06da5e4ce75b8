"""What a whole tensor-parallel GPT sends in one step: layers, vocabulary, loss, and gradients that the ranks share."""

from __future__ import annotations

from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.parallel.layers import replicated_layer_parameters
from labkit.cost.parallel.tensor import tensor_parallel_bytes_by_rank
from labkit.cost.parallel.vocabulary import vocabulary_parallel_loss_bytes_by_rank
from labkit.cost.refuse import whole

__all__ = ["replicated_gradient_bytes_by_rank", "tensor_parallel_model_bytes_by_rank"]


def replicated_gradient_bytes_by_rank(hidden: int, layers: int, size: int, itemsize: int = 2) -> list[int]:
    """Bytes to sum the gradients of norms and of biases after a sum, under sequence parallelism: 6 h a layer.

    Every rank holds those parameters and uses them on its own positions, so it has a part of their gradient only. One
    all-reduce a layer and backward pass. Without sequence parallelism every rank has the whole gradient: nothing.
    """
    whole(hidden=hidden, layers=layers, size=size, itemsize=itemsize)
    return [
        layers * sent for sent in ring_all_reduce.bytes_by_rank(replicated_layer_parameters(hidden), itemsize, size)
    ]


def tensor_parallel_model_bytes_by_rank(
    batch: int,
    sequence: int,
    hidden: int,
    layers: int,
    size: int,
    *,
    positions: int | None = None,
    sequence_parallel: bool = False,
    gather_again: bool = False,
    itemsize: int = 4,
) -> list[int]:
    """Bytes that each rank sends for forward, loss and backward of one microbatch of a GPT, exact, by ring.

    Layers as in `tensor_parallel_bytes_by_rank`. The vocabulary is cut too: one more all-reduce of s b h values forward
    (embedding) and one backward (scores), and the loss (1 number a position, then 2). Under sequence parallelism a
    reduce-scatter and an all-gather for the embedding, and all-gather (twice with gather_again) and reduce-scatter for
    the scores; besides the gradients of what every rank holds: 6 h a layer, and at the end 2 h and the position
    embeddings. positions: how many of those the model has, `sequence` if not given.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, layers=layers, size=size, itemsize=itemsize)
    table = sequence if positions is None else positions
    whole(positions=table)
    parts = [
        tensor_parallel_bytes_by_rank(
            batch, sequence, hidden, layers, size, sequence_parallel=sequence_parallel, gather_again=gather_again,
            itemsize=itemsize,
        ),
        vocabulary_parallel_loss_bytes_by_rank(batch, sequence, size, messages=(1, 2)),
    ]  # fmt: skip
    if sequence_parallel:
        row = batch * hidden * itemsize
        parts += [ring_all_gather.bytes_by_rank(sequence, row, size)] * (3 if gather_again else 2)
        parts += [ring_reduce_scatter.bytes_by_rank(sequence, row, size)] * 2
        parts += [replicated_gradient_bytes_by_rank(hidden, layers, size, itemsize)]
        parts += [ring_all_reduce.bytes_by_rank((2 + table) * hidden, itemsize, size)]
    else:
        parts += [ring_all_reduce.bytes_by_rank(batch * sequence * hidden, itemsize, size)] * 2
    return [sum(column) for column in zip(*parts, strict=True)]
