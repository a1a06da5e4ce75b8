"""`DataParallel`: train one model on many ranks, each with a part of the batch.

After backward, `.grad` of every parameter is the average over the ranks, the same on each of them. So equal models
that take equal steps stay equal, and no weight is ever sent after the start.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.parallel.data.buckets import Bucket
from labkit.parallel.data.hooks import AnyHook, all_reduce_hook, said
from labkit.parallel.data.join import Join
from labkit.parallel.data.reducer import Reducer
from labkit.parallel.reach import examples_in, reached, tensors_in
from labkit.parallel.refusals.changed_model import Unchanged, refuse_sparse
from labkit.parallel.refusals.gradients import AVERAGES, AVERAGES_SAID, refuse_empty_batch, watch_steps
from labkit.parallel.refusals.same_model import broadcast_all, check_same, describe
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

MiB = 1 << 20


class DataParallel(nn.Module):
    """`module` on every rank of `group`; parameters and buffers become those of rank 0.

    bucket_bytes, first_bucket_bytes: see `buckets.py`. rebuild: after the first step, buckets follow the order in
    which gradients arrived. broadcast_buffers: before each step with communication, buffers become those of rank 0.
    find_unused_parameters: some may be left out of a forward (not all of them); they get the average if another rank
    had a gradient, else None.
    static_graph: the same, but the first step shows once and for all which. hook: see `hooks.py`.
    algorithm: of the all-reduce. average: every rank counts the same ("ranks"), or as much as it says ("weights"), or
    as its batch has examples ("examples": the first dimension of the first tensor in the inputs, of the microbatch that
    is sent). The last is what a loss that is a mean over examples needs where batches are uneven.
    check_nan: refuse a gradient that is not finite, by rank and name, before it is sent.

    Bytes that a rank sends in a step (not the first one; without buffers, weights and unused parameters): those of one
    all-reduce of each of `.buckets`. Together about 2 (N - 1) / N of the gradients' bytes with a ring.
    Raises RefusedError, on every rank, if the ranks bring different models or options.
    """

    def __init__(
        self, module: nn.Module, group: Group, *, bucket_bytes: int = 25 * MiB, first_bucket_bytes: int = 1 * MiB,
        broadcast_buffers: bool = True, find_unused_parameters: bool = False, static_graph: bool = False,
        hook: AnyHook | None = None, algorithm: str = "auto", rebuild: bool = True, average: str = "ranks",
        check_nan: bool = False,
    ):  # fmt: skip
        super().__init__()
        if average not in AVERAGES:
            raise RefusedError(f"average={average!r}: {AVERAGES_SAID}")
        if min(bucket_bytes, first_bucket_bytes) < 1:
            raise RefusedError(f"bucket_bytes={bucket_bytes}, first_bucket_bytes={first_bucket_bytes}: at least 1")
        self.module, self.group = module, group
        self._broadcast_buffers, self._find, self._average = broadcast_buffers, find_unused_parameters, average
        self._syncing, self._weight = True, math.nan
        self._join: Join | None = None

        options = {"bucket_bytes": bucket_bytes, "first_bucket_bytes": first_bucket_bytes, "rebuild": rebuild,
                   "broadcast_buffers": broadcast_buffers, "find_unused_parameters": find_unused_parameters,
                   "static_graph": static_graph,
                   "algorithm": algorithm, "average": average, "check_nan": check_nan,
                   "hook": said(hook)}  # fmt: skip
        check_same(describe(module) | {f"option {k}": repr(v) for k, v in options.items()}, group)
        refuse_sparse(module)
        self._unchanged = Unchanged(module, group.rank)
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise RefusedError("this module has no parameter that is trained: there is nothing to average")
        broadcast_all(self._everything(), group)
        self._reducer = Reducer(
            trained, group, hook or functools.partial(all_reduce_hook, algorithm=algorithm),
            first_bytes=first_bucket_bytes, bucket_bytes=bucket_bytes, rebuild=rebuild,
            missing="learn" if static_graph else "find" if find_unused_parameters else "refuse",
            check_nan=check_nan,
        )  # fmt: skip
        self._find = find_unused_parameters and not static_graph

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets as they are now, in the order in which they are sent."""
        return [buffer.record for buffer in self._reducer.buffers]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What `module` returns. With gradients enabled and outside of `no_sync`, the backward to come communicates."""
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        if not self._syncing:
            self._reducer.disarm()
            return self.module(*args, **kwargs)
        self._unchanged.check(self.module)
        if self._average == "examples":
            self._weight = float(examples_in((args, kwargs)))
        if self._average == "ranks" or self._weight:
            refuse_empty_batch(self.group.rank, (*args, *kwargs.values()),
                               "use average='examples', or average='weights' and weighted(0), or join()")  # fmt: skip
        if self._join is not None:
            self._join.announce(True)
        self._prepare(1 / self.group.size if self._join is None else self._join.share())
        output = self.module(*args, **kwargs)
        self._watch(output)
        return output

    # -- gradient accumulation, weights, uneven data -----------------------------------------------------------

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards inside add up their gradients on this rank only; the first one outside averages the sum.

        For gradient accumulation: all microbatches but the last. `optimizer.step()` refuses what was not averaged.
        """
        watch_steps(self._reducer)
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before
            self._reducer.disarm(local=False)

    def weight(self, n: float) -> None:
        """In the next step this rank's gradient counts n / (sum of n over ranks): n samples, or n tokens.

        For a loss that is a mean over these n, the average is then the gradient of the mean over all. With n = 0 the
        rank adds nothing, whatever its gradient is, NaN included. It takes part in the step all the same.
        """
        if self._average != "weights":
            raise RefusedError("this model counts every rank the same: build it with average='weights' to use weights")
        if not 0 <= n < math.inf:
            raise RefusedError(f"weight({n!r}): the number of samples or tokens of this rank's batch, 0 or more")
        self._weight = float(n)

    @contextlib.contextmanager
    def weighted(self, n: float) -> Iterator[None]:
        """`weight(n)` for the step inside."""
        self.weight(n)
        try:
            yield
        finally:
            self._weight = math.nan

    def join(self, step: Callable[[], object] | None = None, divide: str = "world") -> Join:
        """A context around an epoch in which ranks may have different numbers of steps: see `join.py`."""
        return Join(self, step, divide)

    # -- inside ------------------------------------------------------------------------------------------------

    def _prepare(self, share: float) -> None:
        """All that ranks exchange before a step, in the same order on each."""
        if self._broadcast_buffers:
            broadcast_all(self.module.buffers(), self.group, root=0 if self._join is None else self._join.root)
        self._reducer.arm(self._share_of_weight() if self._average != "ranks" else lambda: share)

    def _share_of_weight(self) -> Callable[[], float]:
        """Start to add up the weights of all ranks; the function returned waits for the sum."""
        weight, self._weight = self._weight, math.nan
        if math.isnan(weight):
            raise RefusedError(
                f"rank {self.group.rank}: average='weights', and nobody said what this batch counts: call "
                "model.weight(n) before the forward, or use `with model.weighted(n):`"
            )
        handle = all_reduce(torch.tensor([weight], dtype=torch.float64, device=self.group.device), self.group,
                            async_op=True)  # fmt: skip

        def share() -> float:
            total = float(handle.wait())
            if not total:
                raise RefusedError("the weights of all ranks are 0: this step has no example to average over")
            return weight / total

        return share

    def _watch(self, output: Any) -> None:
        """Be told when backward begins, and find out which parameters it will reach."""
        tensors = tensors_in(output)
        for x in tensors or ():
            if x.grad_fn is not None:
                x.register_hook(self._reducer.begin)
        if self._find:
            self._reducer.reaches(None if tensors is None else reached(tensors))

    def _stand_in(self, share: float) -> None:
        """One step of the others, for a rank without data (`join.py`)."""
        self._weight = 0.0
        self._prepare(share)
        self._reducer.stand_in()

    def _everything(self) -> Iterator[Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()
