"""The tiny task: its truth by hand, preferences that follow Bradley-Terry, and a reward model that sees the truth."""

from __future__ import annotations

import math
from statistics import mean

import pytest
import torch

from labkit.align.task import CONFIG, END, PROMPT, ROOM, Task, accuracy, preferences, pretrained, prompts, truth, tuned
from labkit.align.task.prepared import mean_truth, prepared
from labkit.align.task.reward_model import rewards_of_pairs
from labkit.align.task.tuning import demonstrations
from labkit.data import text
from labkit.models import GPT, next_token_loss, state
from labkit.models.threads import one_thread


@pytest.fixture(autouse=True)
def one_thread_each():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def task():
    return prepared(seed=3, steps=30, pairs=192)


@pytest.mark.parametrize(
    ("response", "points"),
    [(b"", 0), (b"a quiet queue", 6), (b"eeeeee", 1), (b"xyz .", 0), (b"aeiou aeiou", 10), (b"A", 0)],
)
def test_the_truth_counts_different_vowels_of_each_word(response, points):
    assert truth(response, 24) == points / 24
    assert truth(list(response), 24) == points / 24


def test_prompts_are_stretches_of_the_text_and_follow_from_the_seed():
    whole = bytes(x for x in text().train.tolist() if x < CONFIG.vocab)
    found = prompts(9, seed=4, first=5)
    assert [*found] == [*range(5, 14)] and all(len(p) == PROMPT and bytes(p) in whole for p in found.values())
    assert prompts(9, 4, 5) == found != prompts(9, 5, 5)


def test_demonstrations_are_better_than_the_text_and_end_at_the_end():
    shown = demonstrations(64, seed=1)
    assert mean(truth(s[PROMPT:], ROOM) for s in shown) > 0.27
    for s in shown:
        response = s[PROMPT:]
        assert END not in response[:-1] and (response[-1] == END or len(response) == ROOM)


def test_pretraining_lowers_the_loss_and_supervised_tuning_raises_the_truth():
    base, random = pretrained(seed=1, steps=30), GPT(CONFIG, 1)
    assert mean_truth(tuned(base, steps=20)) > mean_truth(base) + 0.02
    tokens = torch.tensor([*prompts(32, 5).values()])
    learned, guessed = (next_token_loss(m(tokens[:, :-1]), tokens[:, 1:]).item() for m in (base, random))
    assert learned < guessed - 1


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_people_prefer_by_bradley_terry(task, noise):
    """They are right as often as the model says, within four standard errors."""
    pairs = preferences(task.policy, 256, seed=9, noise=noise)
    told = [(truth(p.chosen, ROOM) - truth(p.rejected, ROOM)) for p in pairs]
    right = sum(d > 0 for d in told)
    sure = [1 / (1 + math.exp(-abs(d) / noise)) for d in told if d]
    spread = math.sqrt(sum(p * (1 - p) for p in sure))
    assert abs(right - sum(sure)) < 4 * spread and right < len(sure)


def test_the_reward_model_has_learned_what_people_like(task):
    held = preferences(task.policy, 192, seed=8)
    assert accuracy(task.rewards, task.pairs) > 0.65 and accuracy(task.rewards, held) > 0.6
    rewards = rewards_of_pairs(task.rewards, held).detach().flatten()
    known = torch.tensor([truth(x, ROOM) for p in held for x in (p.chosen, p.rejected)])
    assert float(torch.corrcoef(torch.stack([rewards, known]))[0, 1]) > 0.45
    assert float(rewards_of_pairs(task.rewards, task.pairs).detach().std()) == pytest.approx(1, rel=1e-3)


def test_all_follows_from_the_seed_and_copies_are_made(task):
    again = prepared.__wrapped__(3, 30, 192)
    assert again.pairs == task.pairs
    assert all(torch.equal(x, state(task.rewards)[name]) for name, x in state(again.rewards).items())
    assert isinstance(task, Task)
    for role in ("policy", "reference", "reward", "critic"):
        made = task.make(role)
        with torch.no_grad():
            made.tokens.weight.zero_()
    assert task.policy.tokens.weight.any() and task.rewards.tokens.weight.any()
