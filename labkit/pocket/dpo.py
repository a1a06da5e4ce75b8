"""Direct preference optimization on data-parallel ranks (Rafailov et al. 2023).

    dpo_step(policy, reference, optimizer, pairs, group)   # pairs: this rank's (prompt, chosen, rejected), as tokens

Of two responses people have chosen one. PPO would learn a reward model from such pairs and then a policy from that.
DPO notices that the best policy for a reward r is known: r is beta log(policy / reference), up to a term of the prompt
alone. That term cancels in a pair, so the policy learns from the pairs directly: two models, and nothing is generated.

Ranks may have unequally many pairs. Each divides the sum over its own by the count of all ranks, and the gradients of
these shares add up to the gradient of the mean. Sent: 8 bytes for the count, and one all-reduce of the gradients.

What the full one (`labkit.align.fleet.dpo_step`) does more: a reference on ranks of its own, and microbatches. It also
sends more: two times that all ranks agree on going on, 8 bytes a rank, and 12 bytes for a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.wire import Group

BETA, MAX_NORM = 0.1, 1.0
Pair = tuple[Sequence[int], Sequence[int], Sequence[int]]  # prompt, chosen response, rejected response


def dpo_loss(chosen_p: Tensor, rejected_p: Tensor, reference_chosen_p: Tensor, reference_rejected_p: Tensor) -> Tensor:
    """-log sigmoid of how much more the chosen response is rewarded (eq. 7), for each pair: (p,).

    All are log-probabilities of whole responses in nats, one a pair: under the policy, then under the reference.
    """
    rewards_p = BETA * (chosen_p - reference_chosen_p)
    rejected_rewards_p = BETA * (rejected_p - reference_rejected_p)
    return -F.logsigmoid(rewards_p - rejected_rewards_p)


def dpo_step(
    policy: nn.Module, reference: nn.Module, optimizer: torch.optim.Optimizer, pairs: Sequence[Pair], group: Group
) -> None:
    """One update. pairs: at least one on each rank."""
    chosen = [(prompt, response) for prompt, response, _ in pairs]
    rejected = [(prompt, response) for prompt, _, response in pairs]
    with torch.no_grad():
        references = [sequence_logprobs(reference, some) for some in (chosen, rejected)]
    losses_p = dpo_loss(sequence_logprobs(policy, chosen), sequence_logprobs(policy, rejected), *references)
    count = all_reduce(torch.tensor(len(pairs)), group)
    (losses_p.sum() / count).backward()

    parameters: list[Any] = list(policy.parameters())
    summed = all_reduce(torch.cat([p.grad.flatten() for p in parameters]), group)
    for p, part in zip(parameters, summed.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)
    nn.utils.clip_grad_norm_(parameters, MAX_NORM)
    optimizer.step()
    optimizer.zero_grad()


def sequence_logprobs(model: nn.Module, some: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
    """log p(response | prompt) of each (prompt, response), (b,): the sum over the tokens of the response."""
    whole = [torch.tensor([*prompt, *response]) for prompt, response in some]
    tokens_bt = nn.utils.rnn.pad_sequence(whole, batch_first=True)
    mask_bt = torch.zeros_like(tokens_bt, dtype=torch.bool)
    for mask_t, (prompt, response) in zip(mask_bt, some, strict=True):
        mask_t[len(prompt) : len(prompt) + len(response)] = True
    logprobs_btv = model(tokens_bt[:, :-1]).log_softmax(-1)
    logprobs_bt = logprobs_btv.gather(-1, tokens_bt[:, 1:, None])[..., 0]
    return (logprobs_bt * mask_bt[:, 1:]).sum(1)
