"""What a tensor-parallel GPT refuses, in which words, on every rank; and the model as a whole, in and out."""

from __future__ import annotations

import pytest
import torch
from leftovers import NEVER
from torch import nn

from labkit import RankFailed, launch
from labkit.models import GPT, GPTConfig
from labkit.parallel import ColumnParallelLinear, TensorParallelBlock, TensorParallelGPT
from labkit.parallel.tensor.degrees import check_divides, degrees
from labkit.parallel.tensor.gradients import clip_grad_norm_
from labkit.parallel.tensor.random import check_random_state, different_inside
from labkit.parallel.tensor.whole import load_whole, whole_state

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(vocab=61, context=16, layers=2, heads=12, width=48)
IDS = torch.zeros(2, 8, dtype=torch.int64)


def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def test_degrees_that_do_not_divide_are_refused_on_every_rank_with_the_nearest_that_do():
    def on_rank(group):
        return [
            refused(lambda: TensorParallelGPT(GPTConfig(heads=4, width=64), group)),
            refused(lambda: TensorParallelGPT(GPTConfig(heads=12, kv_heads=2, width=48), group)),
            refused(lambda: TensorParallelGPT(GPTConfig(heads=12, kv_heads=4, width=48), group)),
            refused(lambda: TensorParallelGPT(GPTConfig(heads=3, width=60, expansion=7), group)),
            refused(lambda: TensorParallelGPT(GPTConfig(vocab=2, heads=3, width=48), group)),
            refused(lambda: TensorParallelBlock(GPTConfig(heads=4, width=64), group)),
        ]

    wanted = [
        "over 3 ranks: heads = 4 and expansion * width = 256 do not divide by 3. The nearest degrees of tensor "
        "parallelism that divide heads = 4 and expansion * width = 256: 2 and 4",
        "kv_heads = 2 does not divide by 3. The nearest degree of tensor parallelism that divides heads = 12, "
        "expansion * width = 192 and kv_heads = 2: 2",
        "kv_heads = 4 does not divide by 3",
        None,
        "vocab=2",
        "heads = 4 and expansion * width = 256 do not divide by 3",
    ]
    results = launch(on_rank, 3, transport="local").results
    for found in results:
        assert found == results[0]
        for words, text in zip(wanted, found, strict=True):
            assert text is None if words is None else words in text, found


def test_degrees():
    assert degrees({"a": 12, "b": 18}) == [1, 2, 3, 6]
    check_divides("a layer", {"a": 12, "b": 18}, 6)
    with pytest.raises(ValueError, match="a layer over 5 ranks: a = 12 does not divide by 5. .* 4 and 6"):
        check_divides("a layer", {"a": 12}, 5)
    with pytest.raises(ValueError, match="a = 7 does not divide by 64. The nearest degree .*: 7"):
        check_divides("a layer", {"a": 7}, 64)


def test_a_rank_with_another_config_or_another_option_is_named_on_every_rank():
    def on_rank(group):
        last = group.rank == 2
        other = GPTConfig(vocab=61, context=16, layers=3 if last else 2, heads=12, width=48)
        return [
            refused(lambda: TensorParallelGPT(other, group)),
            refused(lambda: TensorParallelGPT(CONFIG, group, seed=int(last))),
            refused(lambda: TensorParallelGPT(CONFIG, group, sequence=last)),
            refused(lambda: TensorParallelBlock(CONFIG, group, overlap=not last)),
            refused(lambda: TensorParallelGPT(GPTConfig(heads=4 if last else 12, width=48), group)),
        ]

    wanted = [
        "rank 2: config layers is 3 (on rank 0 2)",
        "rank 2: option seed is 1 (on rank 0 0)",
        "rank 2: option sequence is True (on rank 0 False)",
        "rank 2: option overlap is False (on rank 0 True)",
        "rank 2: config heads is 4 (on rank 0 12)",
    ]
    for found in launch(on_rank, 3, transport="local").results:
        assert [w in str(f) for w, f in zip(wanted, found, strict=True)] == [True] * len(wanted), found


def test_inputs_that_no_model_takes():
    def on_rank(group):
        model = TensorParallelGPT(CONFIG, group)
        long, unknown = torch.zeros(1, 17, dtype=torch.int64), IDS + 61
        return [refused(lambda: model(long)), refused(lambda: model(unknown)), refused(lambda: model(IDS, unknown)),
                refused(lambda: model.clip_grad_norm_(0.0)), refused(lambda: model.grad_norm(-1))]  # fmt: skip

    wanted = ["17 positions", "61", "61", "clip_grad_norm_(0.0)", "norm_type=-1"]
    for found in launch(on_rank, 2, transport="local").results:
        assert [w in str(f) for w, f in zip(wanted, found, strict=True)] == [True] * len(wanted), found


def test_a_rank_with_another_batch_ends_the_run():
    def on_rank(group):
        model = TensorParallelGPT(CONFIG, group, sequence=True)
        model(IDS[: 1 + group.rank], IDS[: 1 + group.rank]).backward()

    with pytest.raises(RankFailed, match=r"rank|shape|elements"):
        launch(on_rank, 2, transport="local", timeout=NEVER)


def test_the_model_as_a_whole_comes_out_and_goes_in():
    def on_rank(group):
        one, other = TensorParallelGPT(CONFIG, group, seed=1), TensorParallelGPT(CONFIG, group, seed=2, sequence=True)
        state = one.whole_state()
        other.load_whole(state)
        same = all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
        other.load_whole(GPT(CONFIG, seed=1).state_dict())  # names the tied matrix twice
        missing = dict(state)
        if group.rank == 1:
            del missing["norm.bias"]
        wrong = state | {"blocks.0.attention.qkv.weight": torch.zeros(3, 3)}
        words = [refused(lambda: other.load_whole(missing)), refused(lambda: other.load_whole(wrong)),
                 refused(lambda: other.load_whole(state | {"blocks.9.bias": torch.zeros(1)}))]  # fmt: skip
        return same, words, one.whole_gradients()

    wanted = ["on rank 1: load_whole: 'norm.bias' is missing", "qkv.weight' is (3, 3), and this model needs (144, 48)",
              "no parameter 'blocks.9.bias'"]  # fmt: skip
    for same, words, gradients in launch(on_rank, 3, transport="local").results:
        assert same and gradients == {}
        assert [w in str(f) for w, f in zip(wanted, words, strict=True)] == [True] * 3, words


def test_a_readers_own_model_of_these_layers_is_put_together_too():
    def on_rank(group):
        torch.manual_seed(3)
        model = nn.Sequential(nn.LayerNorm(6), ColumnParallelLinear(6, 12, group, gather_output=True))
        whole = whole_state(model, group)
        model(torch.ones(2, 6)).sum().backward()
        before = float(clip_grad_norm_(model, group, 1.0))
        load_whole(model, group, {name: x + 1 for name, x in whole.items()})
        return whole, before, whole_state(model, group)

    torch.manual_seed(3)
    plain = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 12))
    plain(torch.ones(2, 6)).sum().backward()
    norm = float(nn.utils.clip_grad_norm_(plain.parameters(), 1.0))
    for whole, before, after in launch(on_rank, 4, transport="local").results:
        assert all(torch.equal(whole[name], x) for name, x in plain.state_dict().items())
        assert before == pytest.approx(norm, rel=1e-6)
        assert all(torch.equal(after[name], x + 1) for name, x in whole.items())


def test_random_numbers_inside_a_region_differ_and_outside_they_stay_the_same():
    def on_rank(group):
        torch.manual_seed(9)
        with different_inside(group):
            first = torch.rand(4)
            torch.rand(group.rank)  # however many a rank draws
        with different_inside(group):
            second = torch.rand(4)
        check_random_state(group)
        outside = torch.rand(4)
        torch.manual_seed(9)
        with different_inside(group):
            again = torch.rand(4)
        return first, second, outside, bool(torch.equal(first, again))

    results = launch(on_rank, 3, transport="local").results
    drawn = [x for first, second, _, _ in results for x in (first, second)]
    assert all(again for *_, again in results)
    assert all(torch.equal(outside, results[0][2]) for _, _, outside, _ in results)
    assert len({tuple(x.tolist()) for x in drawn}) == 6
