"""Where tensors lie in a flat one, and who owns what, for sizes that do not divide."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from labkit.parallel.flat import Flat

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=5)


@given(SHAPES, st.integers(1, 8))
def test_the_pieces_of_all_ranks_together_are_all_tensors_once(shapes, size):
    tensors = [torch.randn(shape) for shape in shapes]
    flat = Flat(((str(i), x) for i, x in enumerate(tensors)), size)
    whole = flat.pack(tensors, torch.empty(flat.numel))
    assert all(torch.equal(view, x) for view, x in zip(flat.views(whole), tensors, strict=True))
    parts = [flat.part(whole, rank) for rank in range(size)]
    assert [list(p) for p in parts] == [list(p) for p in torch.tensor_split(whole, size)]
    found = [torch.full((x.numel(),), torch.nan) for x in tensors]
    for rank in range(size):
        for piece in flat.pieces(rank):
            into = found[int(piece.name)][piece.start : piece.stop]
            assert torch.isnan(into).all(), "owned twice"
            into.copy_(parts[rank][piece.offset : piece.offset + piece.stop - piece.start])
    assert all(torch.equal(f, x.flatten()) for f, x in zip(found, tensors, strict=True))


def test_views_write_through():
    flat = Flat([("a", (2, 3)), ("b", ())], 3)
    whole = torch.zeros(flat.numel)
    a, b = flat.views(whole)
    a[1, 2], b[...] = 5.0, 7.0
    assert whole.tolist() == [0, 0, 0, 0, 0, 5, 7] and flat.counts == [3, 2, 2] and flat.starts == [0, 3, 5]
