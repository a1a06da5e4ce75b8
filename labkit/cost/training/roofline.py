"""What a kernel can reach if its memory must feed it: the roofline (Williams, Waterman and Patterson 2009).

A device that computes peak_flops operations a second, and reads or writes memory_bandwidth bytes a second, is balanced
for peak_flops / memory_bandwidth operations a byte. A kernel with fewer waits for memory: it is memory-bound.
"""

from __future__ import annotations

from labkit.cost.refuse import positive

__all__ = ["elementwise_intensity", "machine_balance", "product_intensity", "roofline_share"]

H100_PEAK = 989e12  # operations a second of its 16-bit matrix units (NVIDIA's data sheet, SXM, without sparsity)
H100_MEMORY = 3.35e12  # bytes a second of its memory (the same sheet)


def machine_balance(peak_flops: float = H100_PEAK, memory_bandwidth: float = H100_MEMORY) -> float:
    """Operations a byte from which on a kernel can reach the peak: 295 for an H100."""
    positive(peak_flops=peak_flops, memory_bandwidth=memory_bandwidth)
    return peak_flops / memory_bandwidth


def product_intensity(rows: int, inner: int, columns: int, itemsize: int = 2) -> float:
    """Operations a byte of a matrix product (rows, inner) x (inner, columns), each matrix moved once.

    2 rows inner columns operations; itemsize (rows inner + inner columns + rows columns) bytes. Under 1 for one row.
    """
    positive(rows=rows, inner=inner, columns=columns, itemsize=itemsize)
    moved = rows * inner + inner * columns + rows * columns
    return 2 * rows * inner * columns / (itemsize * moved)


def elementwise_intensity(operations: float, reads: float, writes: float, itemsize: int = 2) -> float:
    """Operations a byte of what works on each number by itself, with so many numbers read and written for each."""
    positive(operations=operations, reads=reads, writes=writes, itemsize=itemsize)
    return operations / (itemsize * (reads + writes))


def roofline_share(intensity: float, peak_flops: float = H100_PEAK, memory_bandwidth: float = H100_MEMORY) -> float:
    """The part of the peak that a kernel of this intensity reaches at most: min(1, intensity / balance)."""
    positive(intensity=intensity)
    return min(1.0, intensity / machine_balance(peak_flops, memory_bandwidth))
