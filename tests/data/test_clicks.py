"""Made-up clicks: ids as Zipf's law has them, labels as the hidden model has them, and an exact AUC."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.data import auc, clicks, zipf_ids


def dice(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("skew", [0.0, 0.9, 1.3])
def test_each_id_comes_as_often_as_zipf_says(skew):
    """Chi-squared of 20 ids in 40,000 draws: above 52 once in 10,000 seeds (19 degrees of freedom)."""
    expected = torch.arange(1, 21, dtype=torch.float64) ** -skew
    expected *= 40_000 / expected.sum()
    found = zipf_ids((200, 200), 20, skew, dice(1)).flatten().bincount(minlength=20)
    assert ((found - expected) ** 2 / expected).sum() < 52


def test_the_same_seed_has_the_same_world_and_another_part_has_other_people_in_it():
    a, again, b, elsewhere = (clicks(50, (9, 4), seed=s, part=p) for s, p in ((1, 0), (1, 0), (1, 1), (2, 0)))
    assert all(torch.equal(x, y) for x, y in zip(a, again, strict=True))
    assert not torch.equal(a.dense, b.dense) and not torch.equal(a.dense, elsewhere.dense)
    longer = clicks(5000, (1, 1), dense=1, seed=1), clicks(5000, (1, 1), dense=1, seed=1, part=1)
    slopes = [((c.p.logit() - c.p.logit().mean()) / (c.dense[:, 0] - c.dense[:, 0].mean())).median() for c in longer]
    assert slopes[0] == pytest.approx(float(slopes[1]), rel=1e-3)  # one hidden model


def test_labels_are_drawn_with_the_hidden_probability():
    """Of 20,000 examples, within 5 standard errors."""
    data = clicks(20_000, (100, 10))
    assert data.ids.max(0).values.lt(torch.tensor([100, 10])).all() and data.ids.min() >= 0
    error = (data.p * (1 - data.p)).sum().sqrt()
    assert abs(data.y.sum() - data.p.sum()) < 5 * error
    high = data.p > 0.5
    assert abs(data.y[high].sum() - data.p[high].sum()) < 5 * error
    assert auc(data.p, data.y) > auc(data.dense[:, 0], data.y) + 0.05


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_auc_counts_every_pair_and_a_tie_for_half(pairs):
    ones, zeros = ([s for s, y in pairs if y is kind] for kind in (True, False))
    score, y = torch.tensor([float(s) for s, _ in pairs]), torch.tensor([float(y) for _, y in pairs])
    if not ones or not zeros:
        with pytest.raises(ValueError, match="needs some of both"):
            auc(score, y)
        return
    won = sum((a > b) + (a == b) / 2 for a in ones for b in zeros)
    assert auc(score, y) == won / (len(ones) * len(zeros))


def test_what_cannot_be():
    y = torch.tensor([0.0, 1.0])
    for call, words in (
        (lambda: auc(torch.tensor([0.0, float("nan")]), y), "1 of 2 scores are NaN"),
        (lambda: auc(y, torch.tensor([0.0, 0.5])), "0 or 1"),
        (lambda: auc(torch.zeros(3), y), "both are"),
        (lambda: clicks(0, (3,)), "count=0"),
        (lambda: zipf_ids((2,), 0, 1.0, dice()), "rows=0"),
        (lambda: zipf_ids((2,), 3, -1.0, dice()), "skew=-1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
