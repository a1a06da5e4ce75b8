"""Worlds that are struck again and again: programs, where in them to strike, and what the diagnosis says each time.

A rank that hangs is stopped, diagnosed, and continued, so one launch serves many cases.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from dataclasses import dataclass

import cloudpickle
import psutil
import torch

import labkit
from labkit import Hang, collectives
from labkit.parallel.mesh import Mesh
from labkit.resilience.diagnose import Detector, Verdict

QUIET = 0.3


@dataclass(frozen=True)
class Outcome:
    """One case. truth: the ranks at fault. plain: the verdict from records alone. heard: with who is silent."""

    what: str
    truth: frozenset[int]
    plain: Verdict
    heard: Verdict

    @property
    def exact(self) -> bool:
        return self.plain.exact and set(self.plain.suspects) == self.truth

    @property
    def exact_heard(self) -> bool:
        return self.heard.exact and set(self.heard.suspects) == self.truth

    @property
    def among(self) -> bool:
        return self.truth <= set(self.plain.suspects) and self.truth <= set(self.heard.suspects)


# -- programs ------------------------------------------------------------------------------------------------------


def mesh_program(group, sizes, steps, algorithm, numbers):
    """Along each axis of a mesh an all-reduce, the innermost first; now and then the whole world."""
    mesh = Mesh(group, sizes)
    for n in range(steps):
        group.step(n)
        with group.span("forward"):
            group.compute(0.001)
        for axis in reversed(sizes):
            collectives.all_reduce(torch.ones(numbers), mesh[axis], algorithm=algorithm)
        with group.span("backward"):
            group.compute(0.001)
        if len(sizes) > 1:
            collectives.all_gather(torch.ones(7), mesh[tuple(sizes)[0]])
        if n % 3 == 2:
            collectives.barrier(group)


def pipeline_program(group, sizes, steps, algorithm, numbers):
    """Stages that send each other microbatches, forth and back, and replicas that reduce at the end of a step."""
    mesh = Mesh(group, sizes)
    pipe, stage, stages = mesh["pp"], mesh.coordinates["pp"], sizes["pp"]
    x = torch.ones(numbers)
    for n in range(steps):
        group.step(n)
        for way, source, to in (("forward", stage - 1, stage + 1), ("backward", stage + 1, stage - 1)):
            handles = []
            for _ in range(3):
                if 0 <= source < stages:
                    pipe.recv(torch.empty(numbers), source)
                with group.span(way):
                    group.compute(0.001)
                if 0 <= to < stages:
                    handles.append(pipe.isend(x, to))
            for handle in handles:
                handle.wait()
        collectives.all_reduce(torch.ones(16), mesh["dp"], algorithm=algorithm)


def overlapped_program(group, sizes, steps, algorithm, numbers):
    """Buckets of gradients that are reduced while backward goes on."""
    mesh = Mesh(group, sizes)
    for n in range(steps):
        group.step(n)
        with group.span("forward"):
            group.compute(0.001)
        handles = []
        for _ in range(3):
            with group.span("backward"):
                group.compute(0.001)
            handles.append(collectives.all_reduce(torch.ones(numbers), mesh["dp"], algorithm=algorithm, async_op=True))
        if "tp" in sizes:
            collectives.all_reduce(torch.ones(9), mesh["tp"], algorithm="ring")
        for handle in handles:
            handle.wait()


# -- hangs ---------------------------------------------------------------------------------------------------------


def places(program, sizes, steps, algorithm, numbers, transport) -> dict[int, list[tuple[int, int]]]:
    """For each rank the (number, step) of all messages that it sends, seen in a run without faults."""
    world = _size(sizes)
    run = labkit.launch(program, world, sizes, steps, algorithm, numbers, transport=transport)
    found: dict[int, list[tuple[int, int]]] = {}
    for rank in range(world):
        sent = sorted((m.index, m.step) for m in run.trace.sends if m.src == rank)
        found[rank] = [(number, step) for number, (_, step) in enumerate(sent, 1)]
    return found


def hangs(program, sizes, transport, algorithm="ring", cases=8, seed=0, numbers=200, spans=("forward", "backward")):
    """Hang a rank at `cases` places, one after the other; what the diagnosis says of each."""
    dice = random.Random(repr((program.__name__, sizes, transport, algorithm, seed)))
    steps = 2 * cases + 2
    where = places(program, sizes, steps, algorithm, numbers, transport)
    faults = []
    for case in range(cases):
        rank, step = dice.randrange(_size(sizes)), 2 * case + 1
        sent = [number for number, at in where[rank] if at == step]
        kind = dice.choice(["step", "span", "collective", "message", "message"] if sent else ["step", "span"])
        if kind == "message":
            faults.append(Hang(rank, message=dice.choice(sent)))
        elif kind == "span":
            name, each = _spans(program, dice.choice(spans))
            faults.append(Hang(rank, at=name, nth=step * each + dice.randint(1, each)))
        elif kind == "collective" and program is mesh_program:
            each = len(sizes)
            faults.append(Hang(rank, at="all_reduce", nth=step * each + dice.randint(1, each)))
        else:
            faults.append(Hang(rank, step=step))
    job = labkit.start(program, _size(sizes), sizes, steps, algorithm, numbers, transport=transport, faults=faults,
                       on_failure="continue", timeout=120)  # fmt: skip
    try:
        return [_case(job, detector, fault, f"{program.__name__} {sizes} {transport} {algorithm}: {fault}")
                for detector in [Detector(job, QUIET)] for fault in faults]  # fmt: skip
    finally:
        job.stop()


def any_moment(program, sizes, transport, algorithm="ring", cases=8, seed=0, numbers=200):
    """Stop a rank from outside at moments that nobody chose, in the middle of whatever it does."""
    dice = random.Random(repr(("any", program.__name__, sizes, transport, algorithm, seed)))
    job = labkit.start(program, _size(sizes), sizes, 10**6, algorithm, numbers, transport=transport,
                       on_failure="continue", timeout=120)  # fmt: skip
    found, detector = [], Detector(job, QUIET)
    try:
        time.sleep(0.5)
        for _ in range(cases):
            time.sleep(dice.random() * 0.05)
            fault = Hang(dice.randrange(_size(sizes)))
            job.inject(fault)
            text = f"any moment: {program.__name__} {sizes} {transport} {algorithm} {numbers}: {fault}"
            found.append(_case(job, detector, fault, text))
    finally:
        job.stop()
    return found


def _case(job, detector, fault, what) -> Outcome:
    rank = fault.rank
    await_events(job, lambda: told(job, rank, "stopped") > told(job, rank, "continued"))
    settle(job)
    plain = detector.wait(30, silent=())
    heard = detector.now()
    seen = told(job, rank, "continued")
    os.kill(job.pids[rank], signal.SIGCONT)
    await_events(job, lambda: told(job, rank, "continued") > seen)
    return Outcome(what, frozenset({rank}), plain, heard)


def told(job, rank, text) -> int:
    """How often the events of a job say this of `rank`."""
    return sum((r, t) == (rank, text) for _, r, t in list(job.events))


def await_events(job, come) -> None:
    """Until `come()`, which looks at the events of the job."""
    end = time.monotonic() + 60
    while not come():
        assert time.monotonic() < end and not job.over, f"this event never came: {job.events[-5:]}"
        job.await_events(len(job.events), 0.2)


def settle(job, seconds=60.0) -> None:
    """Until no rank wants the processor, three times in a row: on a busy machine a rank that stands still may just wait
    for it."""
    end, quiet = time.monotonic() + seconds, 0
    while quiet < 3 and time.monotonic() < end:
        states = []
        for pid in job.pids:
            with contextlib.suppress(psutil.Error):
                states.append(psutil.Process(pid).status())
        quiet = 0 if psutil.STATUS_RUNNING in states else quiet + 1
        time.sleep(0.05)


def _size(sizes) -> int:
    size = 1
    for n in sizes.values():
        size *= n
    return size


def _spans(program, name) -> tuple[str, int]:
    """A span of a program, and how many times a step has it."""
    if program is pipeline_program:
        return name, 3
    if program is overlapped_program:
        return name, 3 if name == "backward" else 1
    return name, 1


cloudpickle.register_pickle_by_value(sys.modules[__name__])
