"""Gradients summed over replicas of different width.

    backward   the last gradient of a bucket is ready: the extra ranks send theirs to the ranks that own them in the
               sync layout ("reshard before"); that goes on behind backward
    next one   what was sent is here: the bucket is summed over the replicas, position i with position i
    the end    each bucket's sums go back to the extra ranks, the first ones while the last bucket is still being summed

All replicas have bitwise the same sums afterwards: each shard is summed once, by one group, in one order.
(Arfeen et al. 2025, "Nonuniform tensor parallelism", sections 4.2 and 5.1.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from labkit.collectives import all_reduce
from labkit.parallel.data.buckets import plan as plan_buckets
from labkit.parallel.moving import Carried, Carrier, Moves, plan
from labkit.parallel.tensor.shard_spec import ShardSpec, shard_specs_of
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .replicas import Replicas, positions_of


@dataclass(frozen=True)
class Held:
    """A parameter of this rank, and which places of it each rank of its replica has in either layout."""

    name: str
    parameter: nn.Parameter
    before: Moves  # compute layout -> sync layout
    after: Moves  # and back


class NonuniformSync:
    """Sums the gradients of `model` over all replicas, weighted, at the end of each backward.

    model: its layers say in `shard_specs` how parameters are cut, by the compute layouts of `replicas`. group: all
    ranks of all replicas. share: what this replica's gradients are multiplied by first, its part of the batch.
    bucket_bytes: gradients that travel together. overlap: behind the backward; else all of it comes at its end.

    Sent by a rank, for gradients of M bytes in its compute layout: an extra rank M before, and as much comes back
    after (a rank of the sync layout sends it); a rank of the sync layout its all-reduce over the replicas.
    Raises RefusedError, on every rank: a model that is not spread as `replicas` says.
    """

    def __init__(
        self, model: nn.Module, replicas: Replicas, group: Group, *, share: float, bucket_bytes: int = 1 << 20,
        overlap: bool = True,
    ) -> None:  # fmt: skip
        self.replicas, self.group, self.share, self.overlap = replicas, group, share, overlap
        self.replica, self.position = replicas.place(group.global_ranks[group.rank])
        self.inner = group.subgroup(positions_of(replicas.members[self.replica], group.global_ranks))
        self.pairs = self._pairs()
        self.held = [self._hold(name, p, cut) for name, p, cut in shard_specs_of(model) if p.requires_grad]
        parameters = [h.parameter for h in self.held]
        order = list(reversed(range(len(parameters))))
        whole = [_stand_in(h) for h in self.held]  # buckets must be the same on every rank, whatever it holds
        self._buckets = plan_buckets(whole, order, bucket_bytes, bucket_bytes)
        self._bucket_of = {i: b for b, members in enumerate(self._buckets) for i in members}
        self._before = [Carrier([self.held[i].before for i in m], self.inner) for m in self._buckets]
        self._after = [Carrier([self.held[i].after for i in m], self.inner) for m in self._buckets]
        self._start_over()
        me = weakref.ref(self)
        self._hooks = [p.register_post_accumulate_grad_hook(_calling(me, i)) for i, p in enumerate(parameters)]

    def remove(self) -> None:
        """Let go of the model: its backward sums nothing any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.no_grad()
    def sum(self) -> None:
        """Sum the gradients that are there now, without a backward."""
        self._begun = True
        self._finish()

    # -- who sums what -----------------------------------------------------------------------------------------

    def _pairs(self) -> Group | None:
        """Position i of every replica, in which shards of the sync layout are summed; None for an extra rank."""
        found = None
        for i in range(self.replicas.narrowest):
            members = positions_of([ranks[i] for ranks in self.replicas.members], self.group.global_ranks)
            if i == self.position:
                found = self.group.subgroup(members)
        return found

    def _hold(self, name: str, parameter: nn.Parameter, cut: ShardSpec | None) -> Held:
        width, narrow = self.inner.size, self.replicas.narrowest
        if cut is None:  # every rank has all of it, and its gradient is the same on each
            every = list(range(parameter.shape[0]))
            compute, sync, dim = [every] * width, [every] * narrow + [list[int]()] * (width - narrow), 0
        else:
            if not cut.count:
                raise RefusedError(
                    f"{name} is cut evenly: give its layer the shards of this replica, `shards=shards(count)` (a GPT: "
                    "placement=replicas.computes(config, replica))"
                )
            layouts = self.replicas.map_of(self.replica, cut.count)
            dim = cut.dim
            wanted = cut.other(layouts.compute)
            if wanted != cut:
                raise RefusedError(
                    f"{name} is not spread as replica {self.replica} of widths {self.replicas.widths} needs"
                )
            narrower = cut.other([*layouts.sync, *[[]] * (width - narrow)])
            compute = [cut.places(r).tolist() for r in range(width)]
            sync = [narrower.places(r).tolist() for r in range(width)]
        return Held(name, parameter, plan(compute, sync, dim=dim), plan(sync, compute, dim=dim))

    # -- while backward runs -----------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._missing = [len(members) for members in self._buckets]
        self._next, self._begun = 0, False
        self._moving: tuple[int, Carried] | None = None
        self._summing: list[tuple[int, list[Tensor], Tensor | None, Any]] = []

    def _arrived(self, i: int) -> None:
        if not self._begun:
            self._begun = True
            Variable._execution_engine.queue_callback(self._finish)
        self._missing[self._bucket_of[i]] -= 1
        while self.overlap and self._next < len(self._buckets) and not self._missing[self._next]:
            self._send()

    def _send(self) -> None:
        """The next bucket goes to its sync layout; the one before it, which is there by now, to its sum."""
        self._sum()
        grads = []
        for i in self._buckets[self._next]:
            grad = self.held[i].parameter.grad
            if grad is None:
                raise RefusedError(f"{self.held[i].name} got no gradient: each parameter must take part in every step")
            grads.append(grad * self.share)
        self._moving = (self._next, self._before[self._next].begin(grads))
        self._next += 1

    def _sum(self) -> None:
        if self._moving is None:
            return
        bucket, moving = self._moving
        parts, self._moving = moving.wait(), None
        if self.pairs is None:
            self._summing.append((bucket, parts, None, None))
            return
        flat = torch.cat([x.reshape(-1) for x in parts])
        handle = all_reduce(flat, self.pairs, async_op=True) if self.pairs.size > 1 else None
        self._summing.append((bucket, parts, flat, handle))

    # -- at its end --------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        with self.group.span("sync"):  # what of the sums did not go on behind the backward
            self._end()

    def _end(self) -> None:
        while self._next < len(self._buckets):
            self._send()
        self._sum()
        returning = []
        for bucket, parts, flat, handle in self._summing:
            if handle is not None:
                handle.wait()
            if flat is not None:
                parts = [y.view(x.shape) for x, y in zip(parts, flat.split([x.numel() for x in parts]), strict=True)]
            returning.append((bucket, self._after[bucket].begin(parts)))
        for bucket, moving in returning:
            for i, grad in zip(self._buckets[bucket], moving.wait(), strict=True):
                self.held[i].parameter.grad = grad
        self._start_over()


def _stand_in(held: Held) -> Tensor:
    """A tensor of the size of the whole parameter, without memory."""
    p, dim = held.parameter, held.before.dim
    length = len({place for places in held.before.have for place in places})
    return torch.empty([*p.shape[:dim], length, *p.shape[dim + 1 :]], dtype=p.dtype, device="meta")


def _calling(sync: weakref.ref[NonuniformSync], i: int) -> Callable[[Tensor], None]:
    def hook(_: Tensor) -> None:
        found = sync()
        if found is not None:
            found._arrived(i)

    return hook
