"""The fault-tolerant all-reduce of FT-HSDP (arXiv 2602.00277, section 4.2): partitions, bytes in flight, bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterator

from labkit.cost.refuse import not_negative, whole
from labkit.cost.units import GB, MB

__all__ = ["ftar_in_flight_bytes", "ftar_partitions", "ftar_ratios", "ftar_rounds"]

CHUNK = 8 * MB  # bytes; with 2 thread blocks of 512 threads
FTAR_GPU_BLOCKS, NCCL_GPU_BLOCKS = 2, 4

# table 2: message -> ranks -> (FTAR, NCCL), GB/s, averages of 100 runs
TABLE = {
    256 * MB: {2: (40.06, 40.53), 4: (41.17, 41.2), 8: (40.12, 41.82), 16: (41.25, 41.17)},
    512 * MB: {2: (39.8, 42.12), 4: (42.15, 42.32), 8: (43.01, 43.61), 16: (43.61, 43.15)},
    1 * GB: {2: (40.93, 43.87), 4: (44.67, 43.93), 8: (44.67, 44.87), 16: (45.51, 44.32)},
}


def ftar_ratios() -> Iterator[tuple[int, int, float]]:
    """(bytes, ranks, FTAR's bandwidth over NCCL's) for the 12 cells of the paper's table."""
    for nbytes, row in TABLE.items():
        for ranks, (ours, native) in row.items():
            yield nbytes, ranks, ours / native


def ftar_partitions(nbytes: int, ranks: int, chunk: int = CHUNK, chunks: int = 1) -> int:
    """How many rings run one after the other: nbytes / (chunk * chunks * ranks), rounded up."""
    not_negative(nbytes=nbytes)
    whole(ranks=ranks, chunk=chunk, chunks=chunks)
    return math.ceil(nbytes / (chunk * chunks * ranks))


def ftar_in_flight_bytes(chunk: int = CHUNK, chunks: int = 1) -> int:
    """The most bytes on their way from one rank to the next at any time: chunk * chunks, whatever is reduced."""
    whole(chunk=chunk, chunks=chunks)
    return chunk * chunks


def ftar_rounds(nbytes: int, ranks: int, chunk: int = CHUNK, chunks: int = 1) -> int:
    """Rounds of all partitions: each is a ring of 2 (ranks - 1), so small chunks cost latency on large messages."""
    return ftar_partitions(nbytes, ranks, chunk, chunks) * 2 * (ranks - 1)
