"""Chunks are torch.tensor_split's, and they are views."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from labkit.collectives.chunks import Chunks, even_sizes, room_for, split_evenly, split_rows
from labkit.collectives.folding import PowerOfTwo
from labkit.collectives.tree import children, parent

from .thread_world import lone_group


@given(st.integers(0, 100), st.integers(1, 20))
def test_even_sizes_are_those_of_tensor_split(length, parts):
    assert even_sizes(length, parts) == [len(p) for p in torch.tensor_split(torch.empty(length), parts)]


@given(st.integers(0, 30), st.integers(1, 9), st.data())
def test_a_chunk_is_a_view_and_so_is_a_run_of_chunks(length, n, data):
    x = torch.arange(length)
    chunks = split_evenly(x, n)
    parts = torch.tensor_split(x, n)
    assert len(chunks) == n
    assert all(torch.equal(chunk, part) for chunk, part in zip(chunks, parts, strict=True))
    first = data.draw(st.integers(0, n))
    end = data.draw(st.integers(first, n))
    assert torch.equal(chunks[first:end], torch.cat([x[:0], *parts[first:end]]))
    chunks[-1].fill_(-1)
    assert torch.equal(x[length - len(parts[-1]) :], torch.full((len(parts[-1]),), -1))


def test_a_chunk_that_does_not_exist():
    with pytest.raises(IndexError):
        split_evenly(torch.arange(4), 2)[2]


def test_rows_keep_their_shape():
    parts = split_rows(torch.arange(20).view(5, 4), 2)
    assert [p.tolist() for p in parts] == [t.tolist() for t in torch.tensor_split(torch.arange(20).view(5, 4), 2)]
    assert room_for(torch.empty(9, 4), [2, 0, 1]).whole.shape == (3, 4)
    assert [len(p) for p in Chunks(torch.empty(3, 4), [2, 0, 1])] == [2, 0, 1]


@given(st.integers(1, 70))
def test_every_rank_is_active_or_sits_out_behind_an_active_one(size):
    teams = [PowerOfTwo(lone_group(r, size)) for r in range(size)]
    active = [r for r in range(size) if not teams[r].sits_out]
    assert len(active) == teams[0].size and size // 2 < teams[0].size <= size
    assert [teams[r].index for r in active] == list(range(len(active)))
    assert [teams[0].rank_of(i) for i in range(len(active) + 1)] == [*active, size]
    assert {r - 1 for r in range(size) if teams[r].sits_out} == {r for r in active if teams[r].stands_in}


@given(st.integers(1, 70))
def test_the_binomial_tree_is_a_tree(size):
    for v in range(1, size):
        assert parent(v) < v and v in children(parent(v), size)
    assert sum(len(children(v, size)) for v in range(size)) == size - 1
