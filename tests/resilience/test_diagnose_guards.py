"""Guards: who made a NaN first, what is no NaN, a loss that jumps; the same answer on every rank."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import labkit
from labkit import RefusedError, collectives
from labkit.resilience.diagnose import FiniteGuard, ForwardWatch, SpikeGuard

pytestmark = pytest.mark.ranks


def guarded(group, bad, value, where):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    if group.rank in bad and where == "gradient":
        model[2].weight.grad[0, 3] = value
    if group.rank in bad and where == "loss":
        loss = loss * value
    found = FiniteGuard(group).check(7, loss, ((n, p.grad) for n, p in model.named_parameters()))
    return None if found is None else (found, str(found.verdict))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_the_rank_and_the_parameter_are_named_on_every_rank(value, where) -> None:
    results = labkit.launch(guarded, 3, {2}, value, where).results
    assert len({repr(r) for r in results}) == 1
    found, text = results[0]
    assert (found.ranks, found.step, found.everywhere) == ((2,), 7, False)
    assert "step 7: rank 2: " in text and ("'2.weight'" in text if where == "gradient" else "the loss is" in text)


def test_two_ranks_are_both_named_and_all_of_them_point_to_the_weights() -> None:
    (found, _), *_ = labkit.launch(guarded, 3, {0, 2}, math.nan, "loss").results
    assert found.ranks == (0, 2) and not found.everywhere
    (found, _), *_ = labkit.launch(guarded, 2, {0, 1}, math.nan, "loss").results
    assert found.everywhere and not found.verdict.exact


def large(group):
    gradient = torch.full((100,), 3e38)  # finite, and their sum is not
    return FiniteGuard(group).check(0, 1.0, [("w", gradient), ("none", None)])


def test_large_numbers_are_no_infinity_and_a_missing_gradient_is_none() -> None:
    assert labkit.launch(large, 2).results == [None, None]


class Half(nn.Module):
    """A layer whose ranks each add a part, as a row-parallel one does."""

    def __init__(self, group):
        super().__init__()
        self.inner, self.group = nn.Linear(4, 4), group

    def forward(self, x):
        return collectives.all_reduce(self.inner(x).detach(), self.group)


class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()


def spreading(group, bad):
    """A NaN made in the second layer of one rank is in everybody's activations before the forward is over."""
    model = nn.Sequential(nn.Linear(4, 4), Root() if group.rank == bad else nn.Identity(), Half(group))
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
    watch = ForwardWatch(model)
    out = model(torch.ones(2, 4))
    found = FiniteGuard(group).check(0, out.sum(), [], watch)
    watch.reset()
    again = watch.first()
    watch.close()
    model(torch.ones(2, 4))
    return bool(out.isnan().any()), found, again == watch.first()


def test_who_made_it_first_is_told_although_the_forward_spread_it() -> None:
    results = labkit.launch(spreading, 3, 1).results
    assert all(nan for nan, _, _ in results) and all(still for _, _, still in results)
    assert {repr(found) for _, found, _ in results} == {repr(results[0][1])}
    found = results[0][1]
    assert found.ranks == (1,) and set(found.where) == {0, 1, 2} and "'1'" in found.where[1]


def spoilt(group):
    """The NaN came with the samples: no module made it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    watch = ForwardWatch(model)
    x = torch.ones(2, 4)
    if group.rank == 0:
        x[1, 2] = math.nan
    return FiniteGuard(group).check(3, model(x).sum(), [], watch)


def test_a_nan_in_the_samples_is_no_modules_fault() -> None:
    found, again = labkit.launch(spoilt, 2).results
    assert repr(found) == repr(again) and found.ranks == (0,) and found.where == {0: "the loss is nan"}


def losses(group, rows, options):
    guard = SpikeGuard(group, **options)
    return [guard.check(step, row[group.rank]) for step, row in enumerate(rows)]


def usual(n, size=2):
    return [[2.0 - 0.01 * step + 0.02 * ((7 * step + rank) % 5) for rank in range(size)] for step in range(n)]


def test_a_loss_that_jumps_on_one_rank() -> None:
    rows = usual(30)
    rows[20][1] = 9.0
    first, second = labkit.launch(losses, 2, rows, {}).results
    assert first == second and [n for n, s in enumerate(first) if s] == [20]
    assert first[20].ranks == (1,) and first[20].verdict.culprit == 1 and "step 20" in str(first[20].verdict)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_a_jump(value) -> None:
    rows = usual(30)
    rows[20][0] = value
    first, _ = labkit.launch(losses, 2, rows, {}).results
    assert first[20].ranks == (0,) and not any(first[21:])


def test_on_all_ranks_no_rank_is_blamed_and_a_new_level_becomes_the_past() -> None:
    rows = usual(20) + [[9.0 + 0.1 * (n % 3)] * 2 for n in range(40)]
    first, _ = labkit.launch(losses, 2, rows, {"window": 8, "patience": 3}).results
    assert first[20].ranks == (0, 1) and not first[20].verdict.exact and first[20].verdict.culprit is None
    assert sum(s is not None for s in first) < 15 and not any(first[40:])


def test_no_judgement_before_there_is_a_past_and_none_for_a_falling_loss() -> None:
    rows = [[100.0 if n == 3 else 1.0] for n in range(6)] + [[1.0 / (n + 1)] for n in range(40)]
    assert labkit.launch(losses, 1, rows, {}).results == [[None] * 46]


@pytest.mark.parametrize("options", [{"factor": 0}, {"warm": 1}, {"warm": 50}, {"patience": 0}, {"least": -1}])
def test_options_that_make_no_sense_are_refused(options) -> None:
    with pytest.raises(RefusedError, match=next(iter(options))):
        SpikeGuard(None, **options)  # type: ignore[arg-type]
