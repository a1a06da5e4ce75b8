"""The first half of a step: the policy writes, and all models say what they think of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from labkit.align.fleet.chunks import Chunk
from labkit.align.fleet.fleet import Fleet
from labkit.align.fleet.mail import Mail
from labkit.align.fleet.reading import logprobs, read, rewards, values
from labkit.align.rollout import Prompts, Sample, Sampling, generate
from labkit.parallel.refusals.agreement import agree
from labkit.wire.errors import RefusedError


@dataclass
class Experience:
    """What this rank knows of the chunks of a step, by their numbers; of its own as a rank of the policy, everything.

    samples: what the policy wrote. old_r, reference_r: log-probabilities of the policy before the step, and of the
    reference. values_r: the critic's, at the critic's rank too. rewards_s: of the reward model, one a response.
    mail: what this rank's chunks are kept in.
    """

    mail: Mail
    samples: dict[int, list[Sample]] = field(default_factory=dict)
    old_r: dict[int, Tensor] = field(default_factory=dict)
    reference_r: dict[int, Tensor] = field(default_factory=dict)
    values_r: dict[int, Tensor] = field(default_factory=dict)
    rewards_s: dict[int, Tensor] = field(default_factory=dict)

    @property
    def chunks(self) -> list[Chunk]:
        """This rank's own, as a rank of the policy."""
        return [self.mail.chunk(c) for c in self.mail.own("policy")]


def collect(
    fleet: Fleet, prompts: Prompts, how: Sampling, size: int, budget: int, written: Mapping[int, Sample] | None = None
) -> Experience:
    """Every rank calls it with the same prompts: chunks of `size` prompts each, the last one may have fewer.

    budget: positions in a microbatch. The ranks of the policy write their chunks one after the other and send each on
    at once, so the others read one while the next is written. Old log-probabilities are computed anew, by the same
    microbatches that learn: those of the sampler have other rounding. written: what others have generated already.
    Sent: `labkit.cost.placement_bytes`, and 8 bytes a rank to agree that all went well. Raises RefusedError, on every
    rank with the same words and before anything is learned: a prompt that is empty or too long, NaN logits, and NaN in
    what a model says, with the sequence and the rank.
    """
    ids, group = iter(prompts), fleet.group
    parts = [{i: prompts[i] for i in islice(ids, size)} for _ in range(-(-len(prompts) // size))]
    found = Experience(mail := Mail(group, fleet.placement, len(parts)))
    problem = None
    if written is None:
        problem = _write(fleet, found, parts, how)
    else:
        _take(found, parts, written)
    _read(fleet, found, budget)
    for role, numbers in (("reference", found.reference_r), ("reward", found.rewards_s), ("critic", found.values_r)):
        for c in mail.own("policy") if role in fleet.placement.readers else ():
            source, chunk = fleet.placement.owner(role, c), mail.chunk(c)
            if source != group.rank:
                numbers[c] = mail.numbers(len(chunk.sequences) if role == "reward" else sum(chunk.lengths), source)
            problem = problem or _not_a_number(role, source, numbers[c], found.samples[c])
    mail.finish()
    agree(group, problem)
    return found


def _write(fleet: Fleet, found: Experience, parts: list[dict[int, Any]], how: Sampling) -> str | None:
    """Generate this rank's chunks; why not, if it cannot."""
    problem, mail = None, found.mail
    with fleet.phase("generate"):
        for c in mail.own("policy"):
            try:
                made = generate(fleet.models["policy"], parts[c], how, slots=len(parts[c]))  # type: ignore[arg-type]
                found.samples[c] = list(made.samples.values())
                fleet.spend("decode", len(made.steps))
                mail.send_chunk(Chunk.of(c, found.samples[c], len(made.steps)))
            except RefusedError as why:
                problem, found.samples[c] = problem or str(why), []
                mail.send_chunk(Chunk(c, [], []))
    return problem


def _take(found: Experience, parts: list[dict[int, Any]], written: Mapping[int, Sample]) -> None:
    """This rank's chunks, from samples that are there."""
    for c in found.mail.own("policy"):
        found.samples[c] = [written[i] for i in parts[c]]
        found.mail.send_chunk(Chunk.of(c, found.samples[c]))


def _read(fleet: Fleet, found: Experience, budget: int) -> None:
    """Each model of this rank reads its chunks, and what it says goes to where the chunk was written."""
    mail = found.mail
    ways: Mapping[str, tuple[dict[int, Tensor], Callable[..., Tensor]]] = {
        "policy": (found.old_r, _tokens(logprobs)), "reference": (found.reference_r, _tokens(logprobs)),
        "reward": (found.rewards_s, rewards), "critic": (found.values_r, _tokens(values)),
    }  # fmt: skip
    for role, (numbers, way) in ways.items():
        with fleet.phase(role):
            for c in mail.own(role):
                chunk = mail.chunk(c)
                numbers[c] = way(fleet.models[role], chunk, budget) if chunk.sequences else torch.empty(0)
                fleet.spend("read", chunk.load.tokens)
                mail.send_numbers(numbers[c], fleet.placement.owner("policy", c))


def _tokens(what: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda model, chunk, budget: read(chunk, budget, partial(what, model))


def _not_a_number(role: str, rank: int, x: Tensor, samples: list[Sample]) -> str | None:
    """Which response a model has said NaN about, or infinity."""
    each = x.split(1 if role == "reward" else [len(s.tokens) for s in samples]) if samples else ()
    for s, part in zip(samples, each, strict=bool(samples)):
        if not part.isfinite().all():
            return (
                f"the {role} model on rank {rank} says NaN or infinity about the response to prompt {s.sequence}: "
                "nothing was learned from this batch; look at that model's weights"
            )
    return None
