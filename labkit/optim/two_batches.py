"""The squared gradient norms of a data parallel step, before and after the average: what the noise scale is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.optim.noise_scale import NoiseScale
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


def squared_norm(gradients: Iterable[Tensor]) -> float:
    """The sum of squares over all elements of all tensors, in float64 from tensor to tensor."""
    return sum(float(g.detach().double().square().sum()) for g in gradients)


def mean_over_ranks(value: float, group: Group) -> float:
    """The mean of one number over the ranks: an all-reduce of 8 bytes."""
    return float(all_reduce(torch.tensor([value], dtype=torch.float64), group, "avg"))


def two_norms(gradients: Sequence[Tensor], group: Group) -> tuple[float, float]:
    """Average `gradients` over the ranks, in place, and return (mean over ranks of |own|^2, |average|^2).

    gradients: this rank's, of the mean loss over its own examples; the same number of examples on every rank. They
    travel as one flat tensor: one all-reduce, and one more of 8 bytes for the small norms. All ranks get the same pair.
    """
    small = mean_over_ranks(squared_norm(gradients), group)
    flat = torch.cat([g.detach().reshape(-1) for g in gradients])
    all_reduce(flat, group, "avg")
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(part.view_as(g))
    return small, squared_norm([flat])


class Measured:
    """A bucket on its way. own: |this rank's gradient|^2; average: |the averaged one|^2, once it was waited for."""

    def __init__(self, bucket: Tensor, handle: Any, own: float) -> None:
        self._bucket, self._handle, self.own, self.average = bucket, handle, own, 0.0

    def wait(self) -> Any:
        result = self._handle.wait()
        self.average = squared_norm([self._bucket])
        return result


class TwoBatches:
    """The noise scale of a data parallel run: examples per rank, and the group.

        watch = TwoBatches(group, per_rank=16)
        loss.backward()                     # this rank's 16 examples
        watch.average(model.parameters())   # all-reduce, and two norms on the way
        optimizer.step()
        ...
        watch.noise.estimate()

    With `labkit.parallel.DataParallel`, which averages in buckets while backward runs, give it the hook; the norms are
    then taken bucket by bucket, and `count()` adds the step:

        model = DataParallel(model, group, hook=watch.hook)
        loss.backward()
        watch.count()

    With another wrapper take the norms yourself: `before(parameters)` when this rank's own gradients are there,
    `after(parameters)` when they are averaged. Every rank must count the same number of examples in every step.
    Extra messages: one all-reduce of 8 bytes a step.
    """

    def __init__(self, group: Group, per_rank: int, fade: float = 1.0) -> None:
        if group.size < 2:
            raise RefusedError(
                "the noise scale needs two batch sizes, and in a world of one rank its own gradient is the average: "
                "launch two ranks or more, or feed NoiseScale from two microbatches"
            )
        self.group, self.noise = group, NoiseScale(per_rank, per_rank * group.size, fade)
        self._small: float | None = None
        self._buckets: list[Measured] = []

    def average(self, parameters: Iterable[Tensor]) -> None:
        """Average the gradients of `parameters` over the ranks, and count the step."""
        self.noise.add(*two_norms([p.grad for p in parameters if p.grad is not None], self.group))

    def hook(self, bucket: Tensor, group: Group) -> Measured:
        """A communication hook: sums the bucket over the ranks, with its squared norm taken before and after.

        bucket: as `DataParallel` gives it, already divided by the number of ranks.
        """
        own = squared_norm([bucket]) * group.size**2
        self._buckets.append(Measured(bucket, all_reduce(bucket, group, async_op=True), own))
        return self._buckets[-1]

    def count(self) -> None:
        """Count the step whose buckets went through `hook`. Every rank must call it: it holds an all-reduce."""
        if not self._buckets:
            raise RefusedError(
                "count() without a bucket: build DataParallel(model, group, hook=watch.hook), and call backward"
            )
        small, large = sum(b.own for b in self._buckets), sum(b.average for b in self._buckets)
        self._buckets = []
        self.noise.add(mean_over_ranks(small, self.group), large)

    def before(self, parameters: Iterable[Tensor]) -> None:
        """Note the norm of this rank's own gradients, before somebody else averages them."""
        self._small = squared_norm(p.grad for p in parameters if p.grad is not None)

    def after(self, parameters: Iterable[Tensor]) -> None:
        """Count the step: the gradients are averaged now. Every rank must call it: it holds an all-reduce."""
        if self._small is None:
            raise RefusedError("after() without before(): the own gradient's norm was not taken in this step")
        large = squared_norm(p.grad for p in parameters if p.grad is not None)
        self.noise.add(mean_over_ranks(self._small, self.group), large)
        self._small = None
