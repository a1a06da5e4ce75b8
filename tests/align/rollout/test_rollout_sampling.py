"""The policy's probabilities, the draws from it, and that a draw follows from seed, sequence and position alone."""

from __future__ import annotations

import math

import pytest
import torch
from likely import chi_square

from labkit.align.rollout import Sampling
from labkit.align.rollout.sampling import check_logits, draw, uniform
from labkit.wire.errors import RefusedError

PROBS = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15], dtype=torch.float64)
LOGITS = (PROBS.log() + 3.0)[None]


def probs(logits_bv=LOGITS, **how):
    return Sampling(1, **how).log_probs(logits_bv).exp()


def test_without_options_it_is_the_softmax():
    torch.testing.assert_close(probs()[0], PROBS)
    tiny = torch.tensor([[0.0, -60.0, -60.0]])
    assert (probs(tiny) > 0).all()  # a sum of 1 before them takes nothing away


def test_a_temperature_is_a_power_of_the_probabilities():
    for t in (0.5, 1.7):
        torch.testing.assert_close(probs(temperature=t)[0], PROBS ** (1 / t) / (PROBS ** (1 / t)).sum())
    for nearly_0 in (1e-4, 1e-320):
        assert probs(temperature=nearly_0)[0].tolist() == [0, 1, 0, 0, 0]


def test_greedy_takes_the_first_of_the_highest():
    assert probs(temperature=0)[0].tolist() == [0, 1, 0, 0, 0]
    assert probs(torch.tensor([[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]]), temperature=0).argmax(-1).tolist() == [1, 0]
    assert Sampling(1, temperature=0).log_probs(LOGITS)[0].tolist() == [-math.inf, 0, *[-math.inf] * 3]


@pytest.mark.parametrize(("k", "kept"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 4]), (5, range(5)), (9, range(5))])
def test_top_k_keeps_k_and_their_proportions(k, kept):
    wanted = torch.zeros(5, dtype=torch.float64)
    wanted[list(kept)] = PROBS[list(kept)] / PROBS[list(kept)].sum()
    torch.testing.assert_close(probs(top_k=k)[0], wanted)


@pytest.mark.parametrize(
    ("p", "kept"), [(1e-9, [1]), (0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 3, 4]), (0.99, range(5))]
)
def test_top_p_keeps_the_fewest_that_have_p_together(p, kept):
    wanted = torch.zeros(5, dtype=torch.float64)
    wanted[list(kept)] = PROBS[list(kept)] / PROBS[list(kept)].sum()
    torch.testing.assert_close(probs(top_p=p)[0], wanted)


def test_top_p_counts_what_top_k_and_temperature_leave():
    assert probs(top_k=2, top_p=0.58)[0].nonzero()[:, 0].tolist() == [1, 3]  # 0.4 of 0.7 is not enough
    assert probs(top_k=2, top_p=0.56)[0].nonzero()[:, 0].tolist() == [1]
    assert probs(temperature=0.25, top_p=0.7)[0].nonzero()[:, 0].tolist() == [1]
    alike = torch.zeros(1, 6)
    assert probs(alike, top_k=2)[0].tolist() == [0.5, 0.5, 0, 0, 0, 0]  # of equal ones the first


def test_a_draw_goes_along_the_sums_of_the_probabilities():
    log_probs = PROBS.log()[None]
    edges = PROBS.cumsum(0).tolist()
    for token, (first, last) in enumerate(zip([0.0, *edges[:-1]], edges, strict=True)):
        assert draw(log_probs, [first + 1e-9]) == draw(log_probs, [last - 1e-9]) == [token]
    none_at_both_ends = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64).log()
    assert draw(none_at_both_ends, [0.0]) == [1] and draw(none_at_both_ends, [1 - 2**-53]) == [3]
    assert draw(torch.cat([log_probs, none_at_both_ends - 7]), [0.11, 0.51]) == [1, 3]  # and need not sum to 1


def test_draws_have_the_frequencies_of_the_policy():
    u = [uniform(3, sequence, 17) for sequence in range(5000)]
    counts = torch.tensor(draw(PROBS.log().expand(5000, 5), u)).bincount(minlength=5)
    assert chi_square(counts, 5000 * PROBS) > 0.01


def test_a_number_follows_from_its_arguments_on_every_machine():
    assert uniform(0, 1, 2) == 0.44144997102199257
    arguments = [(s, i, p, w) for s in (0, 1, 12) for i in (0, 1, 12) for p in (0, 1, 12) for w in ("token", "draft")]
    numbers = [uniform(*a) for a in arguments]
    assert len(set(numbers)) == len(arguments) and numbers == [uniform(*a) for a in arguments]
    neighbours = torch.tensor([[uniform(0, i, 5), uniform(0, i, 6)] for i in range(4000)])
    cells = (neighbours * 5).long() @ torch.tensor([5, 1])  # also together they fill the square evenly
    assert chi_square(cells.bincount(minlength=25), torch.full((25,), 160.0)) > 0.01


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_cannot_be_drawn_from_are_named_by_sequence(bad):
    logits = torch.zeros(3, 4)
    logits[0, 1] = -math.inf  # a token that must not come
    check_logits(logits, [5, 6, 7])
    logits[1, 2] = bad
    with pytest.raises(RefusedError, match="the logits of sequence 6 are NaN or infinite"):
        check_logits(logits, [5, 6, 7])
    logits[2] = -math.inf
    with pytest.raises(RefusedError, match="sequence 6, 7 "):
        check_logits(logits, [5, 6, 7])


@pytest.mark.parametrize(
    "bad",
    [{"new_tokens": 0}, {"new_tokens": None}, {"end": -1}, {"top_k": 0}, {"top_k": 2.0}, {"temperature": -0.1},
     {"temperature": math.nan}, {"temperature": math.inf}, {"top_p": 0.0}, {"top_p": 1.1}],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_refused(bad):
    with pytest.raises(RefusedError, match=f"Sampling\\({next(iter(bad))}="):
        Sampling(**({"new_tokens": 3} | bad))
