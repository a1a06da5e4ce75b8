"""Plain data parallelism: every replica holds all of its part, and gradients are all-reduced in buckets.

Experts have fewer copies than all else, so they have buckets of their own, over the ranks that hold the same ones. Each
rank's loss is its share of the loss of the batch, so gradients are added up, and not averaged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.cost.parallel.data_parallel import BUCKET_BYTES, FIRST_BUCKET_BYTES
from labkit.parallel.data.hooks import all_reduce_hook
from labkit.parallel.data.reducer import Reducer
from labkit.parallel.hybrid.moments import Moments
from labkit.parallel.hybrid.part import Part
from labkit.parallel.hybrid.replicas import Held, Place
from labkit.parallel.zero.adamw import AdamW
from labkit.wire.group import Group


class Plain:
    """dense, experts: the ranks that hold the same copies of the one and of the other.

    Outside of a pipeline a bucket leaves while the last backward pass goes on; in a pipeline when it has run empty.
    Sent: an all-reduce of each bucket, by `algorithm`.
    """

    def __init__(
        self, parts: Sequence[Part], places: Mapping[int, Place], dense: Group, experts: Group, settings: AdamW,
        algorithm: str,
    ) -> None:  # fmt: skip
        self.modules: Sequence[nn.Module] = parts
        self.tied = {name: p for part in parts for name, p in part.model.tied.items()}
        named = {places[id(p)].name: p for part in parts for p in part.parameters()}
        self._places = {name: places[id(p)] for name, p in named.items()}
        self._named, self._moments = named, Moments(named.values(), settings)
        self._groups = {True: experts, False: dense}
        hook = functools.partial(all_reduce_hook, algorithm=algorithm)
        kinds = {kind: {n: p for n, p in named.items() if self._places[n].expert == kind} for kind in (False, True)}
        self._reducers = [
            Reducer(some, self._groups[kind], hook, first_bytes=FIRST_BUCKET_BYTES, bucket_bytes=BUCKET_BYTES,
                    rebuild=False)
            for kind, some in kinds.items() if some
        ]  # fmt: skip
        self._sent = False

    def expect(self, last: bool) -> None:
        self._sent = last
        for reducer in self._reducers:
            reducer.arm(lambda: 1.0) if last else reducer.disarm()

    def reduce(self) -> None:
        for reducer in () if self._sent else self._reducers:
            reducer.send_all()
        self._sent = False

    def held(self) -> Iterator[Held]:
        for name, p in self._named.items():
            place = self._places[name]
            momentum, variance = self._moments.of(p)
            gradient = None if p.grad is None else p.grad.view(-1)
            counted = place.counted and self._groups[place.expert].rank == 0
            yield Held(place, 0, place.numel, p.detach().view(-1), gradient, momentum, variance, counted)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._moments.tensors()

    def steps(self) -> dict[str, int]:
        return {name: self._moments.steps[id(p)] for name, p in self._named.items()}

    def update(self) -> None:
        self._moments.update()

    def zero_grad(self) -> None:
        self._moments.zero_grad()

    @torch.no_grad()
    def loaded(self, steps: Mapping[str, int]) -> None:
        for name, p in self._named.items():
            self._moments.steps[id(p)] = steps[name]
