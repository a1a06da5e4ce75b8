"""What a hybrid run cannot be is refused in one sentence, with the value and what to do, by every rank and at once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import labkit
from labkit.models import GPTConfig
from labkit.models.moe import MoEConfig
from labkit.parallel import Hybrid, HybridConfig
from labkit.parallel.hybrid.checks import check
from labkit.wire.errors import RefusedError

MODEL = GPTConfig(vocab=13, context=12, layers=4, heads=4, width=16, expansion=2)


def model(**changed):
    return dataclasses.replace(MODEL, **changed)


def moe(**options):
    return model(moe=MoEConfig(4, 2, **options))


CASES = [
    (MODEL, HybridConfig(dp=2, tp=2), "mesh dp=2, pp=1, cp=1, tp=2 has 2 x 1 x 1 x 2 = 4 places, and the group has 8"),
    (MODEL, HybridConfig(dp=0), "HybridConfig(dp=0): a whole number, 1 or more"),
    (MODEL, HybridConfig(dp=8, microbatches=2.0), "HybridConfig(microbatches=2.0): a whole number"),
    (MODEL, HybridConfig(dp=8, data="zero4"), "HybridConfig(data='zero4'): choose one of plain, zero1"),
    (MODEL, HybridConfig(dp=8, schedule="fast"), "HybridConfig(schedule='fast'): choose one of naive"),
    (MODEL, HybridConfig(dp=8, layout="spiral"), "HybridConfig(layout='spiral'): choose one of contiguous"),
    (MODEL, HybridConfig(dp=8, order=("dp", "tp")), "needs each of dp, pp, cp, tp once"),
    (MODEL, HybridConfig(dp=8, data="hsdp"), "data='hsdp' needs shard=, a divisor of dp=8"),
    (MODEL, HybridConfig(dp=8, shard=2), "shard= goes with data='hsdp'"),
    (MODEL, HybridConfig(dp=8, data="hsdp", shard=3), "shard=3): as many ranks as cut must divide dp, one of 1, 2, 4,"),
    (MODEL, HybridConfig(dp=4, pp=2, data="zero2"), "zero2 sends gradients in each backward, and a pipeline has sever"),
    (MODEL, HybridConfig(dp=4, pp=2, data="zero3"), "zero3 frees a block when its backward is over, and a pipeline"),
    (MODEL, HybridConfig(dp=4, pp=2, data="fsdp", schedule="zb_h1"), "this schedule makes some of them now and some l"),
    (MODEL, HybridConfig(tp=8), "heads = 4 does not divide by 8. The nearest degree of tensor parallelism that divide"),
    (model(kv_heads=2), HybridConfig(dp=2, tp=4), "kv_heads = 2 does not divide by 4"),
    (model(expansion=1, width=12, heads=12), HybridConfig(tp=8), "heads = 12 and expansion * width = 12 do not divide"),
    (model(vocab=3), HybridConfig(dp=2, tp=4), "a vocabulary of 3 has not one id for each rank"),
    (moe(hidden=0.2), HybridConfig(dp=2, tp=4), "hidden width of an expert = 3 does not divide by 4"),
    (MODEL, HybridConfig(dp=8, sequence_parallel=True), "sequence_parallel=True, tp=1): it cuts positions among the r"),
    (MODEL, HybridConfig(pp=8), "8 stages for a model of 4 layers: a stage needs at least one"),
    (MODEL, HybridConfig(dp=8, chunks=2), "HybridConfig(pp=1, chunks=2): chunks go around the ranks of a pipeline"),
    (MODEL, HybridConfig(dp=4, pp=2, chunks=2), "schedule='one_f_one_b', chunks=2): this schedule has chunks=1"),
    (MODEL, HybridConfig(dp=4, pp=2, schedule="interleaved"), "this schedule has 2 chunks or more"),
    (MODEL, HybridConfig(dp=4, pp=2, schedule="interleaved", chunks=2, microbatches=5), "5 microbatches cannot be cut"),
    (MODEL, HybridConfig(dp=2, cp=4, ulysses=3), "cp=4, ulysses=3): the ranks that share heads divide cp, one of 1, 2"),
    (MODEL, HybridConfig(cp=4, tp=2, ulysses=4), "a rank has 2 of the 4 heads, which 4 ranks cannot share evenly"),
    (model(dropout=0.1), HybridConfig(dp=4, cp=2), "attention over several ranks has no dropout: set dropout=0, or cp"),
    (MODEL, HybridConfig(dp=8, ep=2), "this model has no experts: give GPTConfig(moe=...), or ep=1"),
    (moe(), HybridConfig(dp=4, tp=2, ep=3), "3 must divide dp: choose one of 1, 2, 4"),
    (moe(), HybridConfig(dp=8, data="hsdp", shard=2, ep=4), "4 must divide shard: choose one of 1, 2"),
    (moe(), HybridConfig(dp=8, ep=8), "4 experts are shared out evenly by one of 1, 2, 4"),
    (moe(capacity=1.0), HybridConfig(dp=4, cp=2), "who is over depends on the order of all tokens"),
    (moe(capacity=1.0, drop="probability"), HybridConfig(dp=8, ep=2), "the 2 ranks that share experts, and there are"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "config", "words"), CASES, ids=range(len(CASES)))
def test_what_cannot_be(model, config, words):
    with pytest.raises(RefusedError) as refused:
        check(model, config, 8)
    said = str(refused.value)
    assert words in said and "\n" not in said


def test_what_is_the_least_that_can():
    for one, config in ((MODEL, HybridConfig(dp=8)), (moe(capacity=1.0, drop="probability"), HybridConfig(dp=4, ep=4))):
        check(one, config, config.size)


@pytest.mark.ranks
def test_every_rank_refuses_with_the_same_words():
    def refused(group):
        found = []
        for one, config in ((MODEL, HybridConfig(dp=2, pp=2)), (MODEL, HybridConfig(pp=3, dp=1, data="zero3")),
                            (MODEL, HybridConfig(dp=3, microbatches=1 + (group.rank == 2)))):  # fmt: skip
            try:
                Hybrid(group, one, config)
            except RefusedError as why:
                found.append(str(why))
        hybrid = Hybrid(group, MODEL, HybridConfig(cp=3))
        for batch, length in ((4, 13), (4, 5), (0, 8)):
            x = torch.zeros(batch, length, dtype=torch.int64)
            try:
                hybrid.step(x, x)
            except ValueError as why:
                found.append(str(why))
        try:
            hybrid.step(x, x[:, 1:])
        except RefusedError as why:
            found.append(str(why))
        return found

    results = labkit.launch(refused, 3, transport="local").results
    assert results[0] == results[1] == results[2]
    for words, said in zip(
        ["has 2 x 2 x 1 x 1 = 4 places", "zero3 frees a block", "rank 2: option microbatches is 2 (on rank 0 1)",
         "a batch of 13 positions, but this model has 12", "a sequence of 5 positions cannot be shared out among 3 ran",
         "a batch of 0 examples for dp=1 and microbatches=1: it needs 1 or more",
         "these are [0, 8] and [0, 7]"], results[0], strict=True
    ):  # fmt: skip
        assert words in said


@pytest.mark.ranks
def test_a_batch_that_a_pipeline_cannot_cut():
    def refused(group):
        hybrid = Hybrid(group, MODEL, HybridConfig(pp=2, microbatches=4))
        x = torch.zeros(6, 8, dtype=torch.int64)
        with pytest.raises(RefusedError, match="a batch of 6 examples .* it needs a multiple of 4, since the shapes"):
            hybrid.step(x, x)
        return True

    assert labkit.launch(refused, 2, transport="local").results == [True, True]
