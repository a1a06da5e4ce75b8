"""What the ranks of chapter 4 train: a small GPT whose layers take time, and which says when gradients are ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.book import allow
from labkit.collectives import all_reduce
from labkit.cost.units import MS
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import DataParallel, kernels
from labkit.wire import Group

FORWARD, BACKWARD = 20 * MS, 40 * MS  # seconds of all kernels of a pass
BEGIN = 100_000_000  # nanoseconds in which the ranks agree when to begin


def configured(world_size: int, transport: str, batch: int, steps: int, width: int) -> GPTConfig:
    """The chapter's small GPT. Raises ParameterError for parameters with which its pages make no sense."""
    allow({
        "one rank has nobody to share with: world_size is a number from 2 to 64": world_size in range(2, 65),
        'transport is "local" or "gloo"': transport in ("local", "gloo"),
        "batch is 2 or more, so that the ranks' shares can be unequal": batch in range(2, 10_000),
        "steps is a multiple of 4, 4 or more": steps in range(4, 10_000, 4),
        "width is a multiple of 4, 4 or more": width in range(4, 10_000, 4),
    })  # fmt: skip
    return GPTConfig(width=width, layers=4)


def share_of(group: Group, sizes: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """This rank's inputs and targets (samples, context): `sizes[rank]` samples of one batch; on one rank all of it."""
    joined = next(batches(text().train, sum(sizes), GPTConfig().context, seed))
    parts = list(sizes) if group.size > 1 else [sum(sizes)]
    inputs_bt, targets_bt = (x.split(parts)[group.rank] for x in joined)
    return inputs_bt, targets_bt


class Watch:
    """Copies of one matrix of a GPT, the last block's attention output: as it is at first, and at each `look`."""

    def __init__(self, model: GPT) -> None:
        self._model, self._copies = model, list[Tensor]()
        self.look()

    def look(self) -> None:
        block: Any = self._model.blocks[-1]
        self._copies.append(block.attention.out.weight.detach().flatten().clone())

    def path(self) -> Tensor:
        """(looks, weights of the matrix)"""
        return torch.stack(self._copies)

    def weights(self) -> Tensor:
        """All weights of the model, as they are now."""
        return torch.cat([p.detach().flatten() for p in self._model.parameters()])


def slow_gpt(group: Group, width: int = 64, seed: int = 0, last: float = 1.0) -> GPT:
    """A GPT of four blocks whose passes take 20 and 40 ms on the clock of `group`, on the last rank `last` times that.

    Its matrices share these by their sizes. Each gradient leaves a mark on the timeline when it is ready: a span
    "ready" without a length, with the parameter's name and the bytes of the gradient.
    """
    model = GPT(GPTConfig(width=width, layers=4), seed)
    matrices = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    each = (last if group.rank == group.size - 1 else 1.0) / sum(matrices.values())
    kernels(model, group, {name: (FORWARD * n * each, BACKWARD * n * each) for name, n in matrices.items()})

    def ready(p: nn.Parameter, name: str) -> None:
        with group.span("ready", parameter=name, nbytes=p.nbytes):
            pass

    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(partial(ready, name=name))
    return model


def text_loss(model: nn.Module, group: Group, batch: int = 1, seed: int = 0) -> Tensor:
    """The mean loss of `batch` pieces of text that no other rank reads."""
    inputs_bt, targets_bt = next(batches(text().train, batch, GPTConfig().context, seed, group.rank, group.size))
    return next_token_loss(model(inputs_bt), targets_bt)


def held_out_loss(model: nn.Module) -> float:
    """The mean loss on 16 pieces of text that no rank trains on, the same on each rank."""
    inputs_bt, targets_bt = next(batches(text().val, 16, GPTConfig().context, 0))
    with torch.no_grad():
        return next_token_loss(model(inputs_bt), targets_bt).item()


def packed_gpt(group: Group, nbytes: int) -> DataParallel:
    """`slow_gpt` in the book's wrapper; all buckets are of `nbytes` and go by the ring, as in section 4's formula."""
    return DataParallel(
        slow_gpt(group), group, bucket_bytes=nbytes, first_bucket_bytes=nbytes, algorithm="ring", rebuild=False
    )


CAUSES = ("disk", "GPU", "pauses")
MORE = 40 * MS


@dataclass(frozen=True)
class Trouble:
    """On one rank of a step something takes 40 ms more than on the others: which rank and what, `seed` decides."""

    ranks: int
    seed: int

    @property
    def hidden(self) -> tuple[int, str]:
        """The rank and the cause: the same on all ranks."""
        rank, cause = torch.rand(2, generator=torch.Generator().manual_seed(self.seed)).tolist()
        return int(self.ranks * rank), CAUSES[int(len(CAUSES) * cause)]

    def read(self, group: Group) -> None:
        """The next batch, in 10 ms of the virtual clock that are neither computing nor a message."""
        held_up(group, 10 * MS + (MORE if self.hidden == (group.rank, "disk") else 0))

    def compute(self, group: Group) -> None:
        """Eight layers of 10 ms. After four of them a rank may pause: its CPU is late with the next kernel."""
        for layer in range(8):
            group.compute(10 * MS + (MORE / 8 if self.hidden == (group.rank, "GPU") else 0))
            if layer % 2 == 0 and self.hidden == (group.rank, "pauses"):
                held_up(group, MORE / 4)


def held_up(group: Group, seconds: float) -> None:
    """Do something that takes so long on the virtual clock, and is neither computing nor a message."""
    clock = group.context.clock_here()
    with group.span("other"):
        clock.reach(clock.now() + round(1e9 * seconds))


@contextmanager
def one_step(group: Group) -> Iterator[None]:
    """Training step 1, a span "step". On the virtual clock all ranks begin it at the same nanosecond.

    A barrier alone does not do that: ranks leave it up to a latency apart.
    """
    clock = group.context.clock_here()
    now = all_reduce(torch.tensor(clock.now()), group, op="max")
    clock.reach(int(now) + BEGIN)
    group.step(1)
    with group.span("step"):
        yield
