"""What chapter 11 says of the rounds of its ring."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import labkit
from labkit import cost
from labkit.book import open_chapter
from labkit.chapters.c11_context_parallelism import attention, drawings, panels, pictures, triangle
from labkit.chapters.c11_context_parallelism.attention import drawn
from labkit.cost.planner import H100, MODELS
from labkit.parallel import ContextParallel
from labkit.parallel.context.layouts import positions_of
from labkit.parallel.context.masks import Mask

TEXT = (Path(__file__).parents[2] / "notebooks" / "11_context_parallelism.ipynb").read_text(encoding="utf-8")


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("window", "layout", "told"),
    [
        (48, "contiguous", "all rounds are needed, because rank 3 may read keys of rank 0"),
        (
            12,
            "contiguous",
            "2 of 4 rounds are enough, because rank 1 may read keys of rank 0, and their block has to go 1 step",
        ),
        (12, "zigzag", "all rounds are needed, because rank 0 may read keys of rank 1"),
        (3, "striped", "3 of 4 rounds are enough, because rank 0 may read keys of rank 2"),
        (1, "striped", "a single round is enough: every rank reads its own keys only. Nothing is sent."),
    ],
)
def test_why_a_block_goes_all_the_way_around(window: int, layout: str, told: str) -> None:
    def read(group):  # type: ignore[no-untyped-def]
        context = ContextParallel(group, layout=layout, window=window)
        which = torch.zeros(48, dtype=torch.long)
        context.attention(*(context.cut(x, dim=2, documents=which) for x in drawn(48)))
        return context.positions

    run = labkit.launch(read, 4)
    assert told in pictures.reads(run, window, 1, layout)
    if "because rank" in told:
        rank, other = map(int, re.findall(r"rank (\d)", told))
        allowed = Mask(window=window).allowed(run.results[rank], run.results[other])
        assert (rank - other) % 4 == run.trace.messages()[0] and allowed.any()


@pytest.mark.ranks
@pytest.mark.parametrize(("way", "heads", "kv_heads"), [("ring", 8, 4), ("Ulysses", 4, 1), ("both", 8, 2)])
def test_the_run_lies_on_the_curve_of_its_way_and_no_curve_goes_where_the_run_is_refused(
    way: str, heads: int, kv_heads: int
) -> None:
    def attention(group):  # type: ignore[no-untyped-def]
        context = ContextParallel(group, ulysses={"ring": 1, "Ulysses": group.size, "both": 2}[way])
        context.attention(*(context.cut(x, dim=2) for x in drawn(pictures.WAYS_TOKENS, heads, kv_heads)))

    made = pictures.sent(labkit.launch(attention, 4), way, heads, kv_heads)
    rows = {(row["way"], row["ranks"]): row for row in made.rows}
    assert rows[way, 4]["your run"] == rows[way, 4]["all, bytes"] > 0
    assert (("Ulysses", 8) not in rows) is (heads == 4)
    assert rows["ring", 8]["all, bytes"] > rows["ring", 2]["all, bytes"] and rows["ring", 8]["queries, bytes"] == 0
    for (one, _), row in rows.items():
        parts = [row[f"{part}, bytes"] for part in ("queries", "keys", "values", "results")]
        assert sum(parts) == row["all, bytes"] and parts[1] == parts[2] and parts[0] == parts[3]
        assert one == "ring" or parts[0] > 0
    if kv_heads == 1:
        assert rows["Ulysses", 4]["all, bytes"] == rows["Ulysses", 2]["all, bytes"], "as the page says of one head"
        assert rows["Ulysses", 4]["keys, bytes"] == rows["Ulysses", 4]["queries, bytes"], "a copy for each of 4 ranks"


@pytest.mark.ranks
def test_where_a_way_is_refused_the_bars_of_the_others_stay() -> None:
    def attention_by(group, way="ring", heads=8, kv_heads=4):  # type: ignore[no-untyped-def]
        context = ContextParallel(group, ulysses={"ring": 1, "Ulysses": group.size, "both": 2}[way])
        context.attention(*(context.cut(x, dim=2) for x in drawn(pictures.WAYS_TOKENS, heads, kv_heads)))

    bench = panels.ways(attention_by)
    try:
        bench.set(way="Ulysses", ranks=8, heads=4)
        bench.show(bench.settings)
        (made,) = bench.faces
        assert made.sentence.startswith("Refused:") and "the way both" in made.sentence
        assert {row["way"] for row in made.rows} == {"ring", "Ulysses", "both"}
        assert not any(row["your run"] for row in made.rows), "no bar is framed"
    finally:
        bench.close()


def test_positions_that_nobody_looks_up_are_named() -> None:
    drawn = drawings.looked_up(4, 16, 5.6, 5.7)
    assert "positions 0 to 15 are looked up 4 times, the others never" in drawn.sentence
    assert drawn.svg.count(": never<") == 3 and drawn.svg.count(", 4 times<") == 1


def test_on_the_way_back_blocks_move_a_step_less_than_their_gradients() -> None:
    for n in (2, 4):
        last = drawings.way_back(n).still.rows[-1]
        assert last == {"step": n, "shares in each gradient": n, "blocks have moved": n - 1, "gradients have moved": n}


@pytest.mark.parametrize("kv_heads", [8, 64])
def test_the_ring_sends_less_on_few_ranks_and_ulysses_on_many_as_the_page_says(kv_heads: int) -> None:
    about: dict[str, Any] = {"passes": "forward"}
    for n in (2, 4, 16, 64):
        ring = cost.ring_attention_bytes_by_rank([1024] * n, kv_heads, 128, **about)[0]
        ulysses = cost.ulysses_bytes_by_rank([1024] * n, 64, kv_heads, 128, **about)[0]
        assert (ring < ulysses) is (n < 64 / kv_heads), "64 / 8 ranks are the border"


def test_the_lines_cross_where_the_formula_says() -> None:
    for bandwidth, grouped, said in ((450, 4, "1,099"), (50, 4, "9,890"), (50, 1, "39,560")):
        drawn = pictures.tokens_needed(bandwidth, grouped, 100)
        assert drawn.sentence.startswith(f"With {said} tokens or more"), "as the page says"
        least = float(said.replace(",", ""))
        for row in (row for row in drawn.rows if row["computing (ms)"]):  # and not the point where they cross
            assert (row["computing (ms)"] > row["a block travels (ms)"]) is (row["tokens of a rank"] > least)
    assert "With 494 tokens" in pictures.tokens_needed(500, 4, 50).sentence, "half the peak needs half as many"


def test_which_tokens_of_the_second_text_have_moved_is_counted() -> None:
    first = torch.ones(4)  # changes, because it is replaced
    still, moved = torch.cat((first, torch.zeros(4))), torch.cat((first, torch.tensor([0.5, 0.2, 0.1, 0.0])))
    assert pictures.left_alone(still, moved).sentence == (
        "If the ring knows the border, no logit of the second text changes. If it does not, the logits of 3 of the 4 "
        "tokens of this text change."
    )
    assert pictures.left_alone(still, first.repeat(2)).sentence.endswith(
        "the logits of all tokens of this text change."
    )
    assert pictures.left_alone(still, moved).svg.count(">all 0<") == 1
    assert pictures.left_alone(moved, moved).sentence.startswith("Even if the ring knows the border, logits")


@pytest.mark.ranks
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_a_rank_that_has_nothing_more_to_do_is_idle(layout: str) -> None:
    def share(group):  # type: ignore[no-untyped-def]
        context = ContextParallel(group, layout=layout, pair_seconds=1e-6)
        context.attention(*(context.cut(x, dim=2) for x in drawn(48)))
        return context.positions

    run = labkit.launch(share, 4, clock="virtual")
    works = [int((positions + 1).sum()) for positions in run.results]
    if layout == "contiguous":
        assert f"So rank 0 is idle for {1 - works[0] / works[3]:.0%} of the time." in pictures.pace(run, layout)
        assert f"and rank 0 for {works[0] / works[3]:.0%}." in pictures.timeline(run).sentence
    else:
        assert (
            "idle" not in pictures.pace(run, layout)
            and "Every rank computes for 100%" in pictures.timeline(run).sentence
        )


def test_what_the_page_says_of_the_three_ways_is_what_the_formulas_say() -> None:
    ring, ulysses, both = (f"{pictures._formula(way, 8, 8, 2) / 1e3:.1f} kB" for way in pictures.WAYS)
    assert ring == ulysses and f"on 8 ranks, each way alone sends {ring}, and both together {both}." in TEXT
    assert pictures._formula("ring", 2, 4, 4) == pictures._formula("Ulysses", 2, 4, 4), "equal on 1 + 1 ranks"
    assert "Llama 3 70B has 64 query heads and 8 KV heads, so without copies the two would be equal on 9 ranks" in TEXT
    assert "on 8 ranks the ring sends less, and on 16 Ulysses does" in TEXT
    less = [min(("ring", "Ulysses"), key=lambda way: pictures._formula(way, n, 64, 8)) for n in (8, 16)]
    assert less == ["ring", "Ulysses"]
    border = [min(("ring", "Ulysses"), key=lambda way: pictures._formula(way, n, 8, 4)) for n in (2, 4)]
    assert border == ["ring", "Ulysses"], "8 / 4 + 1 = 3"
    own = [pictures._parts("Ulysses", n, 8, 4) for n in (2, 4, 8)]
    assert (
        own[0]["keys"] > own[1]["keys"] < own[2]["keys"] and own[0]["queries"] > own[1]["queries"] > own[2]["queries"]
    )
    pairs = [(n, h, k) for k in (1, 2) for h in (2, 4, 8) if h >= k for n in (2, 4, 8) if n <= h]
    assert all(pictures._formula("Ulysses", *one) >= pictures._formula("ring", *one) for one in pairs), "copies"


def test_what_the_page_says_of_packed_texts_is_what_the_square_counts() -> None:
    def work(texts: int) -> tuple[bool, bool]:
        where = [positions_of(rank, 8, 48, "zigzag") for rank in range(8)]
        allowed = Mask(window=48, documents=torch.arange(48) * texts // 48).allowed
        rounds = [[int(allowed(where[r], where[(r - i) % 8]).sum()) for r in range(8)] for i in range(8)]
        return all(len(set(one)) == 1 for one in rounds), len({sum(one) for one in zip(*rounds, strict=True)}) == 1

    assert work(2) == (True, True) and work(4) == (False, True)
    assert (
        "two texts, all ranks still have equal work in every round. With four texts the work is equal only in total"
        in TEXT
    )


def test_the_million_tokens_of_the_beginning_are_computed_at_the_end() -> None:
    model, tokens = MODELS["Llama 3 8B"], 1_000_000
    inputs = 2 * model.layers * model.hidden * tokens
    near, far = (
        cost.ring_attention_tokens_to_hide(H100.peak(), b, heads=model.heads, kv_heads=model.kv_heads)
        for b in (450e9, 50e9)
    )
    for said in (
        f"{inputs / 1e9:.0f} GB of activations",
        f"keeps an eighth of the layers' inputs, {inputs / 8e9:.0f} GB",
        f"has {tokens // 8:,} tokens",
        f"{near:,.0f} tokens are enough",
        f"and {far:,.0f} over the network card",
        f"the lines cross at {far:,.0f} tokens",
        f"as much to send, they cross at {far * model.heads / model.kv_heads:,.0f}",
    ):
        assert said in TEXT, said  # fmt: skip


def test_a_layout_is_drawn_with_its_own_pairs() -> None:
    def mine(rank: int, size: int, length: int) -> torch.Tensor:
        return positions_of(rank, size, length, "zigzag")

    drawn = triangle.of_layout(mine, 4)
    assert [said for _, said in drawn.frames] == [
        f"Round {i} (the last is 3): every rank computes {21 if i == 0 else 18} pairs." for i in range(4)
    ]


def test_bars_of_different_layouts_have_one_scale() -> None:
    def widths(layout: str) -> set[str]:
        made = triangle.rounds([positions_of(r, 8, 48, layout) for r in range(8)], Mask(), 8, "emulated", "Pairs")
        boxes, *_ = (re.findall(r'width="([0-9.]+)" height="24"', svg) for svg, _ in made.frames)
        return set(boxes)

    assert widths("contiguous") == widths("zigzag"), "21 pairs of each rank in round 0, and so the same bars"


def test_a_limit_stands_beside_the_formula_and_not_beside_the_run() -> None:
    asked = open_chapter("11_context_parallelism", world_size=4, seed=0).predict("contiguous-slowdown", length=64)
    first, second = pictures.beside_limit(asked, 1.6)
    assert first["the run (emulated)"] == 1.6 and second["by the formula"] == 2 and "the run (emulated)" not in second


def test_the_three_links_need_as_many_tokens_as_the_page_says() -> None:
    least = [
        min(t for t in (8, 16, 32, 64, 128, 256) if pictures.FAST_PAIR * t**2 / 2 >= 8 * pictures.PER_HEAD * t / speed)
        for speed in attention.LINKS.values()
    ]
    assert "The three links need {}, {} and {} tokens on each rank".format(*least) in TEXT
