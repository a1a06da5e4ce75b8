"""Join: ranks whose data ends at different steps, of a model of which every rank keeps a part.

A rank that leaves its loop early would leave the others waiting for its shards. Inside of `model.join(step)` it runs
its last batch again in each step of the others, with gradients that count nothing, and takes the optimizer's step: its
shards learn from the others' gradients. So its last inputs stay in memory, and it computes what nobody needs.

Before each step every rank says whether it has data (an all-reduce of one number).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from labkit.collectives import all_reduce
from labkit.parallel.joining import Joining
from labkit.parallel.reach import tensors_in
from labkit.wire.errors import RefusedError

if TYPE_CHECKING:
    from labkit.parallel.fsdp.fully_shard import FullyShard


class Join(Joining):
    """See `Joining`.

    step: what a rank without data does after each backward of the others: all that they do, such as clipping and
    `optimizer.step`.
    """

    _step: Callable[[], object]

    def __init__(self, model: FullyShard, step: Callable[[], object], divide: str):
        super().__init__(model, step, divide)
        if not callable(step):
            raise RefusedError(
                f"join({step!r}): needs what a rank without data does after each backward, such as "
                "optimizer.step: its shards go on learning"
            )
        self._last: Any = None
        self._active, self.standing_in = 0, False

    def begin(self, inputs: Any) -> None:
        """A forward of this rank begins: tell the others, unless it stands in, and they have been told."""
        if not self.standing_in:
            self._last = inputs
            self._announce(True)

    def share(self) -> float:
        """What this rank's gradient counts in this step, on top of the average over all ranks."""
        return (
            0.0 if self.standing_in else 1.0 if self._divide == "world" else self._model.sharding.ranks / self._active
        )

    def accompany(self) -> None:
        """Take part in the steps of those who still have data."""
        model = self._model
        self.standing_in = True
        while self._announce(False):
            if self._last is None:
                raise RefusedError(
                    f"rank {model.group.context.rank} had no batch at all inside of join(), and nothing to "
                    "stand in with: give each rank one batch or more"
                )
            model.zero_grad()
            buffers = [(b, b.clone()) for b in model.buffers()]
            args, kwargs = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, self._last)
            outputs = [x for x in tensors_in(model(*args, **kwargs)) or () if x.requires_grad]
            torch.autograd.backward([x.sum() for x in outputs])
            with torch.no_grad():
                for b, before in buffers:
                    b.copy_(before)
            self._step()
            model.zero_grad()

    def _announce(self, here: bool) -> int:
        """Say whether this rank has data for the step that begins. Returns how many ranks have."""
        active = torch.tensor([int(here)], device=self._model.group.device)
        for group in (self._model.sharding.shard_group, self._model.sharding.replicate_group):
            all_reduce(active, group)
        self._active = int(active)
        return self._active
