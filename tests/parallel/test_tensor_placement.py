"""Any rank may hold any shards: loss, gradients and logits of the plain GPT, however heads, columns and ids are spread.

What is cut evenly is tested in test_tensor_gpt.py.
"""

from __future__ import annotations

import random

import pytest
import torch
from slices import few

from labkit import launch
from labkit.models import GPTConfig
from labkit.parallel.tensor.attention import TensorParallelAttention
from labkit.parallel.tensor.linear import ColumnParallelLinear, RowParallelLinear
from labkit.parallel.tensor.placement import Placement, counts
from labkit.parallel.tensor.shard_spec import ShardSpec
from labkit.parallel.vocab import VocabParallelEmbedding
from labkit.wire.errors import RefusedError
from labkit.world import RankFailed

from .test_tensor_gpt import CASES, WAYS, batch, furthest, parts, plain, trained

pytestmark = pytest.mark.ranks


def scattered(config: GPTConfig, size: int, seed: int = 0) -> Placement:
    """Every kind of shard dealt out in any order, one rank with many more than the others."""

    def layout(count: int) -> list[list[int]]:
        draw = random.Random(seed * 1000 + count)
        ids = list(range(count))
        draw.shuffle(ids)
        mine: list[list[int]] = [[ids.pop()] for _ in range(size)]
        for shard in ids:
            mine[draw.choice([0, *range(size)])].append(shard)
        return mine

    return Placement.by(config, layout)


@pytest.mark.parametrize("size", few([3, 2, 5]))
@pytest.mark.parametrize("way", ["plain", "sequence", "whole vocabulary"])
@pytest.mark.parametrize("case", CASES)
def test_a_spread_gpt_is_the_plain_one(case: str, way: str, size: int) -> None:
    config, (x, y) = CASES[case], batch()
    placement = scattered(config, size)

    def ranks(group):
        model = parts(config, group, torch.float64, placement=placement, **WAYS.get(way, {}))
        loss = model(x, y)
        loss.backward()
        gradients, state = model.whole_gradients(), model.whole_state()
        with torch.no_grad():
            return loss.item(), gradients, state, model(x)

    whole = trained(config, torch.float64)
    loss, gradients = plain(whole, x, y)
    for theirs, found, state, logits in launch(ranks, size, transport="local").results:
        assert abs(theirs - loss) < 1e-12
        assert furthest(found, gradients) < 1e-12
        assert furthest(state, {k: p.detach() for k, p in whole.named_parameters()}) == 0
        assert (logits - whole(x).detach()).abs().max() < 1e-12


def test_a_rank_holds_what_the_spread_says_and_no_more() -> None:
    config = CASES["grouped"]
    placement = scattered(config, 3)

    def ranks(group):
        model = parts(config, group, placement=placement)
        b = model.blocks[0]
        return [list(p.shape) for p in (b.attention.qkv.weight, b.attention.out.weight, b.feed_forward.up.weight,
                                        b.feed_forward.down.weight, model.tokens.weight)]  # fmt: skip

    for rank, shapes in enumerate(launch(ranks, 3, transport="local").results):
        heads, hidden, vocab = (len(kind[rank]) for kind in (placement.heads, placement.hidden, placement.vocab))
        d, k = config.width, config.width // config.heads
        assert shapes == [[heads * 4 * k, d], [d, heads * 2 * k], [hidden, d], [d, hidden], [vocab, d]]


def test_a_cut_by_shards_in_order_is_the_even_cut() -> None:
    assert counts(CASES["grouped"]) == {"heads": 12, "hidden": 192, "vocab": 61}
    in_order = [[0, 1], [2, 3], [4, 5]]
    assert ShardSpec.of_shards(0, [12, 6, 6], in_order) == ShardSpec.even(0, [12, 6, 6], 3)
    cut = ShardSpec.of_shards(0, [6, 3], [[2, 0], [1]])
    assert cut.ranges == (((4, 6), (0, 2), (8, 9), (6, 7)), ((2, 4), (7, 8)))
    assert cut.places(0).tolist() == [4, 5, 0, 1, 8, 6]
    assert cut.take(torch.arange(9), 0).tolist() == cut.places(0).tolist()


SHARDS = {
    "another number of ranks": ([[0, 1, 2, 3]], "shards are given for 1 ranks, and this group has 2"),
    "one twice": ([[0, 1], [1, 2]], "must be the numbers 0 to 3, each held by one rank"),
    "one missing": ([[0, 1], [2, 4]], "must be the numbers 0 to 3"),
    "an empty rank": ([[0, 1, 2, 3], []], "rank 1 holds no shard of 4: at most 4 ranks"),
    "parts that are not equal": ([[0, 1], [2]], "does not fall into 3 equal shards"),
}


@pytest.mark.parametrize("case", SHARDS)
def test_shards_that_cannot_be_are_refused_on_every_rank(case: str) -> None:
    shards, words = SHARDS[case]

    def ranks(group):
        told = []
        for make in (lambda: ColumnParallelLinear(8, 8, group, shards=shards),
                     lambda: RowParallelLinear(8, 8, group, shards=shards),
                     lambda: VocabParallelEmbedding(8, 4, group, shards=shards)):  # fmt: skip
            with pytest.raises(RefusedError) as refused:
                make()
            told.append(str(refused.value))
        return told

    for told in launch(ranks, 2, transport="local").results:
        assert all(words in text for text in told), told


def test_what_needs_an_even_cut_says_so() -> None:
    def ranks(group):
        told = []
        for make in (lambda: ColumnParallelLinear(8, 8, group, shards=[[0], [1]], gather_output=True),
                     lambda: RowParallelLinear(8, 8, group, shards=[[0], [1]], input_is_split=False)):  # fmt: skip
            with pytest.raises(RefusedError) as refused:
                make()
            told.append(str(refused.value))
        return told

    assert all("leave out `shards`" in text for told in launch(ranks, 2, transport="local").results for text in told)


def test_ranks_with_different_spreads_are_told() -> None:
    config = CASES["plain"]

    def ranks(group):
        TensorParallelAttention(config, group, shards=[[0], list(range(1, 12))])
        parts(config, group, placement=scattered(config, 2, seed=group.rank))

    with pytest.raises(RankFailed, match="placement"):
        launch(ranks, 2, transport="local")
