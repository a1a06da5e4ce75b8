"""A step of PPO with four models, wherever they are (Ouyang et al. 2022, "InstructGPT", section 3.5 and appendix C).

1. The policy writes a response to each prompt.
2. Policy, reference, reward model and critic read it: log-probabilities, a reward, values.
3. Rewards with the KL penalty in them become advantages, whitened over the whole batch.
4. Critic and policy learn, each in several updates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from labkit.align.advantages import generalized_advantages, token_rewards
from labkit.align.fleet.chunks import Chunk, Rows
from labkit.align.fleet.experience import Experience, collect
from labkit.align.fleet.fleet import Fleet
from labkit.align.fleet.learning import learn
from labkit.align.fleet.reading import logprobs, values
from labkit.align.fleet.report import Report, report
from labkit.align.ppo import PolicyLoss, policy_loss, value_loss
from labkit.align.rollout import Prompts, Sampling
from labkit.align.shares import moments, whiten
from labkit.collectives import all_reduce
from labkit.cost.refuse import whole


@dataclass(frozen=True)
class PPO:
    """beta: of the KL penalty. chunk: prompts that stay together. budget: positions in a microbatch."""

    beta: float = 0.05
    gamma: float = 1.0
    lam: float = 0.95
    clip: float = 0.2
    value_clip: float = 0.5
    epochs: int = 2
    minibatches: int = 2
    chunk: int = 8
    budget: int = 1024

    def __post_init__(self) -> None:
        whole(epochs=self.epochs, minibatches=self.minibatches, chunk=self.chunk, budget=self.budget)


def ppo_step(
    fleet: Fleet, prompts: Prompts, how: Sampling, ppo: PPO, loss: Callable[..., PolicyLoss] = policy_loss
) -> Report:
    """One step, called by every rank with the same prompts. loss: of the policy, in the place of `policy_loss`.

    `collect` says what is sent and what is refused; then nothing is learned. Sent besides: the whitening's moments (an
    all-reduce of 24 bytes in the policy's pool), what `learn` sends, and 64 bytes for the report.
    """
    fleet.check(ppo.budget, needs=("reward", "critic"))
    found = collect(fleet, prompts, how, ppo.chunk, ppo.budget)
    mail, placement = found.mail, fleet.placement
    advantages_r, returns_r = _advantages(fleet, found, ppo)
    for c in mail.own("policy"):
        mail.send_numbers(returns_r[c], placement.owner("critic", c))
    for c in mail.own("critic"):
        if c not in returns_r:
            returns_r[c] = mail.numbers(sum(mail.chunk(c).lengths), placement.owner("policy", c))

    def critic_loss(chunk: Chunk, rows: Rows, total: float) -> Tensor:
        old_bt, wanted_bt = (chunk.spread(x[chunk.number], rows) for x in (found.values_r, returns_r))
        values_bt = values(fleet.models["critic"], rows.tokens_bt)
        told = value_loss(values_bt, old_bt, wanted_bt, rows.mask_bt, total, ppo.value_clip)
        return torch.stack([told.loss, told.clipped])

    def actor_loss(chunk: Chunk, rows: Rows, total: float) -> Tensor:
        old_bt, a_bt = (chunk.spread(x[chunk.number], rows) for x in (found.old_r, advantages_r))
        logprobs_bt = logprobs(fleet.models["policy"], rows.tokens_bt)
        told = loss(logprobs_bt, old_bt, a_bt, rows.mask_bt, total, ppo.clip)
        return torch.stack([told.loss, told.clipped])

    update = partial(learn, fleet, count=mail.count, epochs=ppo.epochs, minibatches=ppo.minibatches, budget=ppo.budget)
    value_told, _ = update("critic", {c: mail.chunk(c) for c in mail.own("critic")}, loss=critic_loss)
    told, updates = update("policy", {c: mail.chunk(c) for c in mail.own("policy")}, loss=actor_loss)
    mail.finish()
    return report(fleet.group, found, told, value_told, updates)


def _advantages(fleet: Fleet, found: Experience, ppo: PPO) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Whitened advantages and returns of this rank's chunks, (r,) each, by number of the chunk."""
    advantages_r, returns_r = dict[int, Tensor](), dict[int, Tensor]()
    if "policy" not in fleet.models:
        return advantages_r, returns_r
    for chunk in found.chunks:
        c, rows = chunk.number, chunk.rows()
        old_bt, reference_bt, values_bt = (
            chunk.spread(x[c], rows) for x in (found.old_r, found.reference_r, found.values_r)
        )
        rewards_bt = token_rewards(found.rewards_s[c], old_bt, reference_bt, rows.mask_bt, ppo.beta)
        both = generalized_advantages(rewards_bt, values_bt, rows.mask_bt, ppo.gamma, ppo.lam)
        advantages_r[c], returns_r[c] = (x_bt[rows.mask_bt] for x_bt in both)
    every = torch.cat([torch.empty(0), *advantages_r.values()])
    counted = torch.ones_like(every, dtype=torch.bool)
    everywhere = all_reduce(moments(every, counted).to(fleet.group.device), fleet.learners["policy"].pool)
    for c, x_r in advantages_r.items():
        advantages_r[c] = whiten(x_r, torch.ones_like(x_r, dtype=torch.bool), everywhere)
    return advantages_r, returns_r
