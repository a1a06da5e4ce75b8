"""What a fault-tolerant run left behind, and whether it may be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labkit.resilience.audit import Line, Report

from .incidents import Incident, Stall

if TYPE_CHECKING:
    from labkit.resilience.ft_hsdp import FtConfig, Result
    from labkit.resilience.quorum import Quorum
    from labkit.world.job import Run


class RunFailed(RuntimeError):
    """A fault-tolerant run that no replica brought to its end. `run` has everything that is left."""

    def __init__(self, message: str, run: FtRun):
        super().__init__(message)
        self.run = run


@dataclass
class FtRun:
    """What a run left. results: by world rank, None where there is none. audit: of its logs, None without any.

    incidents: what broke, and what was done. stalls: how long the others stood still for it. errors: of the supervisor.
    rounds: the quorums that were issued, with the time of each on the monotonic clock. zero: the run's beginning there.
    pids: the last process of each rank.
    """

    config: FtConfig
    run: Run
    audit: Report | None
    incidents: list[Incident]
    stalls: list[Stall]
    lines: list[Line]
    errors: list[str] = field(default_factory=list)
    rounds: list[tuple[float, Quorum]] = field(default_factory=list)
    zero: float = 0.0
    pids: list[int] = field(default_factory=list)

    @property
    def results(self) -> list[Result | None]:
        return self.run.results

    @property
    def events(self) -> list[tuple[float, int, str]]:
        return self.run.events

    @property
    def finished(self) -> dict[int, list[Result]]:
        """Replica -> the results of its ranks, for the replicas that came to the end."""
        found: dict[int, list[Result]] = {}
        for result in self.results:
            if result is not None and result.finished:
                found.setdefault(result.replica, []).append(result)
        return {r: sorted(x, key=lambda y: y.rank) for r, x in sorted(found.items()) if len(x) == self.config.ranks}

    def require(self) -> FtRun:
        """This run; raises RunFailed if nobody finished, AuditFailed if the logs break a promise."""
        if not self.finished or self.audit is None:
            why = [f"rank {f.rank}: {f.message}" for f in self.run.failures[-6:]] + self.errors
            raise RunFailed("no replica came to the end of the run:\n" + "\n".join(why), self)
        self.audit.require()
        return self

    def __repr__(self) -> str:
        audit = "no audit" if self.audit is None else "audit ok" if self.audit.ok else "audit failed"
        return (f"FtRun({self.config.replicas} x {self.config.ranks}, {len(self.finished)} replicas finished, "
                f"{len(self.incidents)} incidents, {audit}, {self.run.seconds:.3f} s)")  # fmt: skip
