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

from labkit.cost.refuse import not_negative, one_of, positive, whole
from labkit.cost.simulators.fleet_runs import FleetRuns, simulate_fleet
from labkit.data.runs import FleetTrial, fleet_trials
from labkit.resilience.audit import Commit, read
from labkit.wire.errors import RefusedError

from .deadlines import Deadlines
from .ft_hsdp import FtConfig
from .supervising.run import FtJob, start_ft_hsdp

POLICIES = ("all wait", "others go on")
Strikes = list[tuple[float, int]]
GLANCE = 0.02  # seconds between two looks at the log before the first step
LEAST = 3  # commits that a step's usual time is taken from


@dataclass(frozen=True)
class Trial:
    """replicas of one rank each. step, repair: seconds of the two stand-ins. time: seconds of a run, from its first
    commit on. policy: "others go on" or "all wait". apart: a failure waits until the one before is over, and the end
    of the run until the last is. patience: seconds that the first commit and each of these returns are waited for, at
    most: a computer that is too busy ends the run without them, and not with an error (`lacks`)."""

    policy: str = "others go on"
    replicas: int = 4
    step: float = 0.1
    repair: float = 1.0
    time: float = 8.0
    apart: bool = False
    patience: float = 60.0

    def __post_init__(self) -> None:
        one_of(POLICIES, policy=self.policy)
        positive(step=self.step, time=self.time, patience=self.patience)
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
    def idle(self) -> str:
        """Why nothing can be counted here, as a clause; "" where it can."""
        count = len(self.commits)
        return "" if count >= LEAST else f"only {count} {'step was' if count == 1 else 'steps were'} committed"

    @property
    def usual(self) -> float:
        """The median time of a step, in seconds. Raises ValueError where the run has too few steps for one."""
        if self.idle:
            raise ValueError(self.idle)
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


def run_trials(plans: Sequence[tuple[Trial, Strikes]], tries: int = 1) -> list[Trained]:
    """Runs with these failures, side by side; each from its first commit on, for `trial.time` seconds.

    tries: how often a run is made in which too little happened, because the computer was busy with other things: after
    the first time by itself. What the last try lacks, `Trained.idle` and `lacks` say.
    """
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(max(1, len(plans))) as pool:
        jobs = []
        for trial, strikes in plans:
            jobs.append(TrialJob(trial, strikes))
            stack.callback(jobs[-1].stop)
        runs = list(pool.map(TrialJob.wait, jobs))
    for _ in range(tries - 1):
        wanting = [n for n, run in enumerate(runs) if (lacks(run) if run.trial.apart else run.idle)]
        for n in wanting:
            runs[n] = TrialJob(*plans[n]).wait()
    return runs


def far_apart(trial: Trial, strikes: int = 3) -> tuple[Trial, Strikes]:
    """A run to measure `Times` with: each failure is over before the next, and none is at a fixed place of a step."""
    whole(strikes=strikes)
    apart = trial.repair + 9 * trial.step + 1.0
    plan = [((n + 0.2) * apart + n / strikes * trial.step, n % trial.replicas) for n in range(strikes)]
    return replace(trial, time=strikes * apart, apart=True), plan


def lacks(run: Trained) -> str:
    """Why `times_of` cannot read this run, as a clause; "" where it can."""
    if run.idle or not run.strikes:
        return run.idle or "nobody was struck"
    gone = ((at, replica) for at, replica in run.strikes if _return(run.commits, at, replica) is None)
    return next((f"replica {r}, struck at {at:.2f} s, did not come back within the run" for at, r in gone), "")


def times_of(run: Trained) -> Times:
    """From a run with failures far apart. Means over its failures; raises ValueError with what it `lacks`."""
    if problem := lacks(run):
        raise ValueError(problem)
    usual = run.usual
    recovered, stalled, rejoined = [], [], []
    gaps = [(a, b) for (a, _), (b, _) in zip(run.commits, run.commits[1:], strict=False)]
    for at, replica in run.strikes:
        back = _return(run.commits, at, replica) or 0.0
        recovered.append(back - usual - at)
        around = [(b - a - usual) for a, b in gaps if b > at and a < back]
        stalled.append(around[0])
        rejoined.append(sum(around[1:]))
    if run.trial.policy == "all wait":
        recovery = statistics.fmean(recovered)
        return Times(usual, recovery, recovery, 0.0)
    mean = statistics.fmean
    return Times(usual, mean(recovered), max(0.0, mean(stalled)), max(0.0, mean(rejoined)))


def times_or_recorded(run: Trained) -> tuple[Times, str]:
    """`times_of`, or the recorded times of this policy where the run lacks them; and where they are from, in words."""
    if not (problem := lacks(run)):
        return times_of(run), "this run"
    x = fleet_trials().of(run.trial.policy)[0]
    return Times(x.usual, x.recovery, x.stall, x.rejoin), f"recorded, steps of {x.step:g} s: here {problem}"


def compared(run: Trained, apart: Trained) -> tuple[int, float, float, str]:
    """(failures, effective part as measured, the same as simulated with the times of `apart`, where they are from).

    Where one of the two lacks something, a recorded run of this policy takes their place.
    """
    if problem := run.idle or lacks(apart):
        x = fleet_trials().of(run.trial.policy)[0]
        return len(x.strikes), x.measured, simulated(x), f"recorded: here {problem}"
    said = predict(run.trial, times_of(apart), [run.strikes] * 2).effective.mean  # an estimate needs two
    return len(run.strikes), run.effective, said, "this run"


def _return(commits: Sequence[tuple[float, tuple[int, ...]]], at: float, replica: int) -> float | None:
    """When a replica that was struck at `at` had trained again: not by the step that was on its way just then."""
    gaps = zip(commits, commits[1:], strict=False)
    return next((b for (a, _), (b, who) in gaps if a > at and replica in who), None)


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
        """Strike at the moments of the plan, and return what was committed until the end.

        Raises RuntimeError if the job ends before its first commit."""
        try:
            zero = self._first_commit()
            if zero is None:
                return Trained(self.trial, [], [])
            done, late = Strikes(), 0.0
            ends = [at for at, _ in self.strikes[1:]] + [self.trial.time]
            for (at, replica), end in zip(self.strikes, ends, strict=True):
                time.sleep(max(0.0, zero + at + late - time.monotonic()))
                with contextlib.suppress(RefusedError):
                    self._job.job.kill(replica)
                done.append((time.monotonic() - zero, replica))
                if self.trial.apart:
                    back = self._back(replica, done[-1][0] + zero) + 3 * self.trial.step - zero
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
        except RefusedError:
            return []  # nobody has begun to write
        first: dict[tuple[int, int], Commit] = {}
        for x in lines:
            if isinstance(x, Commit) and ((x.step, x.quorum) not in first or x.at < first[x.step, x.quorum].at):
                first[x.step, x.quorum] = x
        return sorted((x.at, tuple(x.contributors)) for x in first.values())

    def _back(self, replica: int, struck: float) -> float:
        """When the replica that was struck trained again; `patience` seconds later at most."""
        while (now := time.monotonic()) < struck + self.trial.patience and not self._job.job.over:
            if (at := _return(self._commits(), struck, replica)) is not None:
                return at
            time.sleep(self.trial.step)
        return now

    def _first_commit(self) -> float | None:
        """When it was; None if `patience` ran out."""
        end = time.monotonic() + self.trial.patience
        while not (found := self._commits()):
            if self._job.job.over:
                raise RuntimeError(f"no step was committed: {self._job.supervisor.errors}")
            if time.monotonic() > end:
                return None
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
