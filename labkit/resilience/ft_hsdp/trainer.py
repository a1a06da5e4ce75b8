"""`train`: what every rank of a fault-tolerant run does, from its first line to its result."""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import Any

import torch

from labkit.resilience.audit import AuditLog
from labkit.resilience.errors import Fatal
from labkit.resilience.ftar.queued import Ftar
from labkit.resilience.quorum import NoQuorum, QuorumClient
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .config import Build, FtConfig, built
from .data import is_finished, write_finished
from .first_step import wait_for_peers, warm_up
from .gradients import Gradients
from .life import Incarnation, Outcome, Phases
from .offload import Offload
from .protocol import FINISHED, Decision
from .result import Attempt, Result
from .rounds import next_decision
from .server import StateServer
from .staging import Stager
from .state import TrainingState
from .step import attempt, persist


def train(
    group: Group, config: FtConfig, quorum_address: Any, token: str, build: Build, steps: int, *, log_dir: str | Path
) -> Result:
    """Train `steps` steps as one rank of the world `group`, and go on when other replicas break.

    build(inner_group, seed) -> (model, optimizer, loss): the same weights for the same seed, whatever the replica. A
    third parameter, if it is named `replica`, is told which one it is (to write a log, to choose a device): None for a
    spare, which does not know yet, and in `replay`, which does the steps of all. What is trained may not depend on it.
    The model may be plain (one rank), or cut over the inner group. loss(model, numbers) -> the mean loss of these
    samples (int64, all of the replica's batch; what part of it a rank computes is up to the model), and nothing of it
    may depend on anything but the weights, the numbers, and torch's random numbers. The optimizer is over all of
    `model.parameters()`; `optimizer.step()` must not communicate.
    quorum_address, token: of the quorum service; states are given only to who knows the token. log_dir: a folder that
    all replicas share, for audit logs, loader states, and the mark that the run is over.

    Raises what is wrong with this rank or its replica: its supervisor starts the whole replica again.
    """
    _check(group, config, steps)
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    run = hashlib.sha256(token.encode()).hexdigest()[:16]
    unit = group.rank // config.ranks
    members = range(unit * config.ranks, (unit + 1) * config.ranks)
    if is_finished(folder, run):
        return Result(unit, group.rank % config.ranks, 0, 0, False, "", (0,) * config.replicas)
    began = time.monotonic()
    wait_for_peers(group, members, config.deadlines.hang)
    with contextlib.ExitStack() as stack:
        life = _prepare(group, group.subgroup(list(members)), config, quorum_address, token, build, steps, folder, run,
                        stack)  # fmt: skip
        first_step = time.monotonic() - began
        if not _check_in(life, unit, stack):
            return _result(life, False, first_step)
        finished = _loop(life)
        persist(life, writes=False)
        return _result(life, finished, first_step)


def _check(group: Group, config: FtConfig, steps: int) -> None:
    if group.size != config.world_size or list(group.global_ranks) != list(range(group.size)):
        raise RefusedError(
            f"train needs the world: {config.replicas} replicas and {config.spares} spares of {config.ranks} "
            f"ranks are {config.world_size} processes, and this group has {group.size}"
        )
    group.context.transport.must_be_rebuildable("FT-HSDP")
    if type(steps) is not int or steps < 0:
        raise RefusedError(f"steps={steps!r}: needs a whole number, 0 or more")


def _prepare(
    group: Group, inner: Group, config: FtConfig, address: Any, token: str, build: Build, steps: int, folder: Path,
    run: str, stack: contextlib.ExitStack,
) -> Incarnation:  # fmt: skip
    """All that can be done before anybody waits for this replica."""
    with group.span("first step"):
        unit = group.rank // config.ranks
        model, optimizer, loss = built(build, inner, config, unit if unit < config.replicas else None)
        state = TrainingState(model, optimizer, config.replicas)
        # a group of this rank alone: what `ftar` leaves must not be the inner group's
        ftar = Ftar(
            group.subgroup([group.rank]), config.deadlines, chunk_bytes=config.chunk_bytes, chunks=config.chunks
        )
        gradients = Gradients(state.parameters, config.bucket_bytes, ftar.all_reduce)
        offload = Offload(optimizer, config.offload_optimizer)
        rates = [g["lr"] for g in optimizer.param_groups]
        state.sum_up()
        if config.checkpoint is not None:
            config.checkpoint.restore(inner, state)
        offload.to_host()
        if config.warm_up:
            warm_up(config, state, gradients, loss, offload, unit % config.replicas)
        server = StateServer(token, patience=0.8 * config.deadlines.message, around=lambda: group.span("serve"))
        stack.callback(server.close)
        stager = Stager(state, server, group.device)
    client = QuorumClient(address, token, timeout=config.deadlines.join, code=_code(config, steps, state))
    stack.callback(client.close)
    return Incarnation(
        config,
        steps,
        group,
        inner,
        ftar,
        state,
        gradients,
        loss,
        rates,
        offload,
        server,
        stager,
        client,
        folder,
        run,
        token,
    )


def _code(config: FtConfig, steps: int, state: TrainingState) -> str:
    """What must be the same in all replicas; shapes are not in it, for ranks of one replica may hold unequal parts."""
    model = [(name, str(p.dtype)) for name, p in zip(state.names, state.parameters, strict=True)]
    words = (config.replicas, config.ranks, config.batch, config.seed, config.intervention, config.bucket_bytes,
             config.chunk_bytes, config.chunks, config.sum_every, steps, type(state.optimizer).__name__,
             model)  # fmt: skip
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def _check_in(life: Incarnation, unit: int, stack: contextlib.ExitStack) -> bool:
    """Take a place and check in with the other ranks of the replica. False if the run ended before there was one."""
    config, incarnation = life.config, None
    life.replica = unit
    if config.spares:
        place = _stand_by(life)
        if place is None:
            return False
        life.replica, incarnation = place["replica"], place.get("incarnation")
    mine = {"world": life.group.rank, "server": life.server.address}
    seen = life.client.register(life.replica, life.rank, config.ranks, mine, incarnation=incarnation,
                                timeout=config.deadlines.hang)  # fmt: skip
    life.incarnation = seen.incarnation
    life.told = {"world": [p["world"] for p in seen.peers], "servers": [p["server"] for p in seen.peers]}
    if life.leads:
        stack.callback(life.client.beat(life.replica, life.incarnation, every=config.beat).stop)
    life.log = AuditLog(life.folder, life.replica, life.rank, life.incarnation)
    stack.callback(life.log.close)
    life.log.start(life.state.step, life.state.positions, life.state.checksum)
    return True


def _stand_by(life: Incarnation) -> dict[str, Any] | None:
    """Wait for a place: all first-step work is done. None when the run is over."""
    while True:
        try:
            return life.client.standby(life.group.rank, timeout=life.config.deadlines.message)
        except NoQuorum:
            if is_finished(life.folder, life.run):
                return None


def _loop(life: Incarnation) -> bool:
    """Attempt after attempt until all steps are done. False if the others were through before."""
    while True:
        phases = Phases(life.group)
        decision = next_decision(life, phases)
        if decision.over:
            return False
        if decision.quorum is None:  # nobody to train with yet: ask again
            continue
        life.group.step(decision.quorum.step)
        outcome = attempt(life, decision.quorum, phases)
        _note(life, decision, outcome, phases)
        if outcome.role == FINISHED and not decision.quorum.recovering:
            if life.leads:
                write_finished(life.folder, life.run, life.steps)
                life.client.leave(life.replica, life.incarnation)
            return True


def _note(life: Incarnation, decision: Decision, outcome: Outcome, phases: Phases) -> None:
    """Remember how it went."""
    quorum = outcome.quorum
    life.attempts.append(Attempt(
        quorum.step, quorum.id, quorum.replicas, tuple(m.replica for m in quorum.healthy), outcome.role,
        outcome.committed, outcome.why, outcome.loss, phases.began, dict(phases.seconds),
    ))  # fmt: skip
    life.failed = bool(outcome.why)
    life.tries = life.tries + 1 if life.failed else 0
    if life.tries >= life.config.max_attempts:
        raise Fatal(
            f"replica {life.replica} rank {life.rank} tried step {quorum.step} {life.tries} times in vain; the "
            f"last time: {outcome.why}"
        )


def _result(life: Incarnation, finished: bool, first_step: float) -> Result:
    state, config = life.state, life.config
    weights = None
    if config.keep_weights:
        weights = {n: p.detach().to("cpu", copy=True) for n, p in zip(state.names, state.parameters, strict=True)}
    if torch.cuda.is_available() and life.group.device.type == "cuda":
        torch.cuda.synchronize(life.group.device)
    return Result(
        life.replica, life.rank, life.incarnation, state.step, finished, state.checksum, tuple(state.positions),
        life.attempts, {"fetched": life.fetched, "served": life.server.served}, first_step, weights,
        life.unsaved,
    )  # fmt: skip
