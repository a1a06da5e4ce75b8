"""One plan of failures, run for real and judged: did it end in time, and is the result the right one?"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from labkit.resilience.deadlines import Deadlines
from labkit.resilience.ft_hsdp import FtConfig, Result
from labkit.resilience.supervising.run import FtJob, FtRun, start_ft_hsdp

from .drawing import StormPlan
from .models import MODELS, Paced

BATCH = 4  # samples of a replica's step
STEP = 0.15  # seconds that a step is taken to last, for the deadlines
BIRTH = 8.0  # seconds a process may go without a sign of life before it has joined
PATIENCE = 90.0  # seconds beyond what the deadlines allow, for starting processes on a busy machine


@dataclass
class Verdict:
    """What a plan came to. problems: what must not be; none means it passed. fired: faults that struck."""

    plan: StormPlan
    seconds: float
    problems: list[str] = field(default_factory=list)
    fired: int = 0
    run: FtRun | None = None
    replayed: bool = False

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        how = "ok" if self.ok else "; ".join(self.problems)
        return f"seed {self.plan.seed} ({self.plan.shape}, {self.plan.replicas} x {self.plan.ranks} " \
               f"{self.plan.inside}): {how}, {self.seconds:.2f} s"  # fmt: skip


def configure(plan: StormPlan, **changes: Any) -> FtConfig:
    """The run's options for a plan: deadlines that a small model keeps on a busy machine."""
    options = {
        "replicas": plan.replicas, "ranks": plan.ranks, "deadlines": Deadlines.for_step(STEP, least=3 * STEP),
        "batch": BATCH, "seed": plan.seed, "join_wait": STEP * 5, "intervention": plan.intervention, "beat": 0.1,
        "min_replicas": plan.least,
    }  # fmt: skip
    return FtConfig(**{**options, **changes})


def allowed(plan: StormPlan, config: FtConfig) -> float:
    """Seconds that a run of this plan may take: each strike may cost the longest of all waits, twice, and a birth."""
    return PATIENCE + (len(plan.strikes) + 1) * (2 * config.deadlines.hang + BIRTH)


def weather(plan: StormPlan, *, config: FtConfig | None = None, replay: bool = True, **options: Any) -> Verdict:
    """Run the plan and judge it. replay: repeat the training that its logs tell of, and compare the weights."""
    config = config or configure(plan)
    began = time.monotonic()
    verdict = Verdict(plan, 0.0)
    limit = allowed(plan, config)
    build = Paced(plan.inside, plan.pace)
    job = start_ft_hsdp(config, build, plan.steps, faults=plan.faults(), deadline=limit, birth=BIRTH, **options)
    with job, _thawing(job, plan):
        verdict.run = run = job.wait()
    verdict.seconds = time.monotonic() - began
    verdict.fired = sum(text.startswith("fault: ") for _, _, text in run.events)
    _judge(verdict, run, limit)
    if replay and verdict.ok:
        verdict.replayed = True
        if wrong := compare(run, plan):
            verdict.problems.append(wrong)
    return verdict


def _judge(verdict: Verdict, run: FtRun, limit: float) -> None:
    """A run that ends, with somebody at its end, all of those equal, and an audit that finds nothing."""
    for failure in run.run.failures:
        if failure.kind in ("deadline", "timeout", "stopped", "deadlock", "mismatch"):
            verdict.problems.append(
                f"{failure.kind} after {run.run.seconds:.3g} s of {limit:.3g} s: {failure.message[:300]}"
            )
    if not run.finished:
        verdict.problems.append("no replica came to the end")
    ends = {tuple(r.state for r in ranks) for ranks in run.finished.values()}
    if len(ends) > 1:
        verdict.problems.append(f"replicas ended in different states: {sorted(ends)}")
    if run.audit is None or run.audit.problems:
        verdict.problems += ["there is no audit log"] if run.audit is None else run.audit.problems[:5]
    verdict.problems += [f"supervisor: {text}" for text in run.errors]


def compare(run: FtRun, plan: StormPlan) -> str:
    """Why a fault-free training on the same samples in the same steps comes to another state; "" if it does not."""
    assert run.audit is not None
    results = replayed(run, plan)
    ends = next(iter(run.finished.values()))
    wrong = [
        f"rank {a.rank}: {a.state} in the run, {b.state} without faults"
        for a, b in zip(ends, results, strict=True)
        if a.state != b.state or tuple(a.positions) != tuple(b.positions)
    ]
    return "the final state is not that of a run without faults: " + ", ".join(wrong) if wrong else ""


def replayed(run: FtRun, plan: StormPlan) -> list[Result]:
    """The training of the run's lineage, repeated by one replica."""
    import labkit
    from labkit.resilience.ft_hsdp.replaying import Step, replay

    assert run.audit is not None
    steps = [Step(u.step, u.members, u.contributors) for u in run.audit.lineage]
    return labkit.launch(replay, plan.ranks, run.config, MODELS[plan.inside], steps, transport="local").results


@contextlib.contextmanager
def _thawing(job: FtJob, plan: StormPlan) -> Iterator[None]:
    """Continue each frozen rank when its time has come."""
    due, over = plan.thaws(), threading.Event()

    def watch() -> None:
        seen, waiting = 0, list[tuple[float, int]]()
        while not over.is_set() and due:
            news = job.job.await_events(seen, 0.02)
            seen += len(news)
            for _, rank, text in news:
                if (seconds := due.get(f"{rank}: {text}")) is not None:
                    waiting.append((time.monotonic() + seconds, job.job.pids[rank]))
            for at, pid in [w for w in waiting if time.monotonic() >= w[0]]:
                waiting.remove((at, pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            if job.job.over:
                return

    thread = threading.Thread(target=watch, name="labkit-thaw", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
