"""A job of replicas of different width in one call: the quorum service, the ranks, and who looks after them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.resilience.supervising.incidents import Incident
from labkit.resilience.supervising.quorum_watch import QuorumWatch
from labkit.resilience.supervising.service_guard import GuardedService
from labkit.resilience.supervising.supervisor import Supervisor
from labkit.wire.faults import Fault
from labkit.world.job import plainly

from .config import NtpConfig
from .trainer import Attempt, Result, train

if TYPE_CHECKING:
    from labkit.world.job import Job, Run

BIRTH = 60.0  # seconds a rank may go without beginning anything, before it has joined the others


class NtpFailed(RuntimeError):
    """A job that no rank brought to its end. `run` has everything that is left."""

    def __init__(self, message: str, run: NtpRun):
        super().__init__(message)
        self.run = run


@dataclass
class NtpRun:
    """What a job left. results: by world rank, None where there is none. incidents: what broke. errors: in words."""

    config: NtpConfig
    run: Run
    incidents: list[Incident]
    errors: list[str]

    @property
    def results(self) -> list[Result | None]:
        return self.run.results

    @property
    def finished(self) -> list[Result]:
        """Of the ranks that came to the end."""
        return [r for r in self.results if r is not None and r.finished]

    @property
    def attempts(self) -> list[Attempt]:
        """All of one rank that was there from the beginning to the end, oldest first."""
        return max(self.finished, key=lambda r: len(r.attempts)).attempts

    @property
    def losses(self) -> list[float]:
        """By step: the mean loss of the whole batch."""
        return [a.loss for a in self.attempts if a.loss is not None]

    @property
    def widths(self) -> list[tuple[int, ...]]:
        """By step: how wide the replicas were that trained it."""
        return [a.widths for a in self.attempts if a.loss is not None]

    @property
    def weights(self) -> dict[str, Any]:
        """The whole model's, by name, at the end."""
        return next(r.weights for r in self.finished if r.weights is not None)

    def require(self) -> NtpRun:
        """This run; raises NtpFailed if no rank came to the end."""
        if not self.finished:
            why = [f"rank {f.rank}: {f.message}" for f in self.run.failures[-6:]] + self.errors
            raise NtpFailed("no rank came to the end of the job:\n" + "\n".join(why), self)
        return self

    def __repr__(self) -> str:
        return (f"NtpRun({'+'.join(map(str, self.config.widths))} ranks, {len(self.finished)} finished, "
                f"{len(self.incidents)} incidents, {self.run.seconds:.3f} s)")  # fmt: skip


class NtpJob:
    """A job that goes on: `job` (a `labkit.Job`) and its `supervisor`. End it by `wait` or `stop`."""

    def __init__(
        self, config: NtpConfig, owned: contextlib.ExitStack, job: Job, supervisor: Supervisor, watch: QuorumWatch
    ) -> None:
        self.config, self.job, self.supervisor, self.watch = config, job, supervisor, watch
        self._owned = owned

    def wait(self, timeout: float | None = None) -> NtpRun:
        """Until the job is over; nothing of it is left behind. TimeoutError leaves it running."""
        try:
            run = self.job.wait(timeout)
        except TimeoutError:
            raise
        except BaseException:
            self.stop()
            raise
        self.supervisor.stop()
        made = NtpRun(self.config, run, self.supervisor.incidents, self.supervisor.errors)
        self.stop()
        return made

    def stop(self) -> None:
        """End everything. May be called twice."""
        self._owned.close()

    def __enter__(self) -> NtpJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@plainly
def start_ntp(config: NtpConfig, steps: int, *, faults: Sequence[Fault] = (), **options: Any) -> NtpJob:
    """Start a process for each rank, which train `steps` steps, and what looks after them.

    A rank that is lost comes back after `config.repair_steps` steps, or never. faults: struck on the way. Other options
    are those of `labkit.start`.
    """
    import labkit

    limits, size = config.deadlines, sum(config.widths)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-ntp-", ignore_cleanup_errors=True))
        service = GuardedService(size, limits.join, join=limits.step, first=limits.step, heartbeat=limits.exchange)
        stack.callback(service.stop)
        first = {r: service.client.begin(r) for r in range(size)}
        watch = QuorumWatch(service.address, service.token)
        stack.callback(watch.stop)
        settings = {"timeout": max(limits.hang, BIRTH), "transport": "local", **options}
        job = labkit.start(
            _rank_main, size, config, service.address, service.token, steps, folder, on_failure="continue",
            faults=list(faults), **settings,
        )  # fmt: skip
        stack.callback(job.stop)
        supervisor = Supervisor(
            job, service.client, size, 1, hang=limits.hang, start=BIRTH,
            restarts=0 if config.repair_steps is None else 20, incarnations=first,
            mind=lambda lives: service.mind(lives, watch.last), joined=lambda *life: life in watch.lives,
        )  # fmt: skip
        supervisor.start()
        stack.callback(supervisor.stop)
        return NtpJob(config, stack.pop_all(), job, supervisor, watch)
    raise AssertionError("not reached")


@plainly
def run_ntp(config: NtpConfig, steps: int, *, faults: Sequence[Fault] = (), **options: Any) -> NtpRun:
    """Train to the end with whoever is there. The run is returned as it is; `.require()` raises if it failed."""
    with start_ntp(config, steps, faults=faults, **options) as job:
        return job.wait()


def _rank_main(group: Any, config: NtpConfig, address: Any, token: str, steps: int, folder: str) -> Result:
    return train(group, config, address, token, steps, folder=Path(folder))
