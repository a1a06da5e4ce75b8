"""A fault-tolerant run in one call: the service, the ranks, their supervisor, and the audit at the end."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.resilience.audit import Commit, Line, check, read
from labkit.resilience.ft_hsdp.data import read_quorums
from labkit.wire.errors import RefusedError
from labkit.wire.faults import Fault
from labkit.world.job import plainly

from .incidents import Incident, follow_up, stalls
from .outcome import FtRun, RunFailed
from .quorum_watch import QuorumWatch, noted
from .service_guard import GuardedService
from .supervisor import Supervisor

if TYPE_CHECKING:
    from labkit.resilience.ft_hsdp import FtConfig
    from labkit.world.job import Job, Run

__all__ = ["FtJob", "FtRun", "RunFailed", "run_ft_hsdp", "start_ft_hsdp"]

BIRTH = 60.0  # seconds a rank may go without beginning anything, before its replica has joined the others


def _rank_main(
    group: Any, config: Any, address: Any, token: str, build: Callable[..., Any], steps: int, log_dir: str
) -> Any:  # fmt: skip
    from labkit.resilience.ft_hsdp import train

    return train(group, config, address, token, build, steps, log_dir=log_dir)


class FtJob:
    """A fault-tolerant run that goes on: `job` (a `labkit.Job`) and its `supervisor`. End it by `wait` or `stop`.

    outcome: what `wait` returned, once it has: there before the folder of the log goes.
    """

    def __init__(self, config: FtConfig, steps: int, log_dir: Path, owned: contextlib.ExitStack,
                 job: Job, supervisor: Supervisor, watch: QuorumWatch, service: GuardedService):  # fmt: skip
        self.config, self.steps, self.log_dir = config, steps, log_dir
        self.job, self.supervisor, self.watch, self.service = job, supervisor, watch, service
        self._owned = owned
        self.outcome: FtRun | None = None

    def wait(self, timeout: float | None = None) -> FtRun:
        """Until the run is over; whatever happens, nothing of it is left behind. TimeoutError leaves it running."""
        try:
            run = self.job.wait(timeout)
        except TimeoutError:
            raise
        except BaseException:
            self.stop()
            raise
        try:
            self.outcome = self._made(run)
            return self.outcome
        finally:
            self.stop()

    def stop(self) -> None:
        """End everything. May be called twice."""
        self._owned.close()

    def __enter__(self) -> FtJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _made(self, run: Run) -> FtRun:
        supervisor = self.supervisor
        survivors = supervisor.survivors()
        supervisor.stop()
        self.watch.catch_up()
        lines: list[Line] = []
        audit = None
        if any(self.log_dir.glob("audit-*.jsonl")):
            lines, torn = read(self.log_dir)
            done = {(r.replica, r.incarnation) for r in run.results if r is not None and r.finished}
            ended = [s for s in survivors if s in done] or None
            issued = self.watch.issued()
            if self.service.replaced:  # while another service took its place, quorums were issued that nobody heard of
                steps = {(c.quorum, c.step) for c in lines if isinstance(c, Commit)}
                issued = noted(read_quorums(self.log_dir), steps) | issued
            audit = check(lines, ranks=self.config.ranks, steps=self.steps, batch=self.config.batch, torn=torn,
                          survivors=ended, quorums=issued)  # fmt: skip
        follow_up(supervisor.incidents, lines, supervisor.zero)
        still = stalls(supervisor.incidents, lines, supervisor.zero)
        return FtRun(self.config, run, audit, supervisor.incidents, still, lines, supervisor.errors, self.watch.rounds,
                     supervisor.zero, list(self.job.pids))  # fmt: skip


def _writable(folder: Path) -> Path:
    """The folder, made if need be; Refused if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(4096))
            probe.flush()
    except OSError as why:
        raise RefusedError(
            f"log_dir={str(folder)!r} cannot be written: {why.strerror}. The audit log needs a folder with "
            "room in which this process may write"
        ) from why
    if any(folder.glob("audit-*.jsonl")):
        raise RefusedError(f"log_dir={str(folder)!r} holds the audit log of another run: name an empty folder")
    return folder


@plainly
def start_ft_hsdp(
    config: FtConfig, build: Callable[..., Any], steps: int, *, log_dir: str | Path | None = None,
    faults: Sequence[Fault] = (), restarts: int = 20, birth: float = BIRTH,
    tell: Callable[[Incident], None] | None = None, **options: Any,
) -> FtJob:  # fmt: skip
    """Start `replicas` x `ranks` processes (and spares) that train `steps` steps, and what looks after them.

    build(inner_group, seed): the model, as `ft_hsdp.train` wants it. log_dir: where the audit log goes; without one it
    lies in a temporary folder that is gone afterwards. faults: struck on the way. restarts: of one replica, before it
    is given up. birth: seconds that a rank may take for anything it does before it joins. tell: called with each
    incident as it happens. Other options are those of `labkit.start`.
    """
    import labkit

    limits = config.deadlines
    with contextlib.ExitStack() as stack:
        if log_dir is None:
            log_dir = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="labkit-audit-", ignore_cleanup_errors=True)
            )
        folder = _writable(Path(log_dir))
        service = GuardedService(
            config.replicas, limits.join, spares=config.world_size - config.replicas, min_replicas=config.min_replicas,
            join=limits.step, first=limits.step, heartbeat=limits.exchange, linger=config.join_wait,
            evict=config.evict,
        )  # fmt: skip
        stack.callback(service.stop)
        first = {r: service.client.begin(r) for r in range(config.replicas)}
        if config.spares:  # then every rank stands by, and learns from here which place it has
            for r, incarnation in first.items():
                for rank in range(r * config.ranks, (r + 1) * config.ranks):
                    service.client.promote(rank, {"replica": r, "incarnation": incarnation})
        watch = QuorumWatch(service.address, service.token)
        stack.callback(watch.stop)
        # Ranks that build a model wait for each other while processes are born; in training the supervisor is sooner.
        settings = {"timeout": max(limits.hang, birth), "transport": "local", **options}
        job = labkit.start(
            _rank_main, config.world_size, config, service.address, service.token, build, steps, str(folder),
            on_failure="continue", faults=list(faults), **settings,
        )  # fmt: skip
        stack.callback(job.stop)
        supervisor = Supervisor(
            job, service.client, config.replicas, config.ranks, hang=limits.hang, start=birth, restarts=restarts,
            incarnations=first, tell=tell, mind=lambda lives: service.mind(lives, watch.last),
            joined=lambda *life: life in watch.lives,
        )  # fmt: skip
        supervisor.start()
        stack.callback(supervisor.stop)
        return FtJob(config, steps, folder, stack.pop_all(), job, supervisor, watch, service)
    raise AssertionError("not reached")


@plainly
def run_ft_hsdp(config: FtConfig, build: Callable[..., Any], steps: int, **options: Any) -> FtRun:
    """Train to the end through whatever breaks, and prove it. For the options see `start_ft_hsdp`.

    Nothing is left behind, also when it is interrupted. The run is returned as it is; `.require()` raises if it failed.
    """
    job = start_ft_hsdp(config, build, steps, **options)
    with job:
        return job.wait()
