"""HSDP without fault tolerance: the same training, for comparison. Without faults FT-HSDP equals it to the bit.

No quorum, no votes, no deadlines, no audit, no server: replicas that all have to live. Gradients take the same way
through the same buckets, and are added up in the same order.
"""

from __future__ import annotations

from typing import Any

from labkit import collectives
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .config import Build, FtConfig, built
from .gradients import Gradients
from .life import Phases
from .offload import Offload
from .protocol import HEALTHY
from .result import Attempt, Result
from .state import TrainingState
from .update import apply_update, train_batch


def plain_hsdp(group: Group, config: FtConfig, build: Build, steps: int, *, algorithm: str = "ring") -> Result:
    """Train `steps` steps on the world `group` as `train` would, if nothing ever broke. Arguments as there.

    algorithm: of the all-reduce between replicas. "ring" adds up in the order of FTAR; others round otherwise.
    """
    if group.size != config.replicas * config.ranks:
        raise RefusedError(
            f"plain_hsdp needs {config.replicas} x {config.ranks} processes, and this group has {group.size}"
        )
    replica, rank = divmod(group.rank, config.ranks)
    inner = group.subgroup([replica * config.ranks + i for i in range(config.ranks)])
    across = group.subgroup([r * config.ranks + rank for r in range(config.replicas)])
    model, optimizer, loss_of = built(build, inner, config, replica)
    state = TrainingState(model, optimizer, config.replicas)
    pending: list[Any] = []

    def send(bucket: Any) -> None:
        pending.append(collectives.all_reduce(bucket, across, algorithm=algorithm, async_op=True))

    gradients = Gradients(state.parameters, config.bucket_bytes, send)
    offload = Offload(optimizer, config.offload_optimizer)
    offload.to_host()
    rates = [g["lr"] for g in optimizer.param_groups]
    everyone = tuple(range(config.replicas))
    attempts = []
    for step in range(steps):
        phases = Phases(group)
        group.step(step)
        gradients.begin()
        value = train_batch(config, state, loss_of, replica, phases.phase)
        with phases.phase("exchange"):
            gradients.end(value, 1.0)
            for handle in pending:
                handle.wait()
            pending.clear()
        with phases.phase("commit"):
            mean = apply_update(config, state, gradients, offload, rates, everyone)
        attempts.append(
            Attempt(step, 0, everyone, everyone, HEALTHY, True, "", mean, phases.began, dict(phases.seconds))
        )
    weights = None
    if config.keep_weights:
        weights = {n: p.detach().to("cpu", copy=True) for n, p in zip(state.names, state.parameters, strict=True)}
    return Result(replica, rank, 0, state.step, True, state.sum_up(), tuple(state.positions), attempts, weights=weights)
