"""What two cuts of a tensor have in common, against a count of elements."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.parallel.tensor.shard_spec import ShardSpec
from labkit.resilience.checkpoint.pieces import Piece, copy_common, covered
from labkit.resilience.checkpoint.slices import along, common, everything, numel, within


@st.composite
def a_part(draw, shape):
    """Some elements of a tensor of this shape: a run, rows or columns, or a run of these."""
    total = math.prod(shape)
    kind = draw(st.integers(0, 2))
    if kind == 0:
        start = draw(st.integers(0, total))
        return within(everything(total), start, draw(st.integers(start, total)))
    dim = draw(st.integers(0, len(shape) - 1))
    edges = sorted(draw(st.sets(st.integers(0, shape[dim]), max_size=4)))
    part = along(shape, dim, list(zip(edges[::2], edges[1::2], strict=False)))
    if kind == 2:
        start = draw(st.integers(0, numel(part)))
        part = within(part, start, draw(st.integers(start, numel(part))))
    return part


@st.composite
def two_parts(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    return shape, draw(a_part(shape)), draw(a_part(shape))


def places(part):
    """Which element of the whole stands at each place of the part."""
    found = {s.at + i * s.step + j: s.start + i * s.stride + j
             for s in part for i in range(s.count) for j in range(s.length)}  # fmt: skip
    assert sorted(found) == list(range(numel(part)))
    return [found[k] for k in range(len(found))]


@given(two_parts())
def test_two_parts_share_exactly_the_elements_that_both_have(case):
    shape, a, b = case
    mine, theirs = places(a), places(b)
    total = math.prod(shape)
    whole = torch.arange(total)
    target = torch.full((len(theirs),), -1)
    copied = copy_common(whole[torch.tensor(mine, dtype=torch.int64)], a, target, b)
    both = set(mine) & set(theirs)
    assert copied == len(both) == sum(c.length * c.count for c in common(a, b))
    assert target.tolist() == [x if x in both else -1 for x in theirs]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_parts_of_tensor_parallelism_are_what_cut_takes(dim, size):
    whole = torch.arange(12 * 9).reshape(12, 9)
    cut = ShardSpec.even(dim, [4, 4, 4] if dim == 0 else [9], size)
    parts = []
    for rank in range(size):
        held = along(whole.shape, dim, cut.ranges[rank])
        assert torch.equal(whole.flatten()[torch.tensor(places(held))], cut.take(whole, rank).flatten())
        parts.append(held)
    assert covered(whole.shape, parts) is None
    if size > 1:
        assert "of its 108 elements are there" in covered(whole.shape, parts[:-1])
        assert "twice" in covered(whole.shape, [*parts[:-1], parts[0], parts[-1]])


def test_a_few_large_copies_not_one_for_each_row():
    # A slice of FSDP across a matrix of which tensor parallelism has columns: a block and two ends, however many rows
    columns = along((1000, 64), 1, [(16, 32)])
    assert len(common(columns, within(everything(64_000), 1_000, 60_020))) <= 3
    assert len(common(columns, along((1000, 64), 1, [(0, 24)]))) == 1


def test_nothing_and_numbers_without_dimensions_are_tensors_too():
    assert covered((0, 3), []) is None and covered((), [everything(1)]) is None
    scalar = Piece.whole("step", torch.tensor(7.0))
    target = Piece.whole("step", torch.zeros(()))
    assert target.take(scalar) == 1 and target.tensor.item() == 7.0
