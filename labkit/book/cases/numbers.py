"""Trainings whose numbers go wrong while all ranks run: a NaN, a flipped bit on the way, a rank that miscalculates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from labkit import collectives
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.resilience.diagnose import FiniteGuard, ForwardWatch, checksum, compare, find_flip, replay
from labkit.resilience.diagnose.flips import Flip
from labkit.resilience.diagnose.guards import NotFinite
from labkit.resilience.diagnose.replays import Replayed
from labkit.resilience.diagnose.replicas import Differs
from labkit.wire.group import Group
from labkit.wire.recording.trace import Trace

CONFIG = GPTConfig(width=32, layers=2, context=32)
SEQUENCES = 2  # of a rank in a step
RATE = 0.5


class Trainer:
    """Plain data parallelism: each rank a whole GPT and its own sequences; gradients are averaged around a ring."""

    def __init__(self, group: Group, seed: int) -> None:
        self.group, self.seed = group, seed
        self.model = GPT(CONFIG, seed)
        self.names = [name for name, _ in self.model.named_parameters()]

    def sequences(self, owner: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of rank `owner`: any rank can read them."""
        return islice(batches(text().train, SEQUENCES, CONFIG.context, self.seed, owner, self.group.size), steps)

    def gradient(self, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """(loss, all gradients in one flat tensor) at the weights of now."""
        self.model.zero_grad()
        loss = next_token_loss(self.model(inputs), targets)
        loss.backward()
        return loss.item(), torch.cat([p.grad.reshape(-1) for p in self.model.parameters() if p.grad is not None])

    def total(self, flat: Tensor) -> Tensor:
        """The sum of `flat` over all ranks, around a ring."""
        return collectives.all_reduce(flat.clone(), self.group, algorithm="ring")

    @torch.no_grad()
    def update(self, total: Tensor) -> None:
        """Gradient descent by the mean of the gradients."""
        flat = total / self.group.size
        for p, g in zip(self.model.parameters(), flat.split([p.numel() for p in self.model.parameters()]), strict=True):
            p.sub_(RATE * g.view_as(p))


def poisoned(
    group: Group, seed: int, bad: int, step: int, guarded: bool, steps: int = 4
) -> tuple[list[float], int, NotFinite | None]:  # fmt: skip
    """Train; in one step a layer of rank `bad` writes a NaN. Returns (losses, numbers that are NaN, what a guard said).

    guarded: ask before the gradients are averaged, and leave out an update that is not finite.
    """
    trainer, guard = Trainer(group, seed), FiniteGuard(group)
    watch = ForwardWatch(trainer.model)
    losses: list[float] = []
    said: NotFinite | None = None
    layer = trainer.model.blocks[-1]
    for n, (inputs, targets) in enumerate(trainer.sequences(group.rank, steps)):
        group.step(n)
        watch.reset()
        hook = layer.register_forward_hook(_one_nan, prepend=True) if (group.rank, n) == (bad, step) else None
        loss, flat = trainer.gradient(inputs, targets)
        losses.append(loss)
        if hook is not None:
            hook.remove()
        gradients = [(name, p.grad) for name, p in trainer.model.named_parameters()]
        found = guard.check(n, loss, gradients, watch) if guarded else None
        said = said or found
        if found is None:
            trainer.update(trainer.total(flat))
    return losses, sum(int(p.isnan().sum()) for p in trainer.model.parameters()), said


def _one_nan(module: object, inputs: object, output: Tensor) -> Tensor:
    output = output.clone()
    output.view(-1)[0] = float("nan")
    return output


def flipped(group: Group, seed: int, steps: int) -> list[tuple[float, int, Differs | None, Flip | None]]:
    """Train while something may flip a bit on the way, and look at it in every way that there is.

    Returns by step (mean loss, checksum of the weights, how replicas differ, what the all-reduce showed, done again).
    """
    trainer = Trainer(group, seed)
    rows = []
    for n, (inputs, targets) in enumerate(trainer.sequences(group.rank, steps)):
        group.step(n)
        loss, flat = trainer.gradient(inputs, targets)
        total = trainer.total(flat)
        trainer.update(total)
        mean = float(collectives.all_reduce(torch.tensor([loss]), group, op="avg"))
        weights = dict(trainer.model.named_parameters())
        flip = find_flip(flat, total, trainer.total(flat), group)
        rows.append((mean, checksum(weights.values()), compare(weights, group), flip))
    return rows


def partial_sum(trace: Trace, rank: int, step: int) -> int:
    """The number of a message of `rank` in `step` that holds a sum on its way around the ring, of the last parameters.

    In hop k a rank sends part (rank - k) of the tensor, while sums are made. Gradients of the last parts are never 0;
    those of letters that do not occur are. Parts that are finished are another matter: flipped, they differ by rank.
    """
    sent = sorted((m.index, m.step) for m in trace.sends if m.src == rank)
    first = next(number for number, (_, at) in enumerate(sent, 1) if at == step)
    size = trace.world_size
    return first + ((rank + 1) % size if rank != size - 2 else 0)


def miscalculated(
    group: Group, seed: int, plan: list[tuple[str, int]]
) -> list[tuple[Differs | None, Replayed]]:  # fmt: skip
    """A case a step: (pattern, rank). Returns by step what replicas and replays showed, the same on every rank.

    pattern: "transient", "persistent", "intermittent", or anything else for none. A wrong gradient has one bit flipped.
    """
    trainer = Trainer(group, seed)
    rows = []
    read = [list(trainer.sequences(owner, len(plan))) for owner in range(group.size)]
    for n, (pattern, bad) in enumerate(plan):
        group.step(n)
        calls = [0]

        def work(
            owner: int, n: int = n, pattern: str = pattern, mine: bool = group.rank == bad, calls: list[int] = calls
        ) -> list[Tensor]:
            calls[0] += 1
            _, flat = trainer.gradient(*read[owner][n])
            wrong = {"persistent": True, "transient": calls[0] == 1, "intermittent": calls[0] % 2 == 1}
            if mine and wrong.get(pattern, False):
                flat.view(torch.int32)[-1 - n] ^= 1 << 22
            return [flat]

        (flat,) = work(group.rank)
        replayed = replay(work, checksum([flat]), group)
        trainer.update(trainer.total(flat))
        rows.append((compare(dict(trainer.model.named_parameters()), group), replayed))
    return rows
