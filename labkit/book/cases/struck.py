"""A job that is struck while it runs: how soon that is noticed, and which ranks stand still because of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import labkit
from labkit import collectives
from labkit.parallel.mesh import Mesh
from labkit.resilience.diagnose import Detector, Verdict
from labkit.wire.errors import RefusedError
from labkit.wire.faults import Fault
from labkit.wire.group import Group

COMPUTE = 0.005  # seconds of a step
ENOUGH = 3  # steps before the fault
PATIENCE = 60.0  # seconds; less than the job has


@dataclass(frozen=True)
class Struck:
    """What came of a fault. noticed: seconds until the system told of it; None where nothing ever does.

    diagnosed: seconds until there was a verdict. still: ranks that have come no further since.
    """

    noticed: float | None
    diagnosed: float
    still: tuple[int, ...]
    verdict: Verdict


def coupled(group: Group, sizes: dict[str, int], axes: Sequence[str]) -> None:
    """Steps without end: compute, then an all-reduce along each of `axes`."""
    mesh = Mesh(group, sizes)
    for n in range(1 << 30):
        group.step(n)
        group.compute(COMPUTE)
        for axis in axes:
            collectives.all_reduce(torch.ones(64), mesh[axis], algorithm="ring")


def strike(sizes: dict[str, int], axes: Sequence[str], fault: Fault, quiet: float = 0.8) -> Struck:
    """Start it, strike it once it runs, wait for a verdict, and see who goes on. quiet: seconds of the detector."""
    size = 1
    for n in sizes.values():
        size *= n
    if not 0 <= fault.rank < size:
        raise RefusedError(f"strike(fault={fault}): there is no rank {fault.rank} among {size}")
    job = labkit.start(coupled, size, sizes, list(axes), transport="local", check=False, on_failure="continue",
                       timeout=120)  # fmt: skip
    try:
        detector, end = Detector(job, quiet), time.monotonic() + PATIENCE
        while min((report.step for report in detector.look().values()), default=-1) < ENOUGH:
            if time.monotonic() > end:
                raise TimeoutError(f"no step was done in {PATIENCE:g} s: the machine is too busy")
            time.sleep(0.02)
        begun = time.monotonic()
        job.inject(fault)
        verdict = detector.wait(PATIENCE)
        diagnosed = time.monotonic() - begun
        still = _still(detector, quiet)
        struck = [at for at, rank, text in job.events if rank == fault.rank and text.startswith("fault")]
        told = [at for at, _, text in job.events if text.startswith("failed")]
        return Struck(min(told) - struck[0] if told and struck else None, diagnosed, still, verdict)
    finally:
        job.stop()


def _still(detector: Detector, quiet: float) -> tuple[int, ...]:
    """Ranks whose step does not change for twice `quiet` seconds."""
    time.sleep(quiet)  # those that were still on the way have arrived where they wait
    before = {rank: report.step for rank, report in detector.look().items()}
    time.sleep(2 * quiet)
    return tuple(rank for rank, report in detector.look().items() if report.over or report.step == before[rank])
