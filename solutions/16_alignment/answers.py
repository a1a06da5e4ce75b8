"""What the checks of chapter 16 compare with: updates by GRPO, chunks that are dealt out, and token rewards.

With the name of a mistake each function gives what that mistake leads to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c16_alignment.checks import log_probabilities
from labkit.chapters.c16_alignment.pools import reference, reward, write, written


def updated(
    inputs: list[dict[str, Any]], logits: Tensor, clip: float, beta: float, mistake: str = ""
) -> list[list[Tensor]]:
    """By rank [loss, gradient] of `my_update`."""
    sums, counts, responses = [], [], []
    for mine in inputs:
        lengths = torch.tensor([len(x) for x in mine["tokens"]], dtype=torch.int64)
        leaf = logits.clone().requires_grad_()
        total = leaf.sum() * 0
        if len(lengths):
            each_r = _losses(mine, _advantages(mine, mistake).repeat_interleave(lengths), leaf, clip, beta, mistake)
            weight_s = 1 / lengths if mistake == "sequence" else torch.ones(len(lengths))
            total = total + (each_r * weight_s.repeat_interleave(lengths)).sum()
        sums.append([total.detach(), *torch.autograd.grad(total, leaf)])
        counts.append(int(lengths.sum()))
        responses.append(len(lengths))
    tokens = sum(counts)
    if mistake == "own":
        return [[x / tokens for x in mine] for mine in sums]
    if mistake == "ranks":
        shares = [[x / max(k, 1) / len(inputs) for x in mine] for mine, k in zip(sums, counts, strict=True)]
    else:
        count = sum(responses) if mistake in ("sequence", "responses") else tokens
        shares = [[x / count for x in mine] for mine in sums]
    whole = [torch.stack(parts).sum(0) for parts in zip(*shares, strict=True)]
    return [[x.clone() for x in whole] for _ in inputs]


def _advantages(mine: dict[str, Any], mistake: str) -> Tensor:
    """(s,): of each response."""
    rewards, prompts = mine["rewards"], mine["prompts"]
    if mistake == "order":
        prompts = prompts.sort().values
    found = torch.zeros(len(rewards))
    for own in prompts.unique():
        place = prompts == own
        group = rewards if mistake == "batch" else rewards[place]
        equal = bool(group.max() == group.min())
        if len(group) == 1 or equal and mistake != "equals":
            continue
        apart = rewards[place] - group.mean()
        if mistake != "unscaled":
            apart = apart / (group.std(unbiased=mistake != "population") + 1e-8 * equal)
        found[place] = apart
    return found


def _losses(mine: dict[str, Any], a_r: Tensor, logits: Tensor, clip: float, beta: float, mistake: str) -> Tensor:
    """(r,): of each token of all responses."""
    now_r = torch.cat([log_probabilities(logits, x) for x in mine["tokens"]])
    ratio_r = (now_r - torch.cat(mine["old"])).exp()
    near_r = ratio_r.clamp(1 - clip, 1 + clip)
    gains = {"plain": ratio_r * a_r, "clamp": near_r * a_r}
    gain_r = gains.get(mistake, torch.minimum(ratio_r * a_r, near_r * a_r))
    away_r = torch.cat(mine["reference"]) - now_r
    k3_r = away_r.exp() - 1 - away_r
    kl_r = {"k1": -away_r, "turned": (-away_r).exp() - 1 + away_r, "reward": -k3_r}.get(mistake, k3_r)
    return beta * kl_r + (gain_r if mistake == "ascent" else -gain_r)


def dealt(prompts: list[Tensor], n: int, chunk: int, mistake: str = "") -> Tensor:
    """The rank that writes the response to each prompt, if rank 0 deals out chunks to ranks 1 to n - 1."""
    clock, last, read = ([0] * n for _ in range(3))
    who: list[int] = []
    for number, begin in enumerate(range(0, len(prompts), chunk)):
        asked = prompts[begin : begin + chunk]
        key = {"prompts": read, "last": last, "latest": [-c for c in clock]}.get(mistake, clock)
        free = range(n - 1, 0, -1) if mistake == "high" else range(1, n)
        rank = 1 + number % (n - 1) if mistake == "turns" or number < n - 1 else min(free, key=key.__getitem__)
        steps, *responses = write(asked)
        clock[rank] += sum(map(len, responses)) if mistake == "tokens" else int(steps)
        last[rank] = int(steps)
        read[rank] += sum(map(len, asked))
        who += [rank] * len(asked)
    return torch.tensor(who, dtype=torch.int64)


def rewarded(prompts: list[Tensor], policies: int, beta: float, mistake: str = "") -> list[list[Tensor]]:
    """By rank of the policy the token rewards of its responses: those with its number, and each `policies`-th after."""
    found: list[list[Tensor]] = [[] for _ in range(policies)]
    for i, prompt in enumerate(prompts):
        tokens, old = written(prompt)
        score = reward(prompt, tokens)[0]
        penalty = beta * (old - reference(prompt, tokens))
        if mistake == "no beta":
            penalty = penalty / beta
        if mistake == "at the end":
            penalty = torch.cat([torch.zeros(len(tokens) - 1), penalty.sum()[None]])
        rewards = {"turned": penalty, "no penalty": 0 * penalty}.get(mistake, -penalty)
        if mistake == "everywhere":
            rewards = rewards + score
        elif mistake == "last alone":
            rewards[-1] = score
        elif mistake != "no score":
            rewards[0 if mistake == "first" else -1] += score
        found[i % policies].append(rewards)
    return found
