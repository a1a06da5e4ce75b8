"""A step of PPO with four models on data-parallel ranks (Ouyang et al. 2022, "InstructGPT", 3.5 and appendix C).

    models = {"policy": GPT, "reference": GPT, "reward": ScalarGPT, "critic": ScalarGPT}   # alike on every rank
    ppo_step(models, optimizers, prompts, group, new_tokens=24, end=46, seed=step)         # optimizers: of two

Every rank has all four models, and every N-th prompt. The policy writes a response to each prompt, and all models read
it. The reward model gives a response one number, which becomes a reward at its last token; at every token the policy
pays for being further from the reference, which is the KL penalty. From rewards and the critic's values come
advantages: how much better each token was than expected. Critic and policy then learn from them in several updates.

Ranks write unequally many tokens, so a rank adds up its own and divides by the count of all ranks: the sum of these
gradients is the gradient of the mean over all tokens. Sent: the counts, 24 bytes to whiten, a model for each update.

All tensors are (b, t), and entry t is about token t: its log-probability and its value given the tokens before it.

What the full one (`labkit.align.fleet.ppo_step`) does more: models on separate ranks, offloading, a KV cache and
microbatches. It sends more in a step: that all ranks agree on going on, 8 bytes a rank, and 64 bytes for a report.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.wire import Group

BETA = 0.05  # of the KL penalty
GAMMA, LAMBDA = 1.0, 0.95
CLIP, VALUE_CLIP, MAX_NORM = 0.2, 0.5, 1.0
EPOCHS, MINIBATCHES = 2, 2


def ppo_step(
    models: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer], prompts: Sequence[Sequence[int]],
    group: Group, new_tokens: int, end: int, seed: int,
) -> None:  # fmt: skip
    """prompts: of the whole batch, at least one a rank. new_tokens, end: how a response ends."""
    policy, critic = models["policy"], models["critic"]
    mine = range(group.rank, len(prompts), group.size)
    with torch.no_grad():
        tokens_bt, mask_bt = write(policy, [prompts[i] for i in mine], mine, new_tokens, end, seed)
        old_bt, reference_bt = (logprobs(models[name], tokens_bt) for name in ("policy", "reference"))
        old_values_bt = values(critic, tokens_bt)
        scores_b = (models["reward"](tokens_bt) * mask_bt).sum(1)
        rewards_bt = token_rewards(scores_b, old_bt, reference_bt, mask_bt)
        advantages_bt = gae(rewards_bt, old_values_bt, mask_bt)
        returns_bt = advantages_bt + old_values_bt  # what the critic should have said
        advantages_bt = whiten(advantages_bt, mask_bt, group)

    def value_loss(rows: Tensor) -> Tensor:
        """(V - R)^2 / 2, or with V kept within VALUE_CLIP of what it was, whichever is larger."""
        now_bt, was_bt, wanted_bt = values(critic, tokens_bt[rows]), old_values_bt[rows], returns_bt[rows]
        near_bt = was_bt + (now_bt - was_bt).clamp(-VALUE_CLIP, VALUE_CLIP)
        return torch.maximum((now_bt - wanted_bt).square(), (near_bt - wanted_bt).square()) / 2

    def policy_loss(rows: Tensor) -> Tensor:
        """-min(r A, clip(r) A), with the ratio r of the policy that learns to the one that wrote."""
        ratio_bt = (logprobs(policy, tokens_bt[rows]) - old_bt[rows]).exp()
        clipped_bt = ratio_bt.clamp(1 - CLIP, 1 + CLIP)
        return -torch.minimum(ratio_bt * advantages_bt[rows], clipped_bt * advantages_bt[rows])

    parts = torch.arange(len(prompts)).tensor_split(MINIBATCHES)
    minibatches = [part[part % group.size == group.rank] // group.size for part in parts]  # rows of this rank
    learn(critic, optimizers["critic"], value_loss, minibatches, mask_bt, group)
    learn(policy, optimizers["policy"], policy_loss, minibatches, mask_bt, group)


def write(
    policy: nn.Module, prompts: Sequence[Sequence[int]], ids: Sequence[int], new_tokens: int, end: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Prompts with their responses, (b, t), and bool: which tokens the policy has drawn."""
    tokens_bt = torch.zeros(len(prompts), max(map(len, prompts)) + new_tokens, dtype=torch.int64)
    mask_bt = torch.zeros_like(tokens_bt, dtype=torch.bool)
    for tokens_t, mask_t, prompt, i in zip(tokens_bt, mask_bt, prompts, ids, strict=True):
        tokens_t[: len(prompt)] = torch.tensor(prompt)
        for t in range(len(prompt), len(prompt) + new_tokens):
            upto_v = policy(tokens_t[None, :t])[0, -1].double().softmax(-1).cumsum(-1)
            draw = random.Random(f"{seed} {i} {t} token").random()  # the same, whichever rank writes this response
            tokens_t[t], mask_t[t] = (upto_v <= draw * upto_v[-1]).sum(), True
            if tokens_t[t] == end:
                break
    return tokens_bt, mask_bt


def logprobs(model: nn.Module, tokens_bt: Tensor) -> Tensor:
    """log p(token t | those before it), in nats; nothing predicts the first one, which gets 0."""
    logprobs_btv = model(tokens_bt[:, :-1]).log_softmax(-1)
    return F.pad(logprobs_btv.gather(-1, tokens_bt[:, 1:, None])[..., 0], (1, 0))


def values(critic: nn.Module, tokens_bt: Tensor) -> Tensor:
    """What the critic expects before it has seen token t."""
    return F.pad(critic(tokens_bt[:, :-1]), (1, 0))


def token_rewards(scores_b: Tensor, old_bt: Tensor, reference_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """The KL penalty at each token of a response, and its score at the last one (eq. 2 there)."""
    rewards_bt = -BETA * (old_bt - reference_bt) * mask_bt
    last_b = (torch.arange(mask_bt.shape[1]) * mask_bt).argmax(1)
    rewards_bt[torch.arange(len(last_b)), last_b] += scores_b
    return rewards_bt


def gae(rewards_bt: Tensor, values_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """Generalized advantages (Schulman et al. 2016, eq. 16), from the last token of each response to its first."""
    advantages_bt = torch.zeros_like(values_bt)
    next_value_b = next_advantage_b = torch.zeros_like(values_bt[:, 0])  # after the end
    for t in reversed(range(values_bt.shape[1])):
        delta_b = rewards_bt[:, t] + GAMMA * next_value_b - values_bt[:, t]
        next_advantage_b = (delta_b + GAMMA * LAMBDA * next_advantage_b) * mask_bt[:, t]
        next_value_b = values_bt[:, t] * mask_bt[:, t]
        advantages_bt[:, t] = next_advantage_b
    return advantages_bt


def whiten(x_bt: Tensor, mask_bt: Tensor, group: Group) -> Tensor:
    """With mean 0 and variance 1 over the tokens of all ranks, and 0 elsewhere."""
    own = x_bt[mask_bt].double()
    count, total, squares = all_reduce(torch.stack([mask_bt.sum(), own.sum(), own.square().sum()]), group).tolist()
    mean = total / count
    return (x_bt - mean) / (squares / count - mean**2 + 1e-8) ** 0.5 * mask_bt


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[Tensor], Tensor], minibatches: list[Tensor],
    mask_bt: Tensor, group: Group,
) -> None:  # fmt: skip
    """An update for each minibatch, EPOCHS times over. loss(rows): of each token of these rows."""
    parameters: list[Any] = list(model.parameters())
    counts = all_reduce(torch.stack([mask_bt[rows].sum() for rows in minibatches]), group)
    for _ in range(EPOCHS):
        for rows, count in zip(minibatches, counts, strict=True):
            ((loss(rows) * mask_bt[rows]).sum() / count).backward()  # of the mean over all ranks, this rank's share
            summed = all_reduce(torch.cat([p.grad.flatten() for p in parameters]), group)
            for p, part in zip(parameters, summed.split([p.numel() for p in parameters]), strict=True):
                p.grad = part.view_as(p)
            nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
