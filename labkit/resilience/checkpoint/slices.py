"""Which elements of a whole tensor a rank holds, as numbers, and what two such holdings have in common.

A `StridedSlice` is enough for every cut of labkit: FSDP and ZeRO hold one run of the flattened tensor; tensor
parallelism holds some rows (one run) or some columns (one run in each row) of it. So a checkpoint need not know how
the model that wrote it was cut, nor how the one that reads it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StridedSlice:
    """`count` runs of `length` elements.

    Run i begins at element start + i stride of the flattened whole, and at at + i step of the flattened part held.
    """

    start: int
    length: int
    count: int = 1
    stride: int = 0
    at: int = 0
    step: int = 0

    @property
    def numel(self) -> int:
        """Elements in all runs."""
        return self.length * self.count


@dataclass(frozen=True, slots=True)
class Common:
    """Elements that two parts both hold: run i at a + i step_a of the one, and at b + i step_b of the other."""

    length: int
    count: int
    a: int
    step_a: int
    b: int
    step_b: int


def everything(numel: int) -> tuple[StridedSlice, ...]:
    """The whole of a tensor of so many elements."""
    return (StridedSlice(0, numel),) if numel else ()


def numel(slices: Sequence[StridedSlice]) -> int:
    """Elements of a part."""
    return sum(s.numel for s in slices)


def along(shape: Sequence[int], dim: int, held: Sequence[tuple[int, int]]) -> tuple[StridedSlice, ...]:
    """The part that has the [begin, end) of `held` along dimension `dim`, one after the other, and all of the others.

    shape: of the whole.
    """
    inner, outer = math.prod(shape[dim + 1 :]), math.prod(shape[:dim])
    width, at, found = sum(end - begin for begin, end in held) * inner, 0, []
    for begin, end in held:
        length = (end - begin) * inner
        if length and outer > 1:
            found.append(StridedSlice(begin * inner, length, outer, shape[dim] * inner, at, width))
        elif length and outer:
            found.append(StridedSlice(begin * inner, length, at=at))
        at += length
    return tuple(found)


def within(part: Sequence[StridedSlice], start: int, stop: int) -> tuple[StridedSlice, ...]:
    """Elements `start` to `stop` of a flattened part, as a part of the same whole."""
    turned = [StridedSlice(s.at, s.length, s.count, s.step, s.start, s.stride) for s in part]
    cut = [StridedSlice(start, stop - start)]
    return tuple(StridedSlice(c.a, c.length, c.count, c.step_a, c.b, c.step_b) for c in common(turned, cut))


def common(a: Sequence[StridedSlice], b: Sequence[StridedSlice]) -> list[Common]:
    """What the parts `a` and `b` of one whole have in common."""
    return [c for one in a for other in b for c in _both(one, other)]


def _both(a: StridedSlice, b: StridedSlice) -> Iterator[Common]:
    if a.count == 1 and b.count == 1:
        begin, end = max(a.start, b.start), min(a.start + a.length, b.start + b.length)
        if begin < end:
            yield Common(end - begin, 1, a.at + begin - a.start, 0, b.at + begin - b.start, 0)
    elif b.count == 1:
        yield from _rows_in_a_run(a, b)
    elif a.count == 1:
        yield from (Common(c.length, c.count, c.b, c.step_b, c.a, c.step_a) for c in _rows_in_a_run(b, a))
    elif a.stride == b.stride and _inside_a_row(a) and _inside_a_row(b):
        yield from _same_rows(a, b)
    else:
        for i in range(b.count):
            run = StridedSlice(b.start + i * b.stride, b.length, at=b.at + i * b.step)
            yield from _both(a, run)


def _rows_in_a_run(rows: StridedSlice, run: StridedSlice) -> Iterator[Common]:
    """`rows` has several runs, `run` one: the runs that lie in it whole are taken at once, the ends by themselves."""
    first, stride = rows.start, rows.stride
    begin, end = run.start, run.start + run.length
    low = max(0, -((first - begin) // stride))  # the first whole one: rounded up
    high = min(rows.count, (end - rows.length - first) // stride + 1)
    if low < high:
        at = first + low * stride - begin
        yield Common(rows.length, high - low, rows.at + low * rows.step, rows.step, run.at + at, stride)
    for i in sorted({(begin - first) // stride, (end - 1 - first) // stride}):
        if 0 <= i < rows.count and not low <= i < high:
            yield from _both(StridedSlice(first + i * stride, rows.length, at=rows.at + i * rows.step), run)


def _inside_a_row(s: StridedSlice) -> bool:
    return s.start % s.stride + s.length <= s.stride


def _same_rows(a: StridedSlice, b: StridedSlice) -> Iterator[Common]:
    (row_a, column_a), (row_b, column_b) = divmod(a.start, a.stride), divmod(b.start, b.stride)
    first, last = max(row_a, row_b), min(row_a + a.count, row_b + b.count)
    begin, end = max(column_a, column_b), min(column_a + a.length, column_b + b.length)
    if first < last and begin < end:
        yield Common(end - begin, last - first, a.at + (first - row_a) * a.step + begin - column_a, a.step,
                     b.at + (first - row_b) * b.step + begin - column_b, b.step)  # fmt: skip
