"""Generating, a token at a time: the KV cache, and why memory bounds it.

A step of decoding gives each of B sequences one token more. It reads all weights once, whatever B is, and the keys and
values of every sequence's own past. So the weights are shared by the batch, the cache is not: a larger batch helps
as long as weights are most of what is read, and no longer. Each number that is read of a cache serves only the few
queries that share its head.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import divides, not_negative, positive, whole
from labkit.cost.training.roofline import H100_MEMORY, H100_PEAK, machine_balance

__all__ = [
    "compute_bound_batch",
    "decoding_bytes",
    "decoding_flops",
    "decoding_intensity",
    "decoding_seconds",
    "kv_cache_bytes",
    "kv_cache_bytes_per_gpu",
]


def kv_cache_bytes(
    layers: int, kv_heads: int, head_width: int, tokens: int, sequences: int = 1, itemsize: int = 2
) -> int:
    """Bytes of keys and values: 2 layers kv_heads head_width tokens sequences itemsize.

    tokens: of each sequence, its prompt included. 80 layers, heads of 128, 1,024 tokens, 256 sequences, in 16 bits:
    85.90 GB with 8 heads of keys and values (Llama 2 70B), 687.19 GB with one for each of its 64 queries.
    """
    whole(layers=layers, kv_heads=kv_heads, head_width=head_width, sequences=sequences, itemsize=itemsize)
    not_negative(tokens=tokens)
    return 2 * layers * kv_heads * head_width * tokens * sequences * itemsize


def kv_cache_bytes_per_gpu(
    layers: int, kv_heads: int, head_width: int, tokens: int, sequences: int, tensor: int, pipeline: int,
    itemsize: int = 2,
) -> int:  # fmt: skip
    """Bytes of the cache on each GPU of a replica: its stage's layers, its heads. 2.68 GB of the 85.90 with 8 x 4.

    With more tensor parallelism than heads of keys, a head is on several GPUs, and is not cut further. Raises
    ValueError where layers or heads do not divide.
    """
    whole(tensor=tensor, pipeline=pipeline)
    divides(pipeline=pipeline, layers=layers)
    if tensor > kv_heads:
        divides(kv_heads=kv_heads, tensor=tensor)
    else:
        divides(tensor=tensor, kv_heads=kv_heads)
    own = max(1, kv_heads // tensor)
    return kv_cache_bytes(layers // pipeline, own, head_width, tokens, sequences, itemsize)


def decoding_flops(params: float, batch: int, context: int, layers: int, width: int) -> float:
    """Operations of a step: B (2 P + 4 layers context width). width: heads of queries times the width of a head.

    2 for each weight; and each query is multiplied with `context` keys, and their weights with as many values.
    """
    positive(params=params)
    whole(batch=batch, layers=layers, width=width)
    not_negative(context=context)
    return batch * (2 * params + 4 * layers * context * width)


def decoding_bytes(params: float, batch: int, context: int, layers: int, kv_width: int, itemsize: int = 2) -> float:
    """Bytes read in a step: all weights once, and `context` keys and values of each sequence.

    kv_width: heads of keys times the width of a head.
    """
    positive(params=params)
    return params * itemsize + kv_cache_bytes(layers, 1, kv_width, context, batch, itemsize)


def decoding_intensity(
    params: float, batch: int, context: int, layers: int, width: int, kv_width: int, itemsize: int = 2
) -> float:
    """Operations a byte of a step. In 16 bits, with an empty context, it is the batch.

    With a context of n it tends to (2 P + 4 L n d) / (KV bytes of a sequence) with ever more sequences. 70B with 8
    heads of keys at n = 1,024: 1.02 for one sequence, 162 for 256, where an H100 needs 295. At n = 2,048 at most 217.
    """
    flops = decoding_flops(params, batch, context, layers, width)
    return flops / decoding_bytes(params, batch, context, layers, kv_width, itemsize)


def compute_bound_batch(
    params: float, context: int, layers: int, width: int, kv_width: int, itemsize: int = 2,
    balance: float = machine_balance(),
) -> float:  # fmt: skip
    """Sequences from which on a step is bound by computing, not by memory. Infinite where no batch is large enough.

    B f = balance (weights + B k), with f operations and k bytes of the cache for a sequence: balance weights / (f -
    balance k). balance: operations a byte of the device, 295 for an H100. 70B with 8 heads of keys: 295 with an
    empty context, 947 at 1,024 tokens, infinite at 2,048; with 64 heads of keys infinite at 256.
    """
    positive(balance=balance)
    flops = decoding_flops(params, 1, context, layers, width)
    gain = flops - balance * kv_cache_bytes(layers, 1, kv_width, context, 1, itemsize)
    return balance * params * itemsize / gain if gain > 0 else math.inf


def decoding_seconds(
    params: float, batch: int, context: int, layers: int, width: int, kv_width: int, gpus: int = 1, itemsize: int = 2,
    peak_flops: float = H100_PEAK, memory_bandwidth: float = H100_MEMORY,
) -> float:  # fmt: skip
    """Least seconds of a step that `gpus` GPUs share evenly: the longer one of computing and reading.

    70B on 8 H100: 5.2 ms for one sequence as for 32 with an empty context. Messages between GPUs are not counted.
    """
    whole(gpus=gpus)
    positive(peak_flops=peak_flops, memory_bandwidth=memory_bandwidth)
    computing = decoding_flops(params, batch, context, layers, width) / peak_flops
    reading = decoding_bytes(params, batch, context, layers, kv_width, itemsize) / memory_bandwidth
    return max(computing, reading) / gpus
