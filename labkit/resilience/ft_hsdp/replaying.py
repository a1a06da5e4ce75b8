"""`replay`: the training that an audit log tells of, repeated on one replica, without faults and without peers.

For each step of the lineage it computes the gradients of all contributors one after the other, adds them up as the ring
of that quorum did, and updates. The result equals the final state of the run to the bit, so it can be compared by
checksum: the run lost no sample, used none twice, and applied nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.collectives.chunks import split_evenly
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .config import Build, FtConfig, built
from .data import read_quorums
from .gradients import Gradients
from .offload import Offload
from .result import Result
from .state import TrainingState
from .update import apply_update, train_batch


@dataclass(frozen=True)
class Step:
    """One update to repeat. members: of the ring, in its order; contributors: those of them that trained."""

    step: int
    members: tuple[int, ...]
    contributors: tuple[int, ...]


def steps_of(lineage: Sequence[Any], folder: str | Path) -> list[Step]:
    """The lineage of an audit `Report` as steps. folder: that of the run, where its leaders noted the quorums."""
    rings = {number: tuple(r for r, _, _ in members) for number, members in read_quorums(Path(folder)).items()}
    found = []
    for update in lineage:
        if update.quorum not in rings:
            raise RefusedError(
                f"nothing says who was in quorum {update.quorum}, under which step {update.step} was applied"
            )
        found.append(Step(update.step, rings[update.quorum], tuple(update.contributors)))
    return found


def replay(inner: Group, config: FtConfig, build: Build, steps: Sequence[Step]) -> Result:
    """Repeat `steps` on the ranks of one replica (`inner`; a group of one for config.ranks = 1); see `train`.

    Bitwise: `Result.state` of rank i is the checksum that rank i of every replica had after the last of the steps.
    """
    if inner.size != config.ranks:
        raise RefusedError(f"replay needs the {config.ranks} ranks of one replica, and this group has {inner.size}")
    model, optimizer, loss_of = built(build, inner, config, None)
    state = TrainingState(model, optimizer, config.replicas)
    gradients = Gradients(state.parameters, config.bucket_bytes, lambda bucket: None)
    offload = Offload(optimizer, on=False)
    rates = [g["lr"] for g in optimizer.param_groups]
    for number, step in enumerate(steps):
        if step.step != number:
            raise RefusedError(f"these steps are no whole lineage: step {step.step} comes where step {number} is due")
        parts: list[list[Tensor]] = []
        for replica in step.members:
            gradients.begin()
            value = train_batch(config, state, loss_of, replica) if replica in step.contributors else 0.0
            gradients.end(value, float(replica in step.contributors))
            parts.append([bucket.clone() for bucket in gradients.buckets])
        for place, bucket in enumerate(gradients.buckets):
            ring_sum([p[place] for p in parts], bucket)
        apply_update(config, state, gradients, offload, rates, step.contributors)
    weights = None
    if config.keep_weights:
        weights = {n: p.detach().to("cpu", copy=True) for n, p in zip(state.names, state.parameters, strict=True)}
    return Result(-1, inner.rank, 0, state.step, True, state.sum_up(), tuple(state.positions), weights=weights)


@torch.no_grad()
def ring_sum(xs: Sequence[Tensor], out: Tensor) -> Tensor:
    """The sum of `xs` into `out`, added up as a ring of len(xs) ranks does: part p is ((x_p + x_{p+1}) + ...)."""
    n = len(xs)
    cut = [split_evenly(x, n) for x in xs]
    for p, into in enumerate(split_evenly(out, n)):
        total = cut[p][p].clone()
        for k in range(1, n):
            total = cut[(p + k) % n][p] + total  # own + incoming, as `recv(op)` has it
        into.copy_(total)
    return out
