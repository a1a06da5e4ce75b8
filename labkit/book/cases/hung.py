"""Cases of jobs that stand still: drawn by a seed, run for real, looked at, and stopped."""

from __future__ import annotations

import random
import time

import labkit
from labkit.book.cases.exhibits import CAUSES, exhibits
from labkit.book.cases.training import training
from labkit.course.casefile import Case, Suspect
from labkit.course.errors import CourseError
from labkit.resilience.diagnose import Detector, Report, Verdict
from labkit.wire.errors import RefusedError
from labkit.wire.faults import Drop, Fault, Hang
from labkit.wire.recording.trace import Trace
from labkit.world.job import Job

SYMPTOM = (
    "The step counter stands still. No rank has failed, and no error was written. On {gpus:,} GPUs, all but a few look "
    "busy: a collective that waits keeps its GPU at 100 %."
)
STEPS = 8
QUIET = 0.4  # seconds without a record, until everybody is taken to stand still
PATIENCE = 60.0  # seconds; less than the job has
SALT = 92  # with it, seed 0 does not strike the same rank again and again in the chapter
WRONG = 10.0  # minutes: a restart of the fleet (the FT-HSDP paper, up to 10 at 100,000 GPUs)


def plan(seed: int, size: int, cases: int = 4) -> list[tuple[Suspect, int]]:
    """Who does what, in which step: as many different causes as cases."""
    if not 1 <= cases <= len(CAUSES):
        raise RefusedError(f"plan(cases={cases!r}): there are {len(CAUSES)} causes, so take 1 to {len(CAUSES)} cases")
    dice = random.Random(f"cases {seed} {size}")
    ranks = dice.sample(range(size), min(cases, size)) + [dice.randrange(size) for _ in range(cases - size)]
    return [(Suspect(rank, cause), dice.randint(1, 3))
            for rank, cause in zip(ranks, dice.sample(list(CAUSES), cases), strict=True)]  # fmt: skip


def stand_still(truth: Suspect, step: int, sizes: dict[str, int], seed: int, healthy: Trace) -> Job:
    """Start the training with one thing wrong. healthy: of the same training, to find a place for a fault in it."""
    faults: list[Fault] = []
    if truth.cause == "frozen":
        faults = [Hang(truth.rank, at="read", nth=step + 1)]
    elif truth.cause == "lost":
        faults = [Drop(truth.rank, message=last_message(healthy, truth.rank, step))]
    return labkit.start(training, sizes["dp"] * sizes["tp"], sizes, STEPS, seed, (truth.cause, truth.rank, step),
                        transport="local", check=False, on_failure="continue", faults=faults, timeout=120)  # fmt: skip


def last_message(trace: Trace, rank: int, step: int) -> int:
    """The number of the last message that `rank` sends in `step`."""
    sent = sorted((m.index, m.step) for m in trace.sends if m.src == rank)
    found = [number for number, (_, at) in enumerate(sent, 1) if at == step]
    if not found:
        raise RefusedError(f"rank {rank} sends no message in step {step} of this run")
    return found[-1]


def investigate(title: str, truth: Suspect, step: int, sizes: dict[str, int], seed: int, healthy: Trace) -> Scene:
    """Run it until it stands still, gather all evidence, and end it."""
    job = stand_still(truth, step, sizes, seed, healthy)
    try:
        detector, end = Detector(job, QUIET), time.monotonic() + PATIENCE
        while True:
            verdict = detector.wait(PATIENCE)
            reports, stopped = detector.look(), detector.stopped
            try:
                size = sizes["dp"] * sizes["tp"]
                case = Case(title, SYMPTOM.format(gpus=16_384), CAUSES, size, exhibits(reports, stopped, truth), truth,
                            WRONG)  # fmt: skip
                return Scene(case, reports, verdict)
            except CourseError:  # on a busy machine somebody may still be on the way
                if time.monotonic() > end:
                    raise
                time.sleep(QUIET)
    finally:
        job.stop()


class Scene:
    """A case, and what was seen of it: `reports` by rank, and the `verdict` of labkit's diagnosis, for afterwards."""

    def __init__(self, case: Case, reports: dict[int, Report], verdict: Verdict) -> None:
        self.case, self.reports, self.verdict = case, reports, verdict


def blind(seed: int, size: int, what: str) -> int:
    """A rank that nobody has chosen: the same one for the same seed, size and purpose."""
    return random.Random(f"struck {SALT} {seed} {size} {what}").randrange(size)
