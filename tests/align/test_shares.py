"""Losses on several ranks with unequal batches are those of one device, to rounding, and so are their gradients."""

import pytest
import torch

import labkit
from labkit.align import (
    generalized_advantages,
    global_count,
    masked_sums,
    moments,
    policy_loss,
    response_mask,
    token_logprobs,
    whiten,
)
from labkit.align.batching import padded, token_microbatches
from labkit.collectives import all_reduce
from labkit.models import GPT, GPTConfig, flat_gradient

CONFIG = GPTConfig(vocab=30, context=24, layers=1, width=16)
LENGTHS = [20, 3, 4, 9, 2, 5]
SPLITS = {1: [[0, 1, 2, 3, 4, 5]], 2: [[0, 1, 2, 3, 4], [5]], 3: [[0, 5], [], [4, 3, 2, 1]]}


def batch():
    random = torch.Generator().manual_seed(1)
    sequences = [torch.randint(1, 30, (n,), generator=random) for n in LENGTHS]
    numbers = [[torch.randn(n, generator=random).double() for _ in range(3)] for n in LENGTHS]
    return sequences, numbers


def rows(which):
    """Tokens, mask, old log-probabilities, rewards and values of some sequences, padded to their longest."""
    sequences, numbers = batch()
    tokens, _ = padded([sequences[i] for i in which])
    lengths = torch.tensor([LENGTHS[i] for i in which])
    mask = response_mask(torch.ones_like(lengths), lengths, tokens.shape[1])
    return tokens, mask, *(padded([numbers[i][k] for i in which])[0] for k in range(3))


def advantages_of(which):
    _, mask, _, rewards, values = rows(which)
    return generalized_advantages(rewards, values, mask)[0], mask


def a_step(group, split):
    """This rank's sequences in microbatches of at most 20 tokens: what is told, and the gradient, summed over ranks."""
    mine = split[group.rank]
    found, counted = torch.zeros(3, dtype=torch.float64), 0
    if mine:
        advantages, mask = advantages_of(mine)
        found, counted = moments(advantages, mask), mask
    everywhere = all_reduce(found, group)
    tokens = global_count(counted, group)
    assert tokens == int(everywhere[0]) == sum(n - 1 for n in LENGTHS)
    model = GPT(CONFIG).double()
    told = torch.zeros(3, dtype=torch.float64)
    for part in token_microbatches([LENGTHS[i] for i in mine], 20):
        which = [mine[i] for i in part]
        ids, mask, old, *_ = rows(which)
        raw, _ = advantages_of(which)
        loss = policy_loss(token_logprobs(model(ids), ids), old - 3, whiten(raw, mask, everywhere), mask, tokens)
        loss.loss.backward()
        told += torch.stack([loss.loss.detach(), loss.clipped, loss.kl])
    gradient = flat_gradient(model) if mine else torch.zeros(CONFIG.num_parameters, dtype=torch.float64)
    return all_reduce(told, group), all_reduce(gradient, group)


@pytest.mark.ranks
@pytest.mark.parametrize("size", SPLITS)
def test_unequal_ranks_have_the_mean_of_one_device(size):
    ids, mask, old, *_ = rows(range(len(LENGTHS)))
    raw, _ = advantages_of(range(len(LENGTHS)))
    model = GPT(CONFIG).double()
    kept = raw[mask]
    white = torch.where(mask, (raw - kept.mean()) / (kept.var(correction=0) + 1e-8).sqrt(), 0)
    ratios = (token_logprobs(model(ids), ids) - (old - 3)).exp()
    terms = torch.minimum(ratios * white, ratios.clamp(0.8, 1.2) * white)
    expected = -terms[mask].mean()
    clipped, kl = terms < ratios * white, ratios - 1 - ratios.log()
    expected.backward()
    for told, gradient in labkit.launch(a_step, size, SPLITS[size], transport="local").results:
        torch.testing.assert_close(told[0], expected.detach())
        torch.testing.assert_close(gradient, flat_gradient(model))
        torch.testing.assert_close(told[1:], torch.stack([clipped[mask].double().mean(), kl[mask].mean()]).detach())


@pytest.mark.ranks
def test_an_empty_batch_is_refused_on_every_rank():
    def nothing(group):
        with pytest.raises(ValueError, match="no rank has anything that counts"):
            global_count(torch.zeros(2, 3, dtype=torch.bool), group)
        return global_count(group.rank, group)

    assert labkit.launch(nothing, 3, transport="local").results == [3, 3, 3]


def test_sums_of_sequences_are_in_nats_of_the_whole_response():
    """What DPO takes: log p of a response is the sum over its tokens, checked against the product of probabilities."""
    ids, mask, *_ = rows([1, 4])
    logits = GPT(CONFIG).double()(ids)
    sums = masked_sums(token_logprobs(logits, ids), mask)
    for b, length in enumerate((3, 2)):
        p = 1.0
        for at in range(1, length):
            p *= logits[b, at - 1].softmax(-1)[ids[b, at]].item()
        assert sums[b].exp().item() == pytest.approx(p)
