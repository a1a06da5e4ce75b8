"""`Feed`: which examples this rank sees next, as a state that does not depend on how many ranks there are.

A `Sampler` deals out an epoch to a world of one size. A run that stops in the middle of an epoch and goes on with fewer
ranks must see the rest of that epoch, each example once. So what is kept is how many examples of the epoch's order the
whole world has seen; the order itself is a function of seed and epoch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labkit.collectives.chunks import even_sizes
from labkit.parallel.data.sampler import Sampler
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

KEPT = ("count", "seed", "shuffle")


class Feed:
    """`next(feed)`: indices of this rank's batch for the next step, epoch after epoch. Arguments as for `Sampler`.

    epoch: from 0. seen: examples that all ranks together have taken from it.
    """

    def __init__(
        self, count: int, place: Group | tuple[int, int], *, batch: int, seed: int = 0, shuffle: bool = True,
        last: str = "pad",
    ) -> None:  # fmt: skip
        self.sampler = Sampler(count, place, batch=batch, seed=seed, shuffle=shuffle, last=last)
        self.epoch = self.seen = 0
        self._order: tuple[int, Tensor] | None = None

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Tensor:
        s = self.sampler
        step, left = s.batch * s.size, s.count - self.seen
        if left <= 0 or (left < step and s.last == "drop"):
            self.epoch, self.seen = self.epoch + 1, 0
            left = s.count
        if self._order is None or self._order[0] != self.epoch:
            self._order = (self.epoch, s._order(self.epoch))
        order = self._order[1]
        coming = order[self.seen : self.seen + step]
        self.seen += len(coming)
        if left < step:
            return s._rest(order, coming)
        sizes = even_sizes(step, s.size)
        return coming[sum(sizes[: s.rank]) :][: sizes[s.rank]]

    def state_dict(self) -> dict[str, Any]:
        """Plain data, the same on every rank."""
        return {name: getattr(self.sampler, name) for name in KEPT} | {"epoch": self.epoch, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there, with any batch and any number of ranks. Raises RefusedError for other data or another order."""
        for name in KEPT:
            here = getattr(self.sampler, name)
            if state[name] != here:
                raise RefusedError(
                    f"this feed has {name}={here}, and the one that was saved had {name}={state[name]}: the "
                    "rest of its epoch would be another one"
                )
        self.epoch, self.seen = state["epoch"], state["seen"]
