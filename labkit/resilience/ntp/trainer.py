"""`train`: what every rank of a job with replicas of different width runs, and why none of its updates is torn.

Every rank is a member of the quorum for itself. Before each step it asks with whom to train; the answer names the ranks
that live, the same to all. When a rank is lost, the others form the replicas anew without it, one of them narrower, and
train the same step again.

An attempt at step s:

    join       whoever is there; a new quorum has a new number
    arrange    for a new number: groups, layouts and state for the ranks that are left, or are back (`state.py`)
    train      forward, backward, the sum of the gradients over the replicas (`sync.py`)
    agree      the mean loss, summed over all ranks. Who has it knows that every rank had its gradients
    update     each rank its own parts

While the state moves every rank keeps what it had. A barrier ends that: who is through it knows that every rank has
all it wants. If a rank is lost around its end, some take up the new part and others did not hear of the end; the next
quorum tells them that somebody has (`layout`, `pending`), and so they can, too. Else all keep the old one.

Where a rank may be lost in a step. Before `agree` is through on any rank, nobody has updated anything: the step is
trained again. After it, every rank has all its gradients, for else the sum would not have come off. So if one rank has
updated, all others can, whatever they saw of the end of the sum: the next quorum tells them (its version is one step
ahead of theirs), and they update before anything else. No update is applied by some and not by others.

The examples of a step have numbers, and are shared out anew for each quorum. So a step has the same batch whoever is
there, and the loss is that of a run without failures, to the rounding of sums in another order.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_reduce, barrier
from labkit.models.gpt import GPTConfig
from labkit.parallel.tensor.whole import whole_state
from labkit.resilience.errors import RECOVERABLE, Fatal, NoQuorum
from labkit.resilience.ft_hsdp.data import is_finished, write_finished
from labkit.resilience.quorum import Member, Quorum, QuorumClient
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .config import NtpConfig
from .replicas import Replicas
from .state import State

GLANCE = 0.01  # seconds between two looks at how far the others are, for a rank that is being repaired


@dataclass(frozen=True)
class Attempt:
    """One try of one step on one rank. widths: of the replicas. loss: of the whole batch; None without an update.

    why: what went wrong here. began, seconds: on this machine's monotonic clock. moved: bytes of state that arrived.
    """

    step: int
    quorum: int
    widths: tuple[int, ...]
    loss: float | None
    why: str
    began: float
    seconds: float
    moved: int


@dataclass
class Result:
    """What one rank did until the end. weights: the whole model's, by name, on the first rank of each replica."""

    rank: int
    incarnation: int
    steps: int
    attempts: list[Attempt] = field(default_factory=list)
    weights: dict[str, Tensor] | None = None
    finished: bool = False


def train(group: Group, config: NtpConfig, address: Any, token: str, steps: int, *, folder: str | Path) -> Result:
    """Train `steps` steps as one rank of the world `group`, with the ranks that are there.

    address, token: of a quorum service for as many replicas as the world has ranks. folder: shared by all ranks, where
    the mark lies that the run is over. Raises what is wrong with this rank, and RefusedError on every rank when a part
    of the state was on no other rank than those that were lost.
    """
    _check(group, config, steps)
    life = _Life(group, config, address, token, steps, Path(folder))
    with life.here:
        if not life.repaired() or not life.check_in():
            return life.result()
        while not life.over:
            life.attempt()
        return life.result()


def _check(group: Group, config: NtpConfig, steps: int) -> None:
    if group.size != sum(config.widths):
        raise RefusedError(
            f"widths {list(config.widths)} are {sum(config.widths)} ranks, and this world has {group.size}"
        )
    group.context.transport.must_be_rebuildable("nonuniform training")
    if type(steps) is not int or steps < 0:
        raise RefusedError(f"steps={steps!r}: needs a whole number, 0 or more")


class _Life:
    """One rank from its beginning to its end. ready: (step, quorum) whose gradients are all here, not yet applied."""

    def __init__(self, group: Group, config: NtpConfig, address: Any, token: str, steps: int, folder: Path) -> None:
        self.config, self.steps, self.folder = config, steps, folder
        self.group = self.world = group
        self.run = hashlib.sha256(token.encode()).hexdigest()[:16]
        self.client = QuorumClient(address, token, timeout=config.deadlines.join, code=_code(config, steps))
        self.here = contextlib.ExitStack()
        self.here.callback(self.client.close)
        self.rank, self.incarnation = group.rank, 0
        self.state = State(config)
        self.quorum: Quorum | None = None  # that the groups were formed for
        self.ready: tuple[int, int] | None = None
        self.weights: dict[str, Tensor] | None = None
        self.failed, self.tries, self.over, self.finished = False, 0, False, False
        self.attempts: list[Attempt] = []

    # -- coming ------------------------------------------------------------------------------------------------

    def repaired(self) -> bool:
        """Wait until the repair is over, if this rank was lost. False if the run is over first."""
        status = self.client.status()
        if not status["quorum"] or not self.config.repair_steps:
            return True
        begun = status["quorum"]["step"]
        while True:
            if is_finished(self.folder, self.run):
                return False
            quorum = self.client.status()["quorum"]
            if quorum is None or quorum["step"] >= begun + self.config.repair_steps:
                return True
            time.sleep(GLANCE)

    def check_in(self) -> bool:
        """Tell the service that this rank lives."""
        if is_finished(self.folder, self.run):
            return False
        self.incarnation = self.client.register(self.rank, 0, 1, timeout=self.config.deadlines.hang).incarnation
        beat = self.client.beat(self.rank, self.incarnation, every=self.config.beat)
        self.here.callback(beat.stop)
        return True

    # -- an attempt --------------------------------------------------------------------------------------------

    def attempt(self) -> None:
        """Try the next step with whoever is there."""
        began, moved = time.monotonic(), self.state.moved
        quorum = self._join()
        if quorum is None:
            return
        loss, why = None, ""
        try:
            self._catch_up(quorum)
            if self.quorum is None or quorum.id != self.quorum.id:
                self._arrange(quorum)
            if quorum.step >= self.steps:
                self._finish()
                return
            self.group.step(quorum.step)
            loss = self._step(quorum)
        except RECOVERABLE as error:
            why = f"{type(error).__name__}: {error}"
            self.world.leave()  # who waits for this rank learns of it at once
        widths = tuple(self.state.part.replicas.widths) if self.state.part else ()
        self.attempts.append(Attempt(quorum.step, quorum.id, widths, loss, why, began, time.monotonic() - began,
                                     self.state.moved - moved))  # fmt: skip
        self.failed = bool(why)
        self.tries = self.tries + 1 if why else 0
        if self.tries >= self.config.max_attempts:
            raise Fatal(f"rank {self.rank} tried step {quorum.step} {self.tries} times in vain; the last time: {why}")

    def _join(self) -> Quorum | None:
        """The ranks that live; None if there is no answer yet, or the run is over."""
        state = self.state
        if state.step < self.steps and is_finished(self.folder, self.run):
            self.over = True
            return None
        data = {"layout": state.part and state.part.told(), "pending": state.pending and state.pending.told(),
                "ready": self.ready}  # fmt: skip
        try:
            quorum = self.client.join(
                self.rank, self.incarnation, state.step, lineage=state.lineage, failed=self.failed,
                shrink_only=self.failed, data=data, timeout=self.config.deadlines.join,
            )  # fmt: skip
        except NoQuorum:
            return None
        if state.step < self.steps and is_finished(self.folder, self.run):
            self.over = True
            return None
        return quorum

    def _catch_up(self, quorum: Quorum) -> None:
        """Do what another rank has done already with the same in hand: take up a part, apply an update."""
        me = quorum.member(self.rank)
        if _can_take_up(me, quorum):
            self.state.take_up(quorum.step, quorum.lineage)
        elif _can_follow(me, quorum):
            assert self.ready is not None
            self._update(*self.ready)
        self.state.pending = self.ready = None

    def _arrange(self, quorum: Quorum) -> None:
        """Groups, layouts and state for the members of `quorum`."""
        self.quorum, state = None, self.state
        self.world = self.world.rebuild(list(quorum.replicas), epoch=quorum.id)
        with self.world.within(self.config.deadlines.step), self.group.span("arrange"):
            try:
                state.prepare(quorum.id, self.config.home.only(quorum.replicas), self.world, _held(quorum))
            except RefusedError:  # what is on no rank any more does not come back with one: nobody need wait for it
                write_finished(self.folder, self.run, state.step)
                raise
            barrier(self.world)
        state.take_up(quorum.step, quorum.lineage)
        self.quorum = quorum

    def _step(self, quorum: Quorum) -> float:
        """Train, agree, update."""
        config, state = self.config, self.state
        assert state.part is not None
        replicas, model = state.part.replicas, state.part.model
        replica, position = replicas.place(self.rank)
        shares = config.shares(replicas)
        first = quorum.step * config.batch + sum(shares[:replica])
        with self.world.within(config.deadlines.step):
            numbers = torch.arange(first, first + shares[replica])
            for p in model.parameters():
                p.grad = None
            with self.group.span("forward"):
                loss = config.loss(model, numbers, self.group.device)
            with self.group.span("backward"):
                loss.backward()
            mine = float(loss.detach()) * shares[replica] / config.batch if position == 0 else 0.0
            total = torch.tensor([mine], dtype=torch.float64, device=self.group.device)
            self.ready = (quorum.step, quorum.id)
            with self.group.span("agree"):
                all_reduce(total, self.world)
        with self.group.span("update"):
            self._update(*self.ready)
        self.ready = None
        return float(total)

    def _update(self, step: int, quorum: int) -> None:
        assert self.state.part is not None
        self.state.part.optimizer.step()
        self.state.step, self.state.lineage = step + 1, quorum

    # -- the end -----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        part = self.state.part
        assert part is not None
        weights = whole_state(part.model, part.inner)
        self.weights = weights if part.replicas.place(self.rank)[1] == 0 else None
        write_finished(self.folder, self.run, self.steps)
        self.over = self.finished = True

    def result(self) -> Result:
        """What is to be brought home; the first rank of each replica brings the weights."""
        if self.finished:
            self.client.leave(self.rank, self.incarnation)
        return Result(self.rank, self.incarnation, self.state.step, self.attempts, self.weights, self.finished)


def _can_take_up(member: Member, quorum: Quorum) -> bool:
    """Whether another rank has taken up what this member has pending."""
    pending = member.data["pending"]
    return bool(pending) and any(m.data["layout"] and m.data["layout"][0] == pending[0] for m in quorum.members)


def _can_follow(member: Member, quorum: Quorum) -> bool:
    """Whether a member that is a step behind holds all gradients of that step."""
    ready = member.data["ready"]
    return bool(ready) and member.step == ready[0] and quorum.version == (ready[0] + 1, ready[1])


def _held(quorum: Quorum) -> dict[int, Replicas]:
    """By world rank, in whose layouts it holds the state that `quorum` begins with. Empty: nothing was trained yet."""
    if quorum.version == (0, 0):
        return {}
    found = {}
    for m in quorum.members:
        taken = _can_take_up(m, quorum)
        if taken or m.version == quorum.version or _can_follow(m, quorum):
            _, members = m.data["pending" if taken else "layout"]
            found[m.replica] = Replicas(tuple(tuple(ranks) for ranks in members))
    return found


def _code(config: NtpConfig, steps: int) -> str:
    model = config.model if isinstance(config.model, GPTConfig) else ""  # a function has no name that all must agree on
    words = (model, config.widths, config.batch, config.seed, str(config.dtype), config.bucket_bytes, steps)
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]
