"""One batch of a replica, and one update: the same code for `train`, for plain HSDP and for a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from .config import FtConfig
from .data import draw_from, numbers
from .gradients import Gradients
from .learning_rate import factor, set_rates
from .offload import Offload
from .state import TrainingState


def train_batch(
    config: FtConfig, state: TrainingState, loss_of: Callable[..., Any], replica: int,
    phase: Callable[[str], Any] = lambda name: contextlib.nullcontext(),
) -> float:  # fmt: skip
    """Forward and backward on the next samples of a replica's stream; returns the loss. Gradients add up in `.grad`."""
    position = state.positions[replica]
    with phase("forward"):
        draw_from(config.seed, replica, position)
        loss = loss_of(state.model, numbers(replica, position, config.batch, config.replicas))
    with phase("backward"):
        loss.backward()
        return float(loss.detach())


def apply_update(
    config: FtConfig, state: TrainingState, gradients: Gradients, offload: Offload, rates: Sequence[float],
    contributors: Sequence[int],
) -> float:  # fmt: skip
    """The update of the summed gradients of `contributors`; returns their mean loss. Does not touch the checksum.

    rates: of the optimizer's groups as built, where the configuration names none.
    """
    loss, trained = gradients.sums()
    gradients.scale(1.0 / trained)
    rate = None if config.learning_rate is None else config.learning_rate(state.step)
    change = factor(config.intervention, len(contributors), config.replicas)
    set_rates(state.optimizer, [(base if rate is None else rate) * change for base in rates])
    offload.to_device()
    state.optimizer.step()
    offload.to_host()
    for replica in contributors:
        state.positions[replica] += config.batch
    state.step += 1
    return loss / trained
