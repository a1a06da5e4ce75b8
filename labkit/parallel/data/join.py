"""Join: ranks whose data ends at different steps.

A rank that leaves its loop early would leave the others waiting in their next all-reduce. Inside of `model.join()` it
takes part in their steps with nothing to add, until all are through.

Before each step every rank says whether it has data (an all-gather of one number). So a rank that is through knows
when the others are, and the others know how many they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from labkit.collectives import all_gather
from labkit.parallel.joining import Joining
from labkit.parallel.refusals.same_model import broadcast_all
from labkit.wire.errors import RefusedError

if TYPE_CHECKING:
    from labkit.parallel.data.wrapper import DataParallel


class Join(Joining):
    """See `Joining`.

    step: what a rank without data does after each step of the others, usually `optimizer.step`. Then weights and
    the optimizer's state stay the same everywhere. Without it, weights and buffers are copied at the end from a rank
    that ran to the end; the optimizer's state of the others is old.
    """

    def __init__(self, model: DataParallel, step: Callable[[], object] | None, divide: str):
        super().__init__(model, step, divide)
        self._active: list[int] = []

    def accompany(self) -> None:
        """Take part in the steps of those who still have data, then end as they do."""
        reducer, group = self._model._reducer, self._model.group
        if reducer.unsent:
            raise RefusedError(
                f"rank {group.rank}: the data ended inside of no_sync(), and the gradients of its last "
                "microbatches were never averaged: let the last one run outside"
            )
        while self.announce(False):
            self._model._stand_in(self.share())
            if self._step is not None:
                self._step()
            for p in reducer.parameters:
                p.grad = None
        if self._active and self._step is None:
            broadcast_all(self._model._everything(), group, root=self._active[0])

    def announce(self, here: bool) -> bool:
        """Say whether this rank has data for the step that begins. Returns whether any rank has."""
        group = self._model.group
        flags = all_gather(torch.tensor([here], dtype=torch.uint8, device=group.device), group).tolist()
        ranks = [r for r, flag in enumerate(flags) if flag]
        if ranks:
            self._active = ranks
        return bool(ranks)

    def share(self) -> float:
        """What each rank's gradient counts for in this step, if ranks count equally."""
        return 1 / (self._model.group.size if self._divide == "world" else len(self._active))

    @property
    def root(self) -> int:
        """The first rank that still has data: its buffers are the newest."""
        return self._active[0]
