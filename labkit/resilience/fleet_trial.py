"""A small fleet that fails by the clock on the wall: real processes, to check `cost.simulate_fleet` against.

Replicas of FT-HSDP train. A step is a stand-in kernel of a fixed length, and a repair is a stand-in as well: new
processes wait before they build their model. So hours become seconds, and a rank at work takes no processor from the
others. Failures are real: at drawn moments all ranks of a replica are killed. Two policies run on the same system:
replicas go on without the lost one, or all wait until it is back, as in a restart of everything.

The simulator needs a few times of the system. `times_of` takes them from a run with failures far apart, as the FT-HSDP
paper does (arXiv 2602.00277, section 6.1), and `predict` computes other runs with them.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.cost.fleet_runs import FleetRuns, simulate_fleet
from labkit.cost.refuse import not_negative, one_of, positive, whole
from labkit.data.runs import FleetTrial
from labkit.resilience.audit import Commit, read
from labkit.wire.errors import Refused

from .deadlines import Deadlines
from .ft_hsdp import FtConfig
from .supervising.run import FtJob, start_ft_hsdp

POLICIES = ("all wait", "others go on")
Strikes = list[tuple[float, int]]
GLANCE = 0.02  # seconds between two looks at the log before the first step
BIRTH = 60.0  # seconds until the first step, at most


@dataclass(frozen=True)
class Trial:
    """replicas of one rank each. step, repair: seconds of the two stand-ins. time: seconds of a run, from its first
    commit on. policy: "others go on" or "all wait". apart: a failure waits until the one before is over, and the end
    of the run until the last is, however slow the computer."""

    policy: str = "others go on"
    replicas: int = 4
    step: float = 0.1
    repair: float = 1.0
    time: float = 8.0
    apart: bool = False

    def __post_init__(self) -> None:
        one_of(POLICIES, policy=self.policy)
        positive(step=self.step, time=self.time)
        not_negative(repair=self.repair)
        whole(replicas=self.replicas)
        if self.replicas < 2:
            raise ValueError("replicas must be at least 2: who comes back takes the state from another one")


@dataclass(frozen=True)
class Times:
    """What the simulator is told, in seconds. usual: a step. recovery: from a failure until the replica trains again.
    stall: what the others stand still for at a failure. rejoin: and when it is back."""

    usual: float
    recovery: float
    stall: float
    rejoin: float


@dataclass(frozen=True)
class Trained:
    """strikes: (seconds since the first commit, replica) as they happened. commits: (seconds, replicas that trained)
    of each committed step."""

    trial: Trial
    strikes: Strikes
    commits: list[tuple[float, tuple[int, ...]]]

    @property
    def usual(self) -> float:
        """The median time of a step, in seconds."""
        times = [at for at, _ in self.commits]
        return statistics.median(b - a for a, b in zip(times, times[1:], strict=False))

    @property
    def effective(self) -> float:
        """Measured: what was trained in `trial.time`, over what all replicas would have trained in usual steps."""
        done = sum(len(who) for at, who in self.commits if 0 < at <= self.trial.time)
        return done * self.usual / (self.trial.replicas * self.trial.time)


def draw_strikes(trial: Trial, every: float, seed: int = 0) -> Strikes:
    """Failures at a constant rate, one in `every` seconds of the fleet; each hits a replica by chance."""
    positive(every=every)
    dice, found, now = random.Random(seed), Strikes(), 0.0
    while (now := now + dice.expovariate(1 / every)) < trial.time:
        found.append((now, dice.randrange(trial.replicas)))
    return found


def run_trials(plans: Sequence[tuple[Trial, Strikes]]) -> list[Trained]:
    """Runs with these failures, side by side; each from its first commit on, for `trial.time` seconds."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(max(1, len(plans))) as pool:
        jobs = []
        for trial, strikes in plans:
            jobs.append(TrialJob(trial, strikes))
            stack.callback(jobs[-1].stop)
        return list(pool.map(TrialJob.wait, jobs))


def far_apart(trial: Trial, strikes: int = 3) -> tuple[Trial, Strikes]:
    """A run to measure `Times` with: each failure is over before the next, and none is at a fixed place of a step."""
    whole(strikes=strikes)
    apart = trial.repair + 9 * trial.step + 1.0
    plan = [((n + 0.2) * apart + n / strikes * trial.step, n % trial.replicas) for n in range(strikes)]
    return replace(trial, time=strikes * apart, apart=True), plan


def times_of(run: Trained) -> Times:
    """From a run with failures far apart. Means over its failures; raises ValueError if one did not come back."""
    usual = run.usual
    recovered, stalled, rejoined = [], [], []
    gaps = [(a, b, who) for (a, _), (b, who) in zip(run.commits, run.commits[1:], strict=False)]
    for at, replica in run.strikes:
        back = next((b for a, b, who in gaps if a > at and replica in who), None)
        if back is None:
            raise ValueError(f"replica {replica}, struck at {at:.2f} s, did not come back within the run")
        recovered.append(back - usual - at)
        around = [(b - a - usual) for a, b, _ in gaps if b > at and a < back]
        stalled.append(around[0])
        rejoined.append(sum(around[1:]))
    if run.trial.policy == "all wait":
        recovery = statistics.fmean(recovered)
        return Times(usual, recovery, recovery, 0.0)
    mean = statistics.fmean
    return Times(usual, mean(recovered), max(0.0, mean(stalled)), max(0.0, mean(rejoined)))


def predict(trial: Trial, times: Times, strikes: Sequence[Strikes]) -> FleetRuns:
    """What the simulator says of runs with these failures. Where all wait, they are one replica to it."""
    alone = trial.policy == "all wait"
    given = [[(at, 0 if alone else replica) for at, replica in one] for one in strikes]
    count = 1 if alone else trial.replicas
    return simulate_fleet(trial.time, times.recovery, times.stall, count, times.rejoin, time=trial.time, strikes=given)


def simulated(x: FleetTrial) -> float:
    """What the simulator says of a stored run, with that run's own failures: its effective part of the time."""
    trial = Trial(x.policy, x.replicas, x.step, x.repair, x.time)
    twice = [list(x.strikes)] * 2  # an estimate needs two
    return predict(trial, Times(x.usual, x.recovery, x.stall, x.rejoin), twice).effective.mean


class TrialJob:
    """A run that goes on. Nothing of it is left behind after `wait` or `stop`."""

    def __init__(self, trial: Trial, strikes: Strikes) -> None:
        self.trial, self.strikes = trial, strikes
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-trial-"))
            limits = Deadlines.for_step(trial.step)
            needed = trial.replicas if trial.policy == "all wait" else 1
            config = FtConfig(trial.replicas, deadlines=limits, join_wait=limits.message, beat=0.2, max_attempts=1000,
                              min_replicas=needed, sum_every=1000, evict=0)  # fmt: skip
            (Path(self._folder) / "log").mkdir()
            (Path(self._folder) / "born").mkdir()
            self._job: FtJob = start_ft_hsdp(
                config, partial(_build, trial=trial, born=f"{self._folder}/born"), 10**6,
                log_dir=f"{self._folder}/log", restarts=1000,
            )  # fmt: skip
            stack.callback(self._job.stop)
            self._owned = stack.pop_all()

    def wait(self) -> Trained:
        """Strike at the moments of the plan, and return what was committed until the end."""
        try:
            zero = self._first_commit()
            done, late = Strikes(), 0.0
            ends = [at for at, _ in self.strikes[1:]] + [self.trial.time]
            for (at, replica), end in zip(self.strikes, ends, strict=True):
                time.sleep(max(0.0, zero + at + late - time.monotonic()))
                with contextlib.suppress(Refused):
                    self._job.job.kill(replica)
                done.append((time.monotonic() - zero, replica))
                if self.trial.apart:
                    back = self._back(replica, time.monotonic()) + 3 * self.trial.step - zero
                    late = max(late, back - end)
            trial = replace(self.trial, time=self.trial.time + late)
            time.sleep(max(0.0, zero + trial.time + 2 * trial.step - time.monotonic()))
            return Trained(trial, done, [(at - zero, who) for at, who in self._commits()])
        finally:
            self.stop()

    def stop(self) -> None:
        """End everything. May be called twice."""
        self._owned.close()

    def _commits(self) -> list[tuple[float, tuple[int, ...]]]:
        """(time, replicas that trained) of each committed step, by the replica that was the first to commit it."""
        try:
            lines, _ = read(f"{self._folder}/log")
        except Refused:
            return []  # nobody has begun to write
        first: dict[tuple[int, int], Commit] = {}
        for x in lines:
            if isinstance(x, Commit) and ((x.step, x.quorum) not in first or x.at < first[x.step, x.quorum].at):
                first[x.step, x.quorum] = x
        return sorted((x.at, tuple(x.contributors)) for x in first.values())

    def _back(self, replica: int, struck: float) -> float:
        """When the replica that was struck trained again; `BIRTH` seconds later at most."""
        while (now := time.monotonic()) < struck + BIRTH and not self._job.job.over:
            for at, who in self._commits():
                if at > struck and replica in who:
                    return at
            time.sleep(self.trial.step)
        return now

    def _first_commit(self) -> float:
        end = time.monotonic() + BIRTH
        while not (found := self._commits()):
            if time.monotonic() > end or self._job.job.over:
                raise RuntimeError(f"no step was committed: {self._job.supervisor.errors or 'it took too long'}")
            time.sleep(GLANCE)
        return found[0][0]


def _build(inner: Any, seed: int, *, trial: Trial, born: str) -> tuple[Any, Any, Any]:
    """A small model whose step takes `trial.step` seconds; who was there before waits for its repair first."""
    mine = Path(born) / str(inner.global_ranks[inner.rank])
    if mine.exists():
        time.sleep(trial.repair)
    mine.touch()
    torch.manual_seed(seed)
    model = nn.Linear(16, 16)

    def loss(model: nn.Module, numbers: Tensor) -> Tensor:
        with inner.compute(trial.step):
            x = torch.sin(numbers[:, None] * torch.arange(1.0, 17.0))
            return nn.functional.mse_loss(model(x), x)

    return model, torch.optim.SGD(model.parameters(), lr=1e-2), loss
