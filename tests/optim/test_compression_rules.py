"""What each compressing hook does with gradients: momentum, low rank, votes, expectations, and where signs fail."""

from __future__ import annotations

import math

import pytest
import torch
from slices import few
from torch import nn

import labkit
from labkit import cost
from labkit.collectives import all_reduce
from labkit.models import seeded
from labkit.optim.compression import (
    DGC,
    WARM_UP,
    Compressed,
    MajorityVote,
    PowerSGD,
    Quantize,
    RandomK,
    ScaledSign,
    ternary,
)
from labkit.optim.compression.counterexample import descend
from labkit.optim.compression.power_sgd import orthonormal
from labkit.parallel import DataParallel

ranks = pytest.mark.ranks


def summed(hook, group, x):
    """What the hook makes of x (any shape) on all ranks."""
    flat = x.flatten().clone()
    hook.bucket(flat, {"w": flat.view(x.shape)}, group).wait()
    return flat.view(x.shape)


def train(group, hook, steps=5, momentum=0.0):
    """Weights after some steps of SGD."""
    with seeded(0):
        model = DataParallel(nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)), group, hook=hook)
    sgd = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    for step in range(steps):
        x = torch.randn(4, 12, generator=torch.Generator().manual_seed(100 * group.rank + step))
        sgd.zero_grad()
        model(x).square().sum().backward()
        sgd.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@ranks
def test_dgc_that_sends_all_is_sgd_with_momentum_or_without_it_if_masked():
    def work(group):
        ours = [train(group, DGC([1.0], masking=masking)) for masking in (False, True)]
        return ours, [train(group, None, momentum=momentum) for momentum in (0.9, 0.0)]

    (unmasked, masked), (momentum, plain) = labkit.launch(work, 3, transport="local").results[0]
    assert torch.allclose(unmasked, momentum, atol=1e-6) and torch.allclose(masked, plain, atol=1e-6)
    assert not torch.allclose(momentum, plain, atol=1e-3)


@ranks
def test_dgc_warms_up_masks_and_clips():
    def work(group):
        g = torch.arange(1.0, 1001) * (1 if group.rank else -1) / 1000
        hook = DGC(stage_steps=2)
        sent = [int((summed(hook, group, g) != 0).sum()) for _ in range(12)]
        velocity, residual = hook.kept["velocity"]["w"], hook.kept["residual"]["w"]
        assert velocity[residual == 0].abs().max() == 0 and (residual == 0).any() and velocity.any()

        clipped = DGC([1.0], clip=0.3)
        a, b = summed(clipped, group, g.abs()), summed(clipped, group, torch.full((1000,), 1e-4))
        assert float(a.norm()) == pytest.approx(0.3 * group.size**0.5)  # equal gradients; independent ones: 0.3
        assert torch.allclose(b, torch.full((1000,), 1e-4 * group.size))  # small ones stay
        return sent

    (sent,) = labkit.launch(work, 1).results
    assert sent == [math.ceil(1000 * share) for share in WARM_UP for _ in range(2)] + [1, 1]
    labkit.launch(work, 2)


@ranks
def test_power_sgd_of_full_rank_is_the_average_and_of_low_rank_gets_there_by_feedback():
    """A gradient that stays: with feedback and a warm start the mean of what is sent goes to it."""

    def work(group):
        x = torch.randn(30, 20, generator=torch.Generator().manual_seed(group.rank), dtype=torch.float64) / group.size
        whole = all_reduce(x.clone(), group)
        full, off = PowerSGD(100, min_compression_rate=0), []
        for y in (x, x, x.T.contiguous(), x.view(30, 4, 5)):  # twice: what is kept of a rank's own adds up to nothing
            flat = y.flatten().clone()
            full.bucket(flat, {str(y.shape): flat.view(y.shape)}, group).wait()
            off.append(float((flat.view(y.shape) - all_reduce(y.clone(), group)).abs().max()))
        low, steps = PowerSGD(2), 100
        mean = sum(summed(low, group, x) for _ in range(steps)) / steps
        once = summed(PowerSGD(2), group, x)
        assert torch.linalg.matrix_rank(once) == 2
        return off, float((mean - whole).norm() / whole.norm()), float((once - whole).norm() / whole.norm())

    for off, mean, once in labkit.launch(work, 3).results:
        assert max(off) < 1e-14
        assert mean < 0.2 < 0.5 < once


@ranks
def test_a_warm_start_continues_the_power_iteration():
    """Without feedback, of a gradient that stays: the error goes to that of the best product of this rank."""

    def work(group):
        u, _, v = torch.linalg.svd(torch.randn(20, 20, generator=torch.Generator().manual_seed(0)))
        x = u @ torch.diag(0.7 ** torch.arange(20.0)) @ v / group.size
        best = 0.7**3 * ((1 - 0.49**17) / (1 - 0.49)) ** 0.5  # the norm of what is left of rank 3
        found = []
        for warm in (True, False):
            hook = PowerSGD(3, warm_start=warm, feedback=False)
            found.append([float((summed(hook, group, x) - x * group.size).norm()) / best for _ in range(30)])
        return found

    (warm, cold), other = labkit.launch(work, 2).results
    assert other == [warm, cold]
    assert warm[0] == cold[0] > 1.02 and warm[-1] == pytest.approx(1, abs=1e-4) and min(cold) > 1.001


def test_columns_are_orthonormal_even_where_they_were_zero_or_parallel():
    for p in (torch.randn(9, 4), torch.zeros(9, 4), torch.ones(9, 4), torch.full((9, 4), 1e-30)):
        q = orthonormal(p)
        assert torch.allclose(q.T @ q, torch.eye(4), atol=1e-6)
        assert torch.allclose(q @ (q.T @ p), p, atol=1e-6)


@ranks
@pytest.mark.parametrize("size", few([5, 2, 3, 4], 2))
def test_the_majority_decides_and_ties_are_decided_by_who_counts(size):
    """13 numbers are 2 bytes of votes: more ranks than bytes, and a byte that is not full."""

    def work(group):
        x = torch.randn(13, generator=torch.Generator().manual_seed(group.rank))
        return x, summed(MajorityVote(), group, x)

    results = labkit.launch(work, size, transport="local").results
    votes = torch.stack([x.sign() for x, _ in results])
    parts = torch.arange(2).tensor_split(size)
    owner = torch.tensor([next(r for r, part in enumerate(parts) if place // 8 in part) for place in range(13)])
    own = votes[owner, torch.arange(13)]
    expected = torch.where(votes.sum(0) == 0, own, votes.sum(0).sign())
    for _, decided in results:
        assert torch.equal(decided, expected)
    assert size % 2 or (votes.sum(0) == 0).any()


@ranks
def test_the_expectation_is_the_average_and_ranks_draw_by_themselves():
    """The mean of 200 steps of each of 12 numbers within 5 standard errors: wrong once in 40,000 seeds."""

    def work(group):
        x = torch.linspace(-1, 1, 12, dtype=torch.float64) / group.size
        found = {}
        for hook in (Compressed(Quantize(3), False), Compressed(ternary(), False),
                     Compressed(RandomK(0.25, scale=True), False)):  # fmt: skip
            came = torch.stack([summed(hook, group, x) for _ in range(200)])
            error = (came.mean(0) - x * group.size).abs() / (came.std(0) / 200**0.5 + 1e-9)
            found[repr(hook)] = float(error.max()), len(came[:, 3].unique())
        return found

    (found, other) = labkit.launch(work, 2).results
    assert found == other and len(found) == 3
    for name, (error, values) in found.items():
        assert error < 5, name
        if "Quantize(levels=1," in name:
            assert values == 3  # none of two ranks went up, one, or both


@ranks
@pytest.mark.parametrize("size", few([3, 1, 2]))
def test_signs_alone_do_not_converge_and_with_feedback_they_do(size):
    def work(group):
        hooks = [Compressed(ScaledSign(), feedback=False), MajorityVote(), Compressed(ScaledSign())]
        return [descend(hook, group) for hook in hooks]

    results = labkit.launch(work, size, transport="local").results
    signs, votes, fed = results[0]
    floor = 2 * 0.5**2 * (1 + 1) ** 2  # 2 epsilon^2 (x_1 + x_2)^2 at the start, and for ever
    assert min(signs) >= floor * (1 - 1e-12) and min(votes) >= floor * (1 - 1e-12)
    assert fed[0] == pytest.approx(floor) and fed[-1] < 1e-2 * floor
    assert all(other == results[0] for other in results)


def test_forms_by_hand():
    assert cost.gathered_payload_bytes(100, 3) == 200 and cost.gathered_payload_bytes(100, 1) == 0
    assert cost.majority_vote_bytes_by_rank(32, 4) == [6, 6, 6, 6]  # three bytes there, three back
    assert cost.power_sgd_messages([(100, 50), (7,), (3, 3)], 2) == (200 + 7 + 9, 100)
    assert cost.power_sgd_messages([(8, 3, 3)], 1, 5) == (72, 0)  # 72 numbers for 17: 4.2 times
    assert sum(cost.power_sgd_bytes_by_rank([(100, 50)], 2, 2)) == 2 * 4 * 300
    with pytest.raises(ValueError, match="rank must be a whole number"):
        cost.power_sgd_messages([(3, 3)], 0)
