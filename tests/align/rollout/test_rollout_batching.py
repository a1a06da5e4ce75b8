"""A sequence gets the tokens that it would get alone, and slots are filled as the two ways of batching say."""

from __future__ import annotations

import heapq

import pytest
import torch

from labkit.align.rollout import Sampling, generate
from labkit.align.rollout.sampling import draw, uniform
from labkit.models import GPT, GPTConfig
from labkit.wire.errors import RefusedError

CONFIG = GPTConfig(vocab=17, context=32, layers=2, heads=4, kv_heads=2, width=32, rotary=True)
MODEL = GPT(CONFIG, seed=3)
PROMPTS = {10 * i: [(3 * i + j) % 17 for j in range(1 + 4 * i % 7)] for i in range(9)}
HOW = Sampling(20, end=5, seed=1, temperature=1.3, top_p=0.95)


def alone(prompt, sequence, how, model=MODEL):
    """By its definition: each token from a pass over everything before it."""
    text = list(prompt)
    while len(text) < min(len(prompt) + how.new_tokens, model.config.context):
        with torch.no_grad():
            log_probs = how.log_probs(model(torch.tensor([text]))[:, -1])
        text += draw(log_probs, [uniform(how.seed, sequence, len(text))])
        if text[-1] == how.end:
            break
    return tuple(text[len(prompt) :])


def tokens(generation):
    return {i: s.tokens for i, s in generation.samples.items()}


ALONE = {i: alone(prompt, i, HOW) for i, prompt in PROMPTS.items()}


def test_the_sequences_of_these_tests_end_in_every_way():
    found = generate(MODEL, PROMPTS, HOW).samples
    ways = {(s.ended, len(s.tokens) in (1, 20)) for s in found.values()}
    assert ways >= {("end", False), ("length", True)}
    assert all((s.ended == "end") == (s.tokens[-1] == 5) for s in found.values())
    assert all(5 not in s.tokens[:-1] for s in found.values())


@pytest.mark.parametrize("slots", [1, 2, 3, 20])
@pytest.mark.parametrize("continuous", [True, False])
def test_tokens_are_those_of_each_sequence_alone(slots, continuous):
    found = generate(MODEL, PROMPTS, HOW, slots, continuous=continuous)
    assert tokens(found) == ALONE and list(found.samples) == list(PROMPTS)
    for i, s in found.samples.items():
        assert (s.sequence, s.prompt) == (i, tuple(PROMPTS[i]))
        with torch.no_grad():
            logits_tv = MODEL(torch.tensor([[*s.prompt, *s.tokens]]))[0, len(s.prompt) - 1 : -1]
        wanted = HOW.log_probs(logits_tv)[range(len(s.tokens)), s.tokens]
        torch.testing.assert_close(torch.tensor(s.log_probs).double(), wanted, rtol=0, atol=1e-5)
    assert found.preempted == []


def test_order_and_company_do_not_matter_but_the_id_and_the_seed_do():
    backwards = dict(reversed(PROMPTS.items()))
    assert tokens(generate(MODEL, backwards, HOW, 4)) == ALONE
    assert tokens(generate(MODEL, {30: bytes(PROMPTS[30])}, HOW)) == {30: ALONE[30]}
    twins = tokens(generate(MODEL, {i: torch.tensor([1, 2]) for i in range(4)}, Sampling(12)))
    assert len(set(twins.values())) == 4
    assert tokens(generate(MODEL, PROMPTS, Sampling(20, seed=2))) != tokens(generate(MODEL, PROMPTS, Sampling(20)))


def test_greedy_tokens_are_the_best_ones():
    how = Sampling(9, temperature=0)
    found = generate(MODEL, PROMPTS, how, 4).samples
    assert {i: s.tokens for i, s in found.items()} == {i: alone(p, i, how) for i, p in PROMPTS.items()}
    assert all(s.log_probs == (0.0,) * 9 for s in found.values())


@pytest.mark.parametrize("slots", [1, 2, 3, 20])
def test_a_slot_is_filled_at_once_or_when_all_have_ended(slots):
    lengths = [len(t) for t in ALONE.values()]
    assert len(set(lengths)) > 3
    found = generate(MODEL, PROMPTS, HOW, slots)
    free = [0] * slots  # list scheduling: the next sequence goes to the slot that is free first
    for n in lengths:
        heapq.heappush(free, heapq.heappop(free) + n)
    assert len(found.steps) == max(free) and sum(found.busy) == sum(lengths)
    assert all(b == min(slots, 9) for b in found.busy[: min(free)])
    last_begins = next(n for n, step in enumerate(found.steps) if 80 in step)
    assert set(found.busy[: last_begins + 1]) == {min(slots, 9)}  # while somebody waits, no slot is idle
    for i, n in zip(PROMPTS, lengths, strict=True):  # in one slot, n steps in a row
        where = [(step, row.index(i)) for step, row in enumerate(found.steps) if i in row]
        assert len(where) == n == where[-1][0] - where[0][0] + 1 and len({slot for _, slot in where}) == 1
    static = generate(MODEL, PROMPTS, HOW, slots, continuous=False)
    batches = [lengths[n : n + slots] for n in range(0, 9, slots)]
    assert static.busy == [sum(n > step for n in batch) for batch in batches for step in range(max(batch))]


@pytest.mark.parametrize(("blocks", "block"), [(9, 4), (13, 4), (33, 1), (2, 32)])
def test_with_too_few_blocks_sequences_give_way_and_get_the_same_tokens(blocks, block):
    found = generate(MODEL, PROMPTS, HOW, 4, blocks=blocks, block=block)
    assert tokens(found) == ALONE and found.used <= blocks
    assert bool(found.preempted) == (block < 32)  # with one block for all of a sequence none asks for another
    assert max(found.busy) > 1 and 0 not in found.busy
    enough = generate(MODEL, PROMPTS, HOW, 4, block=block)
    assert enough.preempted == [] and enough.used <= 4 * -(-27 // block)


def test_a_sequence_that_gives_way_is_the_last_that_came():
    found = generate(MODEL, {0: [1], 1: [2], 2: [3]}, Sampling(12), 3, blocks=4, block=4)
    # step 4 (from 0) would need 6 blocks; with two sequences the ninth position needs a fifth and sixth
    assert found.preempted == [2, 1] and found.busy[:8] == [3] * 4 + [2] * 4
    assert found.steps[8] == (0, None, None) and found.used == 4


def test_the_context_ends_a_sequence_too():
    found = generate(MODEL, {0: [1] * 31, 1: [1] * 20}, Sampling(50)).samples
    assert [(len(s.tokens), s.ended) for s in found.values()] == [(1, "length"), (12, "length")]
    assert tokens(generate(MODEL, {1: [1] * 20}, Sampling(50), block=1))[1] == found[1].tokens


def test_nothing_to_do_is_done():
    found = generate(MODEL, {}, HOW)
    assert (found.samples, found.steps, found.busy) == ({}, [], [])


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ({0: [1], 7: []}, {}, "the prompt of sequence 7 is empty"),
        ({0: [1], 7: [1] * 32}, {}, "sequence 7 has 32 tokens, and with a context of 32 one of at most 31"),
        ({7: [1, 17]}, {}, "sequence 7 has token 17, and tokens go from 0 to 16"),
        ({7: [-1]}, {}, "sequence 7 has token -1"),
        ({7: [1]}, {"slots": 0}, "slots=0"),
        ({7: [1], 8: [1, 2, 3]}, {"blocks": 2, "block": 8}, "blocks=2: the longest sequence may need 3 blocks of 8"),
        ({7: [1]}, {"blocks": 0}, "blocks=0"),
        ({7: [1]}, {"block": 0}, "block=0"),
    ],
)
def test_what_cannot_be_generated_is_refused(prompts, options, words):
    with pytest.raises(RefusedError, match=words):
        generate(MODEL, prompts, HOW, **options)


def test_an_end_token_that_does_not_exist_is_refused():
    generate(MODEL, {}, Sampling(1, end=16))
    with pytest.raises(RefusedError, match="the end token is 17, and tokens go from 0 to 16"):
        generate(MODEL, {}, Sampling(1, end=17))


def test_nan_logits_name_their_sequences():
    model = GPT(GPTConfig(vocab=17, context=32, tied=False))
    with torch.no_grad():
        model.tokens.weight[3] = float("nan")
    assert generate(model, {1: [4], 2: [5, 6]}, Sampling(1)).samples
    with pytest.raises(RefusedError, match="the logits of sequence 2, 9 are NaN"):
        generate(model, {1: [4], 2: [5, 3], 4: [6], 9: [3]}, Sampling(1))
