"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

from collections.abc import Sequence

from labkit import cost
from labkit.chapters.c04_data_parallelism.checks import layers_of


def packed(nbytes: Sequence[int], most: int) -> list[list[int]]:
    """Numbers of entries of `nbytes` that go together, in their order, up to `most` bytes."""
    groups: list[list[int]] = []
    for number, size in enumerate(nbytes):
        if groups and sum(nbytes[j] for j in groups[-1]) + size <= most:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def bytes_of_rings(sizes: Sequence[int], itemsize: int, n: int, most: int, backwards: bool = True) -> list[list[int]]:
    """By bucket: the bytes that each rank sends for it. sizes: entries of each parameter, in the order of the model."""
    sizes = sizes[::-1] if backwards else sizes
    groups = packed([size * itemsize for size in sizes], most)
    return [cost.ring_all_reduce_bytes_by_rank(sum(sizes[j] for j in g), itemsize, n) for g in groups]


def planned(widths: Sequence[int], most: int, n: int) -> tuple[list[int], list[list[int]]]:
    """By bucket of an MLP in float64: the layer that completes it, and the bytes that each rank sends for it."""
    sizes, layers = layers_of(widths)
    groups = packed([8 * size for size in sizes[::-1]], most)
    return [layers[::-1][g[-1]] for g in groups], bytes_of_rings(sizes, 8, n, most)
