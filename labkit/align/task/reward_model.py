"""A reward model: a GPT with a scalar head that learns from preferences alone which responses are better."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.align.batching import padded
from labkit.align.logprobs import masked_sums
from labkit.align.preferences import reward_model_loss
from labkit.align.task.language import PROMPT
from labkit.align.task.preferences import Pair
from labkit.models.gpt import GPT
from labkit.models.scalar_gpt import ScalarGPT


def rewards(model: ScalarGPT, sequences: Sequence[Tensor], prompt: int = PROMPT) -> Tensor:
    """What `model` says at the tokens of each response, added up: (n,).

    Most reward models say it at the last token alone (Ouyang et al. 2022). A sum is learned from fewer comparisons.
    """
    tokens_bt, filled_bt = padded(sequences)
    filled_bt[:, :prompt] = False
    return masked_sums(model(tokens_bt), filled_bt)


def reward_model(
    policy: GPT, pairs: Sequence[Pair], seed: int = 0, epochs: int = 2, batch: int = 32, rate: float = 1e-3
) -> ScalarGPT:
    """Begins with the layers of `policy`; in the end its rewards have the deviation 1 over the responses of `pairs`.

    How large rewards are decides what a beta of the KL penalty means, so they are scaled. Their mean stays where it is:
    preferences say something about differences only.
    """
    model = ScalarGPT.of(policy)
    adam = torch.optim.AdamW(model.parameters(), rate)
    drawn = random.Random(f"reward model {seed}")
    for _ in range(epochs):
        order = drawn.sample(pairs, len(pairs))
        for start in range(0, len(order), batch):
            rewards_pk = rewards_of_pairs(model, order[start : start + batch])
            adam.zero_grad()
            reward_model_loss(rewards_pk, len(rewards_pk)).loss.backward()
            adam.step()
    with torch.no_grad():
        scale = 1 / rewards_of_pairs(model, pairs).std()
        model.lm_head.weight.mul_(scale)
        model.lm_head.bias.mul_(scale)
    return model


def rewards_of_pairs(model: ScalarGPT, pairs: Sequence[Pair]) -> Tensor:
    """(pairs, 2): of the chosen response and of the rejected one."""
    both = [torch.tensor(pair.prompt + answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    return rewards(model, both).view(-1, 2)


@torch.no_grad()
def accuracy(model: ScalarGPT, pairs: Sequence[Pair]) -> float:
    """The part of the pairs in which the chosen response has the higher reward."""
    rewards_p2 = rewards_of_pairs(model, pairs)
    return float((rewards_p2[:, 0] > rewards_p2[:, 1]).float().mean())
