"""Asynchronous rollouts: rank 0 learns while all others write, with a policy that is a bounded number of versions old.

Update u learns from batch u. A worker may begin that batch when version u - staleness is there, and writes it with
exactly that one, so what is learned does not depend on who is fast. With staleness 0 workers and trainer take turns,
as in a synchronous step; with 1 or more they work at the same time (Noukhovitch et al. 2025; Fu et al. 2025, AReaL).

A worker that dies or comes too late is asked no more. What it owes is written by rank 0, with the weights of
that version and so with the same tokens, and later batches go to the workers that are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from labkit.align.fleet.fleet import RATES, Fleet
from labkit.align.fleet.grpo import GRPO, grpo_step
from labkit.align.fleet.report import Report
from labkit.align.fleet.worker import Chunks, chunks_of, flat_weights, load_flat, serve, write
from labkit.align.off_policy import may_begin
from labkit.align.rollout import Prompts, Sample, Sampling
from labkit.align.rollout.parcels import RESULT, SHARE, Parcel, receive, unpack_samples
from labkit.align.rollout.sequences import begin
from labkit.cost import Placement, WorkSeconds
from labkit.models.gpt import GPT
from labkit.optim.synchrony.errands import Errands
from labkit.wire.errors import PeerLost, RefusedError
from labkit.wire.group import Group


@dataclass(frozen=True)
class Asynchronous:
    """updates: how many. staleness: versions that a response may be old. cap: of importance weights.

    deadline: seconds that rank 0 waits for a batch, after which workers that have not answered are lost.
    """

    updates: int
    staleness: int = 1
    cap: float = 2.0
    deadline: float = math.inf

    def __post_init__(self) -> None:
        if self.staleness < 0 or self.updates < 0 or not self.deadline > 0:
            raise RefusedError(f"{self}: updates and staleness of 0 or more, and a deadline above 0")


@dataclass
class Learned:
    """reports: of each update. ages: of its responses, in versions. made_by: the rank that wrote each of its chunks.

    lost: why a worker is gone, by rank. policy: in the end. On a worker: ages and made_by of nothing, and no policy.
    """

    reports: list[Report] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    made_by: list[list[int]] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    policy: nn.Module | None = None


def learn_asynchronously(
    group: Group, make: Callable[[str], nn.Module], prompts: Callable[[int], Prompts], how: Sampling, grpo: GRPO,
    plan: Asynchronous, *, rates: Mapping[str, float] = RATES, seconds: WorkSeconds | None = None,
) -> Learned:  # fmt: skip
    """GRPO with rank 0 as trainer; every rank calls it alike. prompts: of an update, by number.

    Sent: to each worker the weights of each version that it needs, 4 bytes a parameter, and 24 + 8 (2 + chunks) bytes
    for each batch; back come its samples (see `rollout.parcels`). Raises RefusedError on every rank for prompts that do
    not fit; PeerLost on a worker whose trainer is gone, or goes on without it.
    """
    policy = make("policy")
    assert isinstance(policy, GPT)
    for u in range(plan.updates):
        begin(prompts(u), how, policy.config)
    if group.size < 2:
        raise RefusedError("one rank alone has nobody to write for it: give it a worker, or use grpo_step")
    if group.rank:
        serve(group, policy, prompts, how, grpo, seconds)
        return Learned()
    return _Trainer(group, make, policy, prompts, how, grpo, plan, rates, seconds).run()


class _Trainer:
    """Rank 0. behaviour: the policy that writes what a lost worker owes."""

    def __init__(
        self, group: Group, make: Callable[[str], nn.Module], behaviour: GPT, prompts: Callable[[int], Prompts],
        how: Sampling, grpo: GRPO, plan: Asynchronous, rates: Mapping[str, float], seconds: WorkSeconds | None,
    ) -> None:  # fmt: skip
        self.group, self.behaviour, self.prompts = group, behaviour, prompts
        self.how, self.grpo, self.plan = how, grpo, plan
        alone = Placement.colocated(1, critic=False)
        self.fleet = Fleet(alone, group.subgroup([0]), make, rates=rates, seconds=seconds)
        self.errands, self.learned = Errands(group), Learned(policy=self.fleet.models["policy"])
        self.versions = {0: flat_weights(self.fleet.models["policy"])}  # those that a batch on its way is written with
        self.has = dict.fromkeys(range(1, group.size), 0)  # the version that each worker has, until it is lost
        self.shares = dict[int, dict[int, list[int]]]()  # by batch and worker: chunks that were asked for

    def run(self) -> Learned:
        ordered = 0
        for u in range(self.plan.updates):
            while ordered < self.plan.updates and may_begin(ordered, 1, u, self.plan.staleness):
                self._order(ordered)
                ordered += 1
            self._update(u)
        for worker in self.has:
            self.errands.ask(worker, lambda group, rank: Parcel(RESULT, []).send(group, rank))
        self.errands.gather(self.has, self.plan.deadline)
        return self.learned

    def _version(self, batch: int) -> int:
        return max(0, batch - self.plan.staleness)

    def _order(self, batch: int) -> None:
        """Tell the workers which chunks of a batch are theirs, with the weights that they lack; in the background."""
        version, chunks, workers = self._version(batch), len(self._chunks(batch)), [*self.has]
        self.shares[batch] = {w: [*range(n, chunks, len(workers))] for n, w in enumerate(workers)}
        for worker, share in self.shares[batch].items():
            fresh = version != self.has[worker]
            numbers = torch.tensor([batch, int(fresh), *share])
            try:
                self.group.isend(torch.tensor([SHARE, len(numbers), 0]), worker)
                self.group.isend(numbers, worker)
                if fresh:
                    self.group.isend(self.versions[version], worker)
            except PeerLost:
                continue  # `gather` says so
            self.has[worker] = version

    def _update(self, batch: int) -> None:
        """Wait for a batch, write what is missing, and learn."""
        shares = {w: share for w, share in self.shares.pop(batch).items() if w in self.has}
        for worker in shares:
            self.errands.ask(worker, receive)
        answers = self.errands.gather(shares, self.plan.deadline)
        for worker in shares:
            if worker not in answers:
                self.learned.lost[worker] = self.errands.lost.get(worker, "came too late")
                del self.has[worker]
        samples, made_by = dict[int, Sample](), [0] * len(self._chunks(batch))
        for worker, answer in answers.items():
            samples |= unpack_samples(answer.integers, answer.floats)
            for c in shares[worker]:
                made_by[c] = worker
        missing = [c for c, by in enumerate(made_by) if not by]
        if missing:
            load_flat(self.behaviour, self.versions[self._version(batch)])
            owed = [self._chunks(batch)[c] for c in missing]
            samples |= write(self.group, self.behaviour, owed, self.how, batch, self.fleet.seconds)
        age = batch - self._version(batch)
        how = replace(self.how, seed=self.how.seed + batch)
        told = grpo_step(self.fleet, self.prompts(batch), how, self.grpo, samples, self.plan.cap if age else None)
        self.learned.reports.append(told)
        self.learned.ages.append(age)
        self.learned.made_by.append(made_by)
        self.versions[batch + 1] = flat_weights(self.fleet.models["policy"])
        self.versions = {v: x for v, x in self.versions.items() if v >= self._version(batch + 1)}

    def _chunks(self, batch: int) -> Chunks:
        return chunks_of(self.prompts(batch), self.grpo)
