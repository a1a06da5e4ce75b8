"""Log-probabilities and entropies against plain loops, and what is kept for the backward pass."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.align import logprobs, masked_sums, response_mask, token_entropies, token_logprobs

SIZES = [(1, 1, 1), (1, 2, 3), (3, 7, 5), (2, 0, 4), (0, 3, 2)]


def drawn(b, t, v, dtype=torch.float64, seed=0):
    random = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(b, t, v, generator=random, dtype=torch.float64)
    return logits.to(dtype).requires_grad_(), torch.randint(v, (b, t), generator=random)


def plain_logprob(row, token):
    return row[token] - torch.log(sum(x.exp() for x in row))


def plain_entropy(row):
    total = sum(x.exp() for x in row)
    return -sum(x.exp() / total * torch.log(x.exp() / total) for x in row)


def shifted(one_of, logits):
    b, t, _ = logits.shape
    zero = logits.new_zeros(())
    rows = [[zero if at == 0 else one_of(i, at) for at in range(t)] for i in range(b)]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.mark.parametrize("piece", [1, 3, 1024])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("what", ["logprobs", "entropies"])
def test_values_and_gradients_are_those_of_a_loop(monkeypatch, what, size, piece):
    monkeypatch.setattr(logprobs, "PIECE", piece)
    logits, tokens = drawn(*size)
    ours = token_logprobs(logits, tokens) if what == "logprobs" else token_entropies(logits)
    assert ours.shape == size[:2] and ours.dtype == torch.float64
    if 0 in size:
        return
    again = logits.detach().clone().requires_grad_()
    theirs = shifted(
        lambda i, at: (
            plain_logprob(again[i, at - 1], tokens[i, at]) if what == "logprobs" else plain_entropy(again[i, at - 1])
        ),
        again,
    )
    torch.testing.assert_close(ours, theirs)
    if size[1] > 1:
        weights = torch.randn(size[:2], dtype=torch.float64)
        (ours * weights).sum().backward()
        (theirs * weights).sum().backward()
        torch.testing.assert_close(logits.grad, again.grad)
        assert not logits.grad[:, -1].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_logits_are_reckoned_with_in_32_bits(dtype):
    logits, tokens = drawn(2, 9, 50, dtype)
    ours = token_logprobs(logits, tokens)
    wide = logits.detach().double().requires_grad_()
    theirs = token_logprobs(wide, tokens)
    assert ours.dtype == token_entropies(logits).dtype == torch.float32
    torch.testing.assert_close(ours.double(), theirs, atol=3e-6, rtol=0)
    torch.testing.assert_close(token_entropies(logits).double(), token_entropies(wide), atol=3e-6, rtol=0)
    ours.sum().backward()
    theirs.sum().backward()
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(logits.grad.double(), wide.grad, atol=4 * torch.finfo(dtype).eps, rtol=0)


def test_a_symbol_that_cannot_come_has_no_part_in_the_entropy():
    logits = torch.tensor([[[0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    found = token_entropies(logits)
    assert found.tolist() == [[0.0, pytest.approx(math.log(2))]]
    found.sum().backward()
    assert not logits.grad.isnan().any()


@pytest.mark.parametrize("what", [lambda x, y: token_logprobs(x, y), lambda x, y: token_entropies(x)])
def test_no_second_tensor_of_logits_is_kept(what):
    logits, tokens = drawn(3, 8, 100)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        what(logits, tokens).sum()
    large = [x for x in kept if x.numel() > 3 * 8]
    assert [x.untyped_storage().data_ptr() for x in large] == [logits.untyped_storage().data_ptr()]


def test_logits_without_their_tokens_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3, 5\) and tokens of shape \(2, 4\)"):
        token_logprobs(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64))


@given(data=st.data(), t=st.integers(1, 9))
def test_a_response_lies_between_its_prompt_and_its_padding(data, t):
    lengths = data.draw(st.lists(st.integers(1, t), min_size=1, max_size=4))
    prompts = [data.draw(st.integers(1, n)) for n in lengths]
    mask = response_mask(torch.tensor(prompts), torch.tensor(lengths), t)
    assert mask.tolist() == [[p <= at < n for at in range(t)] for p, n in zip(prompts, lengths, strict=True)]


@pytest.mark.parametrize(("prompt", "length"), [(0, 2), (3, 2), (1, 6)])
def test_prompts_and_lengths_that_cannot_be(prompt, length):
    with pytest.raises(ValueError, match=f"sequence 1 has a prompt of {prompt} tokens and {length} in all"):
        response_mask(torch.tensor([1, prompt]), torch.tensor([2, length]), 5)


def test_sums_do_not_see_what_does_not_count():
    x = torch.tensor([[1.0, 2.0, math.nan], [math.inf, 3.0, 4.0]], requires_grad=True)
    sums = masked_sums(x, torch.tensor([[True, True, False], [False, False, True]]))
    assert sums.tolist() == [3, 4]
    sums.sum().backward()
    assert x.grad.tolist() == [[1, 1, 0], [0, 0, 1]]
