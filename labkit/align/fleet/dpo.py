"""DPO on a fleet: the policy learns from preferences directly; nothing is generated (Rafailov et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.align.fleet.chunks import Chunk, Rows
from labkit.align.fleet.fleet import Fleet
from labkit.align.fleet.learning import learn
from labkit.align.fleet.mail import Mail
from labkit.align.fleet.reading import logprobs, read
from labkit.align.logprobs import masked_sums
from labkit.align.preferences import dpo_loss
from labkit.collectives import all_reduce
from labkit.cost.refuse import whole
from labkit.parallel.refusals.agreement import agree

Answers = tuple[Sequence[int], Sequence[int], Sequence[int]]  # a prompt, the chosen response, the rejected one


@dataclass(frozen=True)
class DPOConfig:
    """beta: of the loss. pairs: in a chunk. budget: positions in a microbatch."""

    beta: float = 0.1
    pairs: int = 8
    budget: int = 1024

    def __post_init__(self) -> None:
        whole(pairs=self.pairs, budget=self.budget)


@dataclass(frozen=True)
class DPOReport:
    """Means over the pairs before the update: the loss, how often the chosen response has the higher implicit reward,
    and by how much. All ranks are told the same."""

    loss: float
    accuracy: float
    margin: float


def dpo_step(fleet: Fleet, pairs: Sequence[Answers], dpo: DPOConfig) -> DPOReport:
    """One update, called by every rank with the same pairs.

    The reference reads its chunks, and sends 4 bytes for each token of the responses to where the policy learns.
    Raises RefusedError, on every rank: no pairs, a sequence that is too long, NaN in what the reference says.
    """
    group, placement = fleet.group, fleet.placement
    fleet.check(dpo.budget, together=2)
    agree(group, _problem(pairs, fleet.config.context))
    parts = [pairs[n : n + dpo.pairs] for n in range(0, len(pairs), dpo.pairs)]
    mail = Mail(group, replace(placement, reward=(), critic=()), len(parts))
    reference_r, problem = dict[int, Tensor](), None
    with fleet.phase("reference"):
        for c in mail.own("reference"):
            chunk = Chunk.of_pairs(c, parts[c])
            reference_r[c] = read(chunk, dpo.budget, lambda tokens_bt: logprobs(fleet.models["reference"], tokens_bt))
            fleet.spend("read", chunk.load.tokens)
            mail.send_numbers(reference_r[c], placement.owner("policy", c))
            if not reference_r[c].isfinite().all():
                first = c * dpo.pairs
                problem = f"the reference says NaN or infinity about pairs {first} to {first + len(parts[c]) - 1}"
    chunks = {c: Chunk.of_pairs(c, parts[c]) for c in mail.own("policy")}
    for c, chunk in chunks.items():
        if placement.owner("reference", c) != group.rank:
            reference_r[c] = mail.numbers(sum(chunk.lengths), placement.owner("reference", c))
    mail.finish()
    agree(group, problem)

    def loss(chunk: Chunk, rows: Rows, total: float) -> Tensor:
        reference_b = masked_sums(chunk.spread(reference_r[chunk.number], rows), rows.mask_bt)
        sums_b = masked_sums(logprobs(fleet.models["policy"], rows.tokens_bt), rows.mask_bt)
        (chosen, rejected), (better, worse) = sums_b.view(-1, 2).T, reference_b.view(-1, 2).T
        told = dpo_loss(chosen, rejected, better, worse, dpo.beta, total / 2)
        return torch.stack([told.loss, told.accuracy, told.margin])

    told, _ = learn(
        fleet, "policy", chunks, mail.count, loss, epochs=1, minibatches=1, budget=dpo.budget, per="response"
    )
    sums = torch.zeros(3) if len(told) < 3 else told
    return DPOReport(*all_reduce(sums.to(group.device), group).tolist())


def _problem(pairs: Sequence[Answers], context: int) -> str | None:
    if not pairs:
        return "no pair is left of this batch: nothing to learn from"
    for n, (prompt, *answers) in enumerate(pairs):
        longest = len(prompt) + max(map(len, answers))
        if not prompt or not all(answers) or longest > context:
            return f"pair {n} has a prompt of {len(prompt)} tokens and {longest} in all: 1 to {context}, none empty"
    return None
