"""Packing: every token once, rows that fit, and a forward pass that is that of each sequence alone."""

import dataclasses

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.align import token_logprobs
from labkit.align.batching import Packed, first_fit_decreasing, length_buckets, padded, token_microbatches
from labkit.models import GPT, GPTConfig
from labkit.parallel.checkpointing import checkpoint_blocks

lengths_up_to_12 = st.lists(st.integers(1, 12), max_size=15)


def sequences_of(lengths, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 50, (n,), generator=random) for n in lengths]


@given(lengths=lengths_up_to_12, room=st.integers(12, 20))
def test_rows_hold_every_sequence_once_and_fit(lengths, room):
    rows = first_fit_decreasing(lengths, room)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in row) <= room for row in rows)
    # First fit: the longest sequence of a row found no room in any row before.
    for r, row in enumerate(rows):
        for before in rows[:r]:
            longest = max(row, key=lambda i: (lengths[i], -i))
            earlier = [i for i in before if (-lengths[i], i) < (-lengths[longest], longest)]
            assert sum(lengths[i] for i in earlier) + lengths[longest] > room


def test_the_longest_first_is_better_than_as_they_come():
    lengths = [3, 3, 3, 3, 7, 7, 7, 7]  # in this order first fit would begin with three 3s in a row of 10
    assert first_fit_decreasing(lengths, 10) == [[0, 4], [1, 5], [2, 6], [3, 7]]


@given(lengths=lengths_up_to_12, room=st.integers(12, 20))
def test_a_packed_batch_has_every_token_once(lengths, room):
    sequences = sequences_of(lengths)
    packed = Packed.of(sequences, room)
    assert packed.count == len(lengths)
    assert int((packed.documents_bt >= 0).sum()) == sum(lengths)
    assert not packed.tokens_bt[packed.documents_bt < 0].any()
    for i, sequence in enumerate(sequences):
        mine = packed.documents_bt == i
        assert mine.any(1).sum() == 1  # in one row
        assert torch.equal(packed.tokens_bt[mine], sequence)
        assert packed.positions_bt[mine].tolist() == list(range(len(sequence)))
    assert int(packed.predicted_bt.sum()) == sum(n - 1 for n in lengths)
    assert int(packed.positions_bt.max() if packed.tokens_bt.numel() else 0) < room
    unpacked = packed.unpack(packed.tokens_bt)
    assert len(unpacked) == len(sequences) and all(map(torch.equal, unpacked, sequences))
    if lengths:
        assert torch.equal(packed.pack(sequences), packed.tokens_bt)
        assert packed.sums(packed.tokens_bt).tolist() == [int(s.sum()) for s in sequences]


@pytest.mark.parametrize("room", [12, 16, 40])
@pytest.mark.parametrize("options", [
    {}, {"rotary": True}, {"kv_heads": 2, "rotary": True}, {"kv_heads": 1}, {"dropout": 1e-300},
], ids=str)  # fmt: skip
def test_a_packed_forward_pass_is_that_of_each_sequence_alone(options, room):
    config = GPTConfig(vocab=50, context=40, layers=2, heads=4, width=16, **options)
    model, sequences = GPT(config).double(), sequences_of([12, 5, 1, 7, 2, 5])
    packed = Packed.of(sequences, room)
    logits = model(packed.tokens_bt, packed.positions_bt, packed.core)
    weights = [torch.randn(n, dtype=torch.float64) for n in map(len, sequences)]
    found = token_logprobs(logits, packed.tokens_bt).where(packed.predicted_bt, 0)
    (found * packed.pack(weights)).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sums = []
    for sequence, weight, part in zip(sequences, weights, packed.unpack(logits), strict=True):
        alone = model(sequence[None])
        torch.testing.assert_close(part[None], alone, rtol=0, atol=1e-12)
        logprobs = token_logprobs(alone, sequence[None])[0]
        (logprobs * weight).sum().backward()
        sums.append(logprobs.detach().sum())
    torch.testing.assert_close(packed.sums(found.detach()), torch.stack(sums))
    for ours, p in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad, rtol=0, atol=1e-10)


def test_single_precision_is_equal_to_a_millionth():
    model, sequences = GPT(GPTConfig(vocab=50, context=16, layers=2)), sequences_of([9, 3, 4, 2])
    packed = Packed.of(sequences, 16)
    for part, sequence in zip(
        packed.unpack(model(packed.tokens_bt, packed.positions_bt, packed.core)), sequences, strict=True
    ):
        torch.testing.assert_close(part, model(sequence[None])[0], rtol=0, atol=2e-6)


def test_checkpointed_blocks_attend_as_the_forward_pass_did():
    """Two batches forward, then both backward: what is computed again belongs to its own batch."""
    config = GPTConfig(vocab=50, context=20, layers=2, width=16, rotary=True)
    found = []
    for wrap in (lambda m: m, checkpoint_blocks):
        model = wrap(GPT(config).double())
        batches = [Packed.of(sequences_of(lengths, seed=len(lengths)), 20) for lengths in ([5, 4, 9], [2, 11, 3, 3])]
        losses = [model(x.tokens_bt, x.positions_bt, x.core)[x.documents_bt >= 0].square().sum() for x in batches]
        for loss in reversed(losses):
            loss.backward()
        found.append([p.grad for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_no_token_sees_another_sequence():
    model = GPT(GPTConfig(vocab=50, context=12, layers=2, width=16)).double()
    packed = Packed.of(sequences_of([5, 4, 3]), 12)
    before = packed.unpack(model(packed.tokens_bt, packed.positions_bt, packed.core))
    changed = dataclasses.replace(packed, tokens_bt=packed.tokens_bt.where(packed.documents_bt != 0, 49))
    after = changed.unpack(model(changed.tokens_bt, changed.positions_bt, changed.core))
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [False, True, True]


def test_nothing_packed_is_an_empty_batch():
    packed = Packed.of([], 8)
    assert packed.tokens_bt.shape == (0, 8) and packed.count == 0 and packed.unpack(packed.tokens_bt) == []


@pytest.mark.parametrize(("length", "room"), [(0, 5), (6, 5)])
@pytest.mark.parametrize("make", [first_fit_decreasing, length_buckets, token_microbatches])
def test_lengths_that_do_not_fit(make, length, room):
    with pytest.raises(ValueError, match=f"sequence 1 has {length} tokens.*1 to {room}"):
        make([3, length], room)


# Padding and microbatches


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_padded_rows(lengths):
    sequences = sequences_of(lengths)
    tokens, mask = padded(sequences)
    assert tokens.shape == mask.shape == (len(lengths), max(lengths))
    assert [row[keep].tolist() for row, keep in zip(tokens, mask, strict=True)] == [s.tolist() for s in sequences]
    assert not tokens[~mask].any() and mask.sum(1).tolist() == lengths


@given(lengths=lengths_up_to_12, budget=st.integers(12, 60))
def test_buckets_keep_within_their_budget_and_sort_by_length(lengths, budget):
    buckets = length_buckets(lengths, budget)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(len(lengths)))
    assert all(len(bucket) * max(lengths[i] for i in bucket) <= budget for bucket in buckets)
    assert [lengths[i] for bucket in buckets for i in bucket] == sorted(lengths, reverse=True)
    for bucket, after in zip(buckets, buckets[1:], strict=False):  # none could have taken one more
        assert (len(bucket) + 1) * max(lengths[i] for i in [*bucket, after[0]]) > budget


@given(lengths=lengths_up_to_12, budget=st.integers(12, 60), at_least=st.integers(0, 9))
def test_microbatches_are_as_many_as_other_ranks_have(lengths, budget, at_least):
    found = token_microbatches(lengths, budget, at_least)
    assert sorted(i for part in found for i in part) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in part) <= budget for part in found)
    assert len(found) == max(at_least, len(first_fit_decreasing(lengths, budget)))
    assert sum(not part for part in found) == max(0, at_least - len(lengths))
