"""A step of GRPO, without a critic: several responses to a prompt are compared with each other (Shao et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from labkit.align.fleet.chunks import Chunk, Rows
from labkit.align.fleet.experience import collect
from labkit.align.fleet.fleet import Fleet
from labkit.align.fleet.learning import learn
from labkit.align.fleet.reading import logprobs
from labkit.align.fleet.report import Report, report
from labkit.align.grpo import group_advantages, grpo_loss
from labkit.align.off_policy import importance_weights
from labkit.align.rollout import Prompts, Sample, Sampling
from labkit.cost.refuse import whole


@dataclass(frozen=True)
class GRPO:
    """responses: to each prompt. prompts: in a chunk. beta: of the KL in the loss. mean: see `grpo_loss`."""

    responses: int = 8
    prompts: int = 1
    beta: float = 0.04
    clip: float = 0.2
    mean: Literal["sequence", "token"] = "token"
    epochs: int = 2
    minibatches: int = 2
    budget: int = 1024

    def __post_init__(self) -> None:
        whole(responses=self.responses, prompts=self.prompts, epochs=self.epochs, minibatches=self.minibatches)


def asked(prompts: Prompts, responses: int) -> dict[int, Sequence[int]]:
    """Each prompt `responses` times: response j to the nth prompt has the id n * responses + j."""
    return {n * responses + j: prompt for n, prompt in enumerate(prompts.values()) for j in range(responses)}


def grpo_step(
    fleet: Fleet, prompts: Prompts, how: Sampling, grpo: GRPO, written: Mapping[int, Sample] | None = None,
    cap: float | None = None, advantages: Callable[[Tensor], Tensor] = group_advantages,
) -> Report:  # fmt: skip
    """One step, called by every rank with the same prompts, which are asked as `asked` says.

    A prompt whose responses all have the same reward teaches nothing and is left out before anything is counted (Yu et
    al. 2025, DAPO, dynamic sampling). Where none is left the policy stays as it is on every rank: `updates` is 0.
    written: responses that are there already. If an older policy wrote them, give `cap`, the largest importance weight.
    advantages: of the rewards (p, g) of p prompts, a number for each response. Raises ValueError for another shape.
    """
    fleet.check(grpo.budget, needs=("reward",))
    g = grpo.responses
    found = collect(fleet, asked(prompts, g), how, g * grpo.prompts, grpo.budget, written)
    chunks, advantages_s = dict[int, Chunk](), dict[int, Tensor]()
    old_r, reference_r, weights_r = dict[int, Tensor](), dict[int, Tensor](), dict[int, Tensor]()
    for chunk in found.chunks:
        c, rewards_pg = chunk.number, found.rewards_s[chunk.number].view(-1, g)
        differs = (rewards_pg.amax(1) > rewards_pg.amin(1)).repeat_interleave(g)
        kept = differs.nonzero()[:, 0].tolist()
        chunks[c], advantages_s[c] = chunk.kept(kept), _like(rewards_pg, advantages(rewards_pg)).flatten()[differs]
        old_r[c], reference_r[c] = (_kept(x[c], chunk, kept) for x in (found.old_r, found.reference_r))
        if cap is not None:
            behaviour_r = torch.tensor([x for i in kept for x in found.samples[c][i].log_probs])
            weights_r[c] = importance_weights(old_r[c], behaviour_r, torch.ones_like(old_r[c], dtype=torch.bool), cap)

    def loss(chunk: Chunk, rows: Rows, total: float) -> Tensor:
        old_bt, reference_bt = (chunk.spread(x[chunk.number], rows) for x in (old_r, reference_r))
        logprobs_bt = logprobs(fleet.models["policy"], rows.tokens_bt)
        weights_bt = None if cap is None else chunk.spread(weights_r[chunk.number], rows)
        told = grpo_loss(logprobs_bt, old_bt, reference_bt, advantages_s[chunk.number][rows.which], rows.mask_bt,
                         total, grpo.mean, grpo.clip, grpo.beta, weights_bt)  # fmt: skip
        return torch.stack([told.loss, told.clipped])

    told, updates = learn(
        fleet, "policy", chunks, found.mail.count, loss, epochs=grpo.epochs, minibatches=grpo.minibatches,
        budget=grpo.budget, per="token" if grpo.mean == "token" else "response",
    )  # fmt: skip
    return report(fleet.group, found, told, torch.zeros(1), updates)


def _like(rewards_pg: Tensor, advantages_pg: Tensor) -> Tensor:
    if advantages_pg.shape != rewards_pg.shape:
        asked, given = (tuple(x.shape) for x in (rewards_pg, advantages_pg))
        raise ValueError(f"advantages of shape {given}: give one for each reward, {asked}")
    return advantages_pg


def _kept(x_r: Tensor, chunk: Chunk, kept: list[int]) -> Tensor:
    parts = x_r.split(chunk.lengths)
    return torch.cat([x_r[:0], *(parts[i] for i in kept)])
