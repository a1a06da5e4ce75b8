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


@pytest.mark.ranks
@pytest.mark.parametrize(("way", "heads", "kv_heads"), [("ring", 8, 4), ("Ulysses", 4, 1), ("both", 8, 2)])
def test_the_run_lies_on_the_curve_of_its_way_and_no_curve_goes_where_the_run_is_refused(
    way: str, heads: int, kv_heads: int
) -> None:
    def attention(group):  # type: ignore[no-untyped-def]
        context = ContextParallel(group, ulysses={"ring": 1, "Ulysses": group.size, "both": 2}[way])
        context.attention(*(context.cut(x, dim=2) for x in drawn(pictures.WAYS_TOKENS, heads, kv_heads)))
        return way, heads, kv_heads

    rows = {row["ranks"]: row for row in pictures.sent(labkit.launch(attention, 4)).rows}
    assert rows[4][f"{way}, your run"] == rows[4][f"{way}, formula"] > 0
    assert (rows[8]["Ulysses, formula"] is None) is (heads == 4)
    assert rows[8]["ring, formula"] > rows[2]["ring, formula"]


def test_losses_that_are_equal_have_a_place_on_a_scale_of_powers_of_ten() -> None:
    figure = pictures.losses([3.0, 2.0], {"apart": [3.0, 2.01]})
    assert [row["apart"] for row in figure.rows] == pytest.approx([1e-8, 0.01])
    assert figure.spec["layout"]["yaxis"]["type"] == "log" and "drawn at 1e-08" in figure.sentence
    assert "apart: at most 1.0e-02 away, and 0.0e+00 in the first step" in figure.sentence


def test_the_ring_sends_less_on_few_ranks_and_ulysses_on_many_as_the_page_says() -> None:
    rows = {row["ranks"]: row for row in pictures.by_ranks().rows}
    less = {n: rows[n]["ring, 8 heads of keys"] < rows[n]["Ulysses, 8 heads of keys"] for n in (2, 8, 16, 64)}
    assert less == {2: True, 8: True, 16: False, 64: False}, "64 / 8 ranks are the border"
    assert all(row["ring, 64 heads of keys"] >= row["Ulysses, 64 heads of keys"] for row in rows.values())


@pytest.mark.ranks
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_a_rank_that_has_nothing_more_to_do_is_idle(layout: str) -> None:
    def share(group):  # type: ignore[no-untyped-def]
        context = ContextParallel(group, layout=layout, pair_seconds=1e-6)
        context.attention(*(context.cut(x, dim=2) for x in drawn(48)))
        return context.positions, context.mask, layout

    run = labkit.launch(share, 4, clock="virtual")
    works = [int((positions + 1).sum()) for positions, *_ in run.results]
    if layout == "contiguous":
        assert f"So rank 0 is idle for {1 - works[0] / works[3]:.0%} of the time." in pictures.pace(run)
        assert f"and rank 0 for {works[0] / works[3]:.0%}." in pictures.timeline(run).sentence
    else:
        assert "idle" not in pictures.pace(run) and "Every rank computes for 100%" in pictures.timeline(run).sentence
