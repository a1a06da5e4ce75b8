"""Does a model suffer when replicas come and go? The accuracy experiment of FT-HSDP in small, on real training.

A small language model learns Python's language reference, byte by byte, with 12 replicas of two samples each. All of
them are this one process: a step takes the mean gradient of the replicas that are healthy, which is what the
fault-tolerant all-reduce gives every rank, and changes the rate by the trainer's own rule (`ft_hsdp.learning_rate`). A
replica that is away does not train; its stream waits for it, so that each sample is trained once. Nothing here fails by
itself: when and how many replicas are away is said by a `Setting`, since only that reaches the model.

After Salpekar et al. 2026, section 6.2: two outages in a run, short or of 4 in 11 of all steps, of one or of three
replicas, with the rate left as it is, or scaled by the healthy part, or by its root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.data import text
from labkit.models.threads import one_thread
from labkit.optim import combined, cosine, warmup
from labkit.resilience.accuracy.stacked import CONTEXT, Stacked
from labkit.resilience.ft_hsdp.data import numbers
from labkit.resilience.ft_hsdp.learning_rate import factor
from labkit.wire.errors import RefusedError

REPLICAS, BATCH, STEPS, EVERY = 12, 2, 1650, 50  # a look at the validation text every so many steps
RATE, WARM, FLOOR = 16e-3, 50, 0.1  # of AdamW, best of the stored runs' `tuning`; steps; part left at the end
SHORT, LONG = 150, 600  # steps of one outage
FIRST = {SHORT: (600, 1100), LONG: (100, 900)}  # when the two outages begin
STRIDE, LOOK = 4, 1024  # bytes from one sample to the next; samples of the validation text


@dataclass(frozen=True)
class Setting:
    """lost: replicas that are away in each of two outages of `length` steps. order: which order the samples have.

    No replica is lost in a run without faults. Another `order` of the same samples is the yardstick: so far apart are
    two runs that differ in nothing that should matter.
    """

    lost: int = 0
    length: int = 0
    intervention: str = "none"
    order: int = 0

    def __post_init__(self) -> None:
        factor(self.intervention, 1, 1)
        if not 0 <= self.lost < REPLICAS or (self.length not in FIRST) != (self.lost == 0):
            raise RefusedError(
                f"{self}: lost must be 1 to {REPLICAS - 1} with a length of {SHORT} or {LONG}, or both 0"
            )
        if self.lost * self.length * 2 % REPLICAS:
            raise RefusedError(f"{self}: the samples that are left over must fill whole steps of {REPLICAS} replicas")

    @property
    def name(self) -> str:
        """As the paper names them: for600_3reps_lr_sqrt."""
        return f"for{self.length}_{self.lost}reps_lr_{self.intervention}" if self.lost else f"no_faults_{self.order}"

    @property
    def steps(self) -> int:
        """Until as many samples are trained as in a run without faults."""
        return STEPS + 2 * self.length * self.lost // REPLICAS

    def healthy(self, step: int) -> list[int]:
        """Who trains step `step`. The second outage takes other replicas than the first, as far as there are some."""
        for outage, begin in enumerate(FIRST.get(self.length, ())):
            if begin <= step < begin + self.length:
                away = {(outage * self.lost + i) % REPLICAS for i in range(self.lost)}
                return [r for r in range(REPLICAS) if r not in away]
        return list(range(REPLICAS))


def settings() -> list[Setting]:
    """A run without faults, the same in another order, and 12 with faults."""
    faults = [Setting(k, n, how) for n in (SHORT, LONG) for k in (1, 3) for how in ("none", "linear", "sqrt")]
    return [Setting(), Setting(order=1), *faults]


class Look(NamedTuple):
    """After `step` steps, with `samples` samples trained: each seed's loss on the validation text, in nats a byte."""

    step: int
    samples: int
    losses: tuple[float, ...]


def train(
    setting: Setting, seeds: Sequence[int], rate: float = RATE, *, until: int | None = None, one_by_one: bool = False
) -> list[Look]:
    """Train a model for each of `seeds`, all at once. Looks every `EVERY` steps, and at the end.

    until: stop after so many steps. one_by_one: a backward pass for each replica, whose gradients are added and divided
    by their number, in place of one pass over the samples of all: the same sum in another order.
    """
    model = Stacked(seeds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    schedule = combined(warmup(WARM, start=1 / WARM), cosine(STEPS, begin=WARM, end=FLOOR))
    looks, trained = [], 0
    with one_thread():
        for step, healthy, chosen_snc in islice(batches(setting, seeds), until):
            optimizer.zero_grad()
            for part_snc in chosen_snc.split(BATCH, dim=1) if one_by_one else [chosen_snc]:
                share = part_snc.shape[1] / chosen_snc.shape[1]
                (model.losses(part_snc).sum() * share).backward()
            for group in optimizer.param_groups:
                group["lr"] = rate * schedule(step) * factor(setting.intervention, healthy, REPLICAS)
            optimizer.step()
            trained += chosen_snc.shape[1]
            if (step + 1) % EVERY == 0 or step + 1 == setting.steps:
                looks.append(Look(step + 1, trained, validation_losses(model)))
    return looks


def batches(setting: Setting, seeds: Sequence[int]) -> Iterator[tuple[int, int, Tensor]]:
    """(step, number of healthy replicas, their samples): uint8 of shape (seeds, BATCH * healthy, CONTEXT + 1)."""
    positions, windows = [0] * REPLICAS, samples(validation=False)
    orders = [_order(10_000 * setting.order + seed, len(windows)) for seed in seeds]
    for step in range(setting.steps):
        healthy = setting.healthy(step)
        chosen = torch.cat([numbers(r, positions[r], BATCH, REPLICAS) for r in healthy])
        for r in healthy:
            positions[r] += BATCH
        yield step, len(healthy), torch.stack([windows[order[chosen]] for order in orders])


def validation_losses(model: Stacked) -> tuple[float, ...]:
    """Of each seed: the mean over `LOOK` samples of the validation text."""
    found = samples(validation=True)
    with torch.no_grad():
        looked_at = found[:: len(found) // LOOK][:LOOK]
        return tuple(model.losses(looked_at.expand(len(model.seeds), *looked_at.shape)).tolist())


@cache
def samples(validation: bool) -> Tensor:
    """Stretches of the text, uint8 of shape (count, CONTEXT + 1): the last byte is to be told from those before it."""
    return (text().val if validation else text().train).unfold(0, CONTEXT + 1, STRIDE)


def _order(seed: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
