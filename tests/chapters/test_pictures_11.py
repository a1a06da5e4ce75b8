"""What chapter 11 says of the rounds of its ring."""

from __future__ import annotations

import pytest

import labkit
from labkit.chapters.c11_context_parallelism import panels, pictures
from labkit.chapters.c11_context_parallelism.attention import drawn
from labkit.parallel import ContextParallel


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("window", "layout", "told"),
    [
        (48, "contiguous", "all rounds are needed, because rank 3 may read keys of rank 0"),
        (12, "contiguous", "2 of 4 rounds are left"),
        (12, "zigzag", "all rounds are needed, because rank 0 may read keys of rank 1"),
    ],
)
def test_why_a_block_goes_all_the_way_around(window: int, layout: str, told: str) -> None:
    def read(group):  # type: ignore[no-untyped-def]
        context = ContextParallel(group, layout=layout, window=window)
        which = panels.texts(1)
        context.attention(*(context.cut(x, dim=2, documents=which) for x in drawn(48)))
        return context.positions, panels.mask(window, 1), layout

    run = labkit.launch(read, 4)
    assert told in pictures.reads(run)
    if "because rank" in told:
        rank, other = int(told.split("rank ")[1][0]), int(told[-1])
        allowed = run.results[0][1].allowed(run.results[rank][0], run.results[other][0])
        assert other == (rank + 1) % 4 and allowed.any()
