"""What is done before a replica checks in, so that nobody waits for it: build, restore, and a step for nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch

from labkit.resilience.errors import Recoverable
from labkit.wire.group import Group

from .config import FtConfig
from .gradients import Gradients
from .life import Loss
from .offload import Offload
from .persistence import snapshot_of
from .state import TrainingState
from .update import train_batch

GLANCE = 0.002  # seconds between two looks at whether the other ranks of a replica have been started


def wait_for_peers(group: Group, members: Sequence[int], limit: float) -> None:
    """Return when all these world ranks have been started, each after the death of its former life.

    The ranks of a replica are started one after the other; who is early would knock at a door of the dead.
    """
    alive = getattr(group.context.transport, "alive", lambda peer: True)
    end, never = time.monotonic() + limit, threading.Event()
    while absent := [r for r in members if r != group.context.rank and not alive(r)]:
        if time.monotonic() > end:
            raise Recoverable(
                f"rank {group.context.rank} waited {limit:g} s for ranks {absent} of its replica to be started"
            )
        never.wait(GLANCE)


def warm_up(
    config: FtConfig, state: TrainingState, gradients: Gradients, loss: Loss, offload: Offload, replica: int
) -> None:
    """One whole step on the next batch, without an exchange, and the state as it was before.

    Memory is allocated, kernels are compiled or chosen, the data of the first batch is in the caches, and the inner
    group has its connections.
    """
    before, random = snapshot_of(state), torch.get_rng_state()
    for p in state.parameters:
        p.grad = None
    train_batch(config, state, loss, replica)
    offload.to_device()
    state.optimizer.step()
    offload.to_host()
    state.load(before)
    gradients.drop()
    torch.set_rng_state(random)
