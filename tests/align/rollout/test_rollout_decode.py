"""Logits with a cache are those without one, at every step, whatever else is in the batch; and blocks are accounted."""

from __future__ import annotations

import pytest
import torch

from labkit.align.rollout import PagedCache, extend, next_logits
from labkit.models import GPT, GPTConfig
from labkit.models.gpt import attend
from labkit.models.moe import MoEConfig
from labkit.wire.errors import RefusedError

CONFIGS = [
    GPTConfig(vocab=19, context=24, layers=3, heads=6, kv_heads=2, width=36, rotary=True),
    GPTConfig(vocab=19, context=24, layers=2, heads=4, kv_heads=1, width=20, tied=False),
    GPTConfig(vocab=19, context=24, layers=1, heads=1, width=6, dropout=0.5),
]
LENGTHS = [1, 7, 16, 3, 8]


def tokens_of(sequence, count):
    return torch.randint(19, (count,), generator=torch.Generator().manual_seed(sequence)).tolist()


def model_of(config, dtype=torch.float64):
    """As a training loop has it: in training mode."""
    return GPT(config, seed=1).to(dtype).train()


def whole(model, tokens):
    return GPT(model.config, seed=1).to(model.tokens.weight.dtype).eval()(torch.tensor([tokens]))[0]


@pytest.mark.parametrize("block", [1, 3, 8, 24])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_every_step_of_a_ragged_batch_is_the_pass_over_the_whole_sequences(config, block, dtype, error):
    model = model_of(config, dtype)
    cache = PagedCache(config, 5 * -(-24 // block), block, dtype)
    texts = {i: tokens_of(i, 24) for i in range(len(LENGTHS))}
    wanted = {i: whole(model, text) for i, text in texts.items()}
    logits_bv = next_logits(model, cache, {i: texts[i][:n] for i, n in enumerate(LENGTHS)})  # prefill
    for step in range(9):
        if step:
            logits_bv = next_logits(model, cache, {i: [texts[i][n + step - 1]] for i, n in enumerate(LENGTHS)})
        for i, n in enumerate(LENGTHS):
            torch.testing.assert_close(logits_bv[i], wanted[i][n + step - 1], rtol=0, atol=error)
    assert cache.lengths == {i: n + 8 for i, n in enumerate(LENGTHS)}
    assert model.training and all(block.attention.core is attend for block in model.blocks)


@pytest.mark.parametrize("config", CONFIGS)
def test_prompts_single_tokens_and_several_tokens_in_one_batch(config):
    """One sequence begins, one goes on by one token, one by five, in another order than they came; two are left out."""
    model = model_of(config)
    cache = PagedCache(config, 40, 4, torch.float64)
    texts = {i: tokens_of(i, 24) for i in range(5)}
    extend(model, cache, {0: texts[0][:9], 1: texts[1][:4], 2: texts[2][:24], 3: texts[3][:1]})
    cache.drop(2)
    found = extend(model, cache, {4: texts[4][:6], 3: texts[3][1:2], 1: texts[1][4:9]})
    for logits_tv, (i, first, last) in zip(found, [(4, 0, 6), (3, 1, 2), (1, 4, 9)], strict=True):
        torch.testing.assert_close(logits_tv, whole(model, texts[i])[first:last], rtol=0, atol=1e-10)


def test_what_was_cut_off_is_as_if_it_had_never_been():
    config = CONFIGS[0]
    model, cache = model_of(config), PagedCache(config, 8, 4, torch.float64)
    text, other = tokens_of(0, 24), tokens_of(1, 24)
    extend(model, cache, {7: text[:5] + other[:9]})
    cache.cut(7, 5)
    assert (cache.used, cache.lengths[7]) == (2, 5)
    logits_tv = extend(model, cache, {7: text[5:]})[0]
    torch.testing.assert_close(logits_tv, whole(model, text)[5:], rtol=0, atol=1e-10)
    cache.cut(7, 8)
    assert cache.used == 2  # exactly full
    cache.cut(7, 0)
    assert cache.used == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS)
def test_bytes_are_two_numbers_for_each_layer_head_column_and_position(config, dtype):
    positions, head = 5 * 7, config.width // config.heads
    kv_heads = config.kv_heads or config.heads
    nbytes = 2 * config.layers * kv_heads * head * positions * dtype.itemsize
    assert PagedCache(config, 5, 7, dtype).nbytes == nbytes


def test_a_sequence_has_as_many_blocks_as_it_needs_and_gives_them_back():
    cache = PagedCache(CONFIGS[2], 6, 4)
    cache.append({0: 4, 1: 5})
    assert [len(cache.tables[i]) for i in (0, 1)] == [1, 2] and cache.used == 3
    cache.append({0: 1, 1: 3})
    assert [len(cache.tables[i]) for i in (0, 1)] == [2, 2] and cache.used == 4
    assert cache.fits({0: 3, 2: 8}) and not cache.fits({0: 4, 2: 8})
    with pytest.raises(RefusedError, match=r"has 2 free blocks of 4 positions, and sequences \[0, 2\] need 3 more"):
        cache.append({0: 4, 2: 8})
    assert cache.lengths == {0: 5, 1: 8} and cache.used == 4  # as it was
    cache.append({0: 3, 2: 8})
    blocks = [b for table in cache.tables.values() for b in table]
    assert sorted(blocks) == list(range(6))  # none belongs to two
    cache.drop(1)
    assert cache.used == 4 and cache.fits({3: 8}) and 1 not in cache.lengths


def test_a_pass_beyond_the_context_and_a_mixture_of_experts_are_refused():
    model = model_of(CONFIGS[0])
    cache = PagedCache(CONFIGS[0], 9, 4, torch.float64)
    extend(model, cache, {0: tokens_of(0, 24)})
    with pytest.raises(ValueError, match="25 positions, but this model has 24"):
        extend(model, cache, {0: [1]})
    assert model.training and all(block.attention.core is attend for block in model.blocks)
    for fresh in ({}, {0: [1], 1: []}):
        with pytest.raises(RefusedError, match="new tokens of each sequence"):
            extend(model, cache, fresh)
    experts = GPTConfig(vocab=19, context=24, moe=MoEConfig(experts=2))
    with pytest.raises(RefusedError, match="mixture of experts"):
        extend(GPT(experts), PagedCache(experts, 1), {0: [1]})
    for bad in ({"blocks": 0}, {"block": 0}, {"blocks": 1.5}):
        with pytest.raises(RefusedError, match=f"{next(iter(bad))}="):
            PagedCache(CONFIGS[0], **({"blocks": 1} | bad))
