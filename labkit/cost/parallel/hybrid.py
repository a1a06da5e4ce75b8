"""What each rank of a hybrid run sends in a step, axis by axis: the closed forms of all strategies, put together.

For `labkit.parallel.Hybrid` on a GPT without experts, whose rows depend on the router (`dispatch_bytes_by_rank`).
Collectives by ring (`HybridConfig(algorithm="ring")`). Letters: b examples of a microbatch on a rank, s positions of
it, h hidden; D = dp x cp ranks hold the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from labkit.cost.collectives.parts import split_sizes
from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.parallel.context import context_lengths, ring_attention_bytes_by_rank, ulysses_bytes_by_rank
from labkit.cost.parallel.data_parallel import fill_buckets
from labkit.cost.parallel.pipeline_traffic import pipeline_messages_by_rank
from labkit.cost.parallel.tensor import tensor_parallel_bytes_by_rank
from labkit.cost.parallel.tensor_step import replicated_gradient_bytes_by_rank
from labkit.cost.parallel.vocabulary import vocabulary_parallel_loss_bytes_by_rank
from labkit.cost.refuse import whole
from labkit.cost.units import MiB

__all__ = ["HybridSent", "hybrid_bytes_by_rank", "hybrid_parameters_by_unit"]

ZERO_BUCKET = 2 * MiB
AGREEMENT = 5 * 8  # what the ranks of a pipeline tell each other before a step: five numbers
NUMBER = 8  # a loss or a norm, in 64 bits


@dataclass(frozen=True)
class HybridSent:
    """Bytes that one rank sends in a step, by the axis that it sends them for.

    tensor: activations, the loss, and under sequence parallelism gradients of norms and biases. context: keys, values
    and their gradients. pipeline: activations, gradients, the tied matrix. data: gradients and weights. numbers: the
    loss and the norm, over all ranks, and what a pipeline agrees on.
    """

    tensor: int = 0
    context: int = 0
    pipeline: int = 0
    data: int = 0
    numbers: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.tensor + self.context + self.pipeline + self.data + self.numbers


def hybrid_bytes_by_rank(
    model: Any, config: Any, batch: int, sequence: int, *, itemsize: int = 4, clip: bool = False
) -> list[HybridSent]:
    """Rank by rank, exact, from the second step on (in the first, a pipeline learns its shapes).

    model: sizes as in `GPTConfig`. config: as in `HybridConfig`. batch: examples of the whole batch, which dp times
    microbatches must divide. itemsize: of weights, gradients and activations. clip: with the norm of the gradients.
    Raises ValueError for experts, and for schedules whose backward comes in two parts: the second repeats messages.
    """
    whole(batch=batch, sequence=sequence, itemsize=itemsize)
    if model.moe is not None:
        raise ValueError("a model with experts has no closed form: how many rows are sent depends on the router")
    if config.pp > 1 and config.schedule.startswith("zb"):
        raise ValueError(f"schedule={config.schedule!r}: its backward comes in two parts, and has no closed form")
    if batch % (config.dp * config.microbatches):
        raise ValueError(f"batch={batch} must divide by dp times microbatches, {config.dp * config.microbatches}")
    return [_of(model, config, batch, sequence, itemsize, clip, rank) for rank in range(_size(config))]


def _size(config: Any) -> int:
    return prod(getattr(config, axis) for axis in config.order)


def _of(model: Any, config: Any, batch: int, sequence: int, itemsize: int, clip: bool, rank: int) -> HybridSent:
    at, rest = {}, rank
    for axis in reversed(config.order):
        rest, at[axis] = divmod(rest, getattr(config, axis))
    b, m = batch // (config.dp * config.microbatches), config.microbatches
    lengths, context = _context(model, config, b, sequence, itemsize, at["cp"])
    s = lengths[at["cp"]]
    stages = [chunk * config.pp + at["pp"] for chunk in range(config.chunks)]
    counts = split_sizes(model.layers, config.pp * config.chunks)
    last = len(counts) - 1
    tensor = sum(_tensor(model, config, b, s, counts[i], i == 0, i == last, itemsize, at["tp"]) for i in stages)
    layers = sum(counts[i] for i in stages)
    return HybridSent(
        tensor=m * tensor,
        context=m * layers * context,
        pipeline=_pipeline(model, config, b, s, itemsize, at),
        data=_data(model, config, itemsize, at),
        numbers=(1 + clip) * ring_all_reduce.bytes_by_rank(1, NUMBER, _size(config))[rank]
        + (AGREEMENT * (config.pp - 1) if config.pp > 1 else 0),
    )


def _tensor(
    model: Any, config: Any, b: int, s: int, layers: int, first: bool, last: bool, itemsize: int, rank: int
) -> int:
    """One stage, one microbatch, forward and backward. The ends look tokens up, and score them."""
    size, h, sequence = config.tp, model.width, config.sequence_parallel
    parts = [tensor_parallel_bytes_by_rank(b, s, h, layers, size, sequence_parallel=sequence, gather_again=sequence,
                                           itemsize=itemsize)]  # fmt: skip
    if last:
        parts.append(vocabulary_parallel_loss_bytes_by_rank(b, s, size, max(4, itemsize), messages=(1, 2)))
    if not sequence:
        parts += [ring_all_reduce.bytes_by_rank(b * s * h, itemsize, size)] * (first + last)
        return sum(part[rank] for part in parts)
    gather = ring_all_gather.bytes_by_rank(s, b * h * itemsize, size)
    scatter = ring_reduce_scatter.bytes_by_rank(s, b * h * itemsize, size)
    parts += [replicated_gradient_bytes_by_rank(h, layers, size, itemsize)]
    parts += [gather, scatter] * first + [gather, gather, scatter] * last
    held = (2 * last + (model.context if first and not model.rotary else 0)) * h  # last norm, positions
    if held:
        parts.append(ring_all_reduce.bytes_by_rank(held, itemsize, size))
    return sum(part[rank] for part in parts)


def _context(model: Any, config: Any, b: int, sequence: int, itemsize: int, rank: int) -> tuple[list[int], int]:
    """(positions of each rank of cp, bytes of one layer and microbatch)."""
    shared = config.ulysses
    blocks = context_lengths(config.cp // shared, sequence, config.layout)
    lengths = [part for block in blocks for part in split_sizes(block, shared)]
    if config.cp == 1:
        return lengths, 0
    width = model.width // model.heads
    heads, kv_heads = model.heads // config.tp, (model.kv_heads or model.heads) // config.tp
    place, inside = divmod(rank, shared)
    sent, of_ring = 0, kv_heads
    if shared > 1:
        mine = lengths[place * shared : (place + 1) * shared]
        sent += ulysses_bytes_by_rank(mine, heads, kv_heads, width, batch=b, itemsize=itemsize)[inside]
        if kv_heads % shared:
            kv_heads = shared if shared % kv_heads == 0 else heads
        of_ring = kv_heads // shared
    wide = max(4, itemsize)
    ring = ring_attention_bytes_by_rank(blocks, of_ring, width, batch=b, itemsize=itemsize, gradient_itemsize=wide)
    return lengths, sent + ring[place]


def _pipeline(model: Any, config: Any, b: int, s: int, itemsize: int, at: dict[str, int]) -> int:
    if config.pp == 1:
        return 0
    here = split_sizes(s, config.tp)[at["tp"]] if config.sequence_parallel else s
    messages = pipeline_messages_by_rank(config.pp, config.microbatches, config.chunks)[at["pp"]]
    sent = messages * b * here * model.width * itemsize
    if model.tied and at["pp"] in (0, config.pp - 1):  # between two ranks an all-reduce sends what is reduced
        matrix = split_sizes(model.vocab, config.tp)[at["tp"]] * model.width
        cut, place = _cut(config, at)
        sent += (split_sizes(matrix, cut)[place] if config.data in ("fsdp", "hsdp") else matrix) * itemsize
    return sent


def _cut(config: Any, at: dict[str, int]) -> tuple[int, int]:
    """(ranks that cut the state among them, this rank's place among those)."""
    along = config.dp if config.shard is None else config.shard
    return along * config.cp, at["dp"] % along * config.cp + at["cp"]


def _data(model: Any, config: Any, itemsize: int, at: dict[str, int]) -> int:
    """Gradients, and weights where they are cut, of this rank's stages."""
    stages = hybrid_parameters_by_unit(model, config, at["pp"], at["tp"])
    size, place = _cut(config, at)
    m, every = config.microbatches, [n for stage in stages for _, n in stage]
    if config.data == "plain":
        nbytes = [n * itemsize for n in reversed(every)]
        buckets = [sum(nbytes[i] for i in bucket) // itemsize for bucket in fill_buckets(nbytes)]
        return sum(ring_all_reduce.bytes_by_rank(n, itemsize, size)[place] for n in buckets)
    if config.data in ("zero1", "zero2"):
        cut, gathers, times = _runs(every[::-1], ZERO_BUCKET // itemsize), 1, 1 if config.data == "zero1" else m
    else:
        cut, gathers, times = [n for stage in stages for n in _units(stage)], 2 * m, m
    sent = 0
    for n in cut:
        sent += times * ring_reduce_scatter.bytes_by_rank(n, itemsize, size)[place]
        sent += gathers * ring_all_gather.bytes_by_rank(n, itemsize, size)[place]
        if config.data == "hsdp":
            copies, mine = config.dp // config.shard, split_sizes(n, size)[place]
            sent += m * ring_all_reduce.bytes_by_rank(mine, itemsize, copies)[at["dp"] // config.shard]
    return sent


def _runs(numels: Sequence[int], most: int) -> list[int]:
    """Neighbours together, in runs of at most `most` elements, or one that is larger."""
    found: list[int] = []
    room = 0
    for n in numels:
        if n > room:
            found.append(0)
            room = most
        found[-1] += n
        room -= n
    return found


def _units(stage: Sequence[tuple[str, int]]) -> list[int]:
    found: dict[str, int] = {}
    for unit, n in stage:
        found[unit] = found.get(unit, 0) + n
    return list(found.values())


def hybrid_parameters_by_unit(model: Any, config: Any, pp: int, tp: int) -> list[list[tuple[str, int]]]:
    """For each stage of the rank at place `pp` and `tp`: (unit of FSDP, elements) of each parameter, in their order.

    Units are "root", a block each, and where the first and the last stage share it, the matrix that both hold. Of
    what is cut among the ranks of tp the elements of this one.
    """
    h, e, t = model.width, model.expansion, config.tp
    keys = (model.kv_heads or model.heads) * (h // model.heads)
    rows, ff, vocab = (h + 2 * keys) // t, e * h // t, split_sizes(model.vocab, t)[tp] * h
    block = [h, h, rows * h, rows, h // t * h, h, h, h, ff * h, ff, h * ff, h]
    counts = split_sizes(model.layers, config.pp * config.chunks)
    found = []
    for stage in (chunk * config.pp + pp for chunk in range(config.chunks)):
        first, last, begin = stage == 0, stage == len(counts) - 1, sum(counts[:stage])
        apart = model.tied and first != last
        named = [("matrix" if apart else "root", vocab)] * first
        named += [("root", model.context * h)] * (first and not model.rotary)
        named += [(f"block {i}", n) for i in range(begin, begin + counts[stage]) for n in block]
        named += [("root", h)] * (2 * last)
        named += [("matrix" if apart else "root", vocab)] * (last and not (model.tied and first))
        found.append(named)
    return found
