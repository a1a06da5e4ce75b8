"""Worlds that end, one launch each: a rank killed, one that raises, a message lost, ranks that disagree."""

from __future__ import annotations

import random
import sys

import cloudpickle
import torch

import labkit
from labkit import Drop, Kill, Raise, collectives
from labkit.parallel.mesh import Mesh
from labkit.resilience.diagnose import Detector

from .diagnose_worlds import QUIET, Outcome, _size, places, settle

STEPS = 8
CHANGES = ("dtype", "shape", "collective", "algorithm", "op", "root", "skip", "more", "order")


def ended(fn, size, args, transport, faults, truth, what) -> Outcome:
    """Run it, and say what the diagnosis says when it stands still or has failed."""
    job = labkit.start(fn, size, *args, transport=transport, faults=faults, on_failure="continue", timeout=60)
    try:
        detector = Detector(job, QUIET)
        job._started.wait(10)
        settle(job)
        plain = detector.wait(20, silent=())
        return Outcome(what, frozenset(truth), plain, detector.now())
    finally:
        job.stop()


def strikes(fault, program, sizes, transport, algorithm="ring", cases=4, seed=0, numbers=200):
    """Kill, Raise or Drop at random messages."""
    dice = random.Random(repr((fault.__name__, program.__name__, sizes, transport, algorithm, seed)))
    where = places(program, sizes, STEPS, algorithm, numbers, transport)
    found = []
    for _ in range(cases):
        rank = dice.randrange(_size(sizes))
        sent = [number for number, step in where[rank] if step >= 0]
        struck = fault(rank, message=dice.choice(sent))
        found.append(ended(program, _size(sizes), (sizes, STEPS, algorithm, numbers), transport, [struck], {rank},
                           f"{program.__name__} {sizes} {transport} {algorithm}: {struck}"))  # fmt: skip
    return found


def kills(*args, **options):
    return strikes(Kill, *args, **options)


def raises(*args, **options):
    return strikes(Raise, *args, **options)


def drops(*args, **options):
    return strikes(Drop, *args, **options)


def disagreeing_program(group, sizes, odd, change, at):
    """Everybody calls the same, but for one rank at one step."""
    mesh = Mesh(group, sizes)
    inner = mesh[tuple(sizes)[-1]]
    for n in range(4):
        group.step(n)
        differs = n == at and group.rank == odd
        if differs and change == "order":
            collectives.all_reduce(torch.ones(8), group, algorithm="ring")
            collectives.all_reduce(torch.ones(8), inner, algorithm="ring")
            continue
        x = torch.ones(8, dtype=torch.float64 if differs and change == "dtype" else torch.float32)
        if differs and change == "shape":
            x = torch.ones(12)
        if differs and change == "collective":
            collectives.all_gather(x, inner, algorithm="ring")
        elif not (differs and change == "skip"):
            algorithm = "recursive_doubling" if differs and change == "algorithm" else "ring"
            op = "max" if differs and change == "op" else "sum"
            collectives.all_reduce(x, inner, op=op, algorithm=algorithm)
        if differs and change == "more":
            collectives.all_reduce(x, inner, algorithm="ring")
        root = 1 if differs and change == "root" else 0
        collectives.broadcast(torch.ones(5), inner, root=root, algorithm="chain")
        collectives.all_reduce(torch.ones(8), group, algorithm="ring")


def disagreements(sizes, transport, changes=CHANGES, seed=0):
    """One rank does something else; each change once."""
    dice = random.Random(repr((sizes, transport, seed)))
    found = []
    for change in changes:
        odd, at = dice.randrange(_size(sizes)), dice.randrange(4)
        found.append(ended(disagreeing_program, _size(sizes), (sizes, odd, change, at), transport, [], {odd},
                           f"mismatch {sizes} {transport}: rank {odd} another {change} at step {at}"))  # fmt: skip
    return found


cloudpickle.register_pickle_by_value(sys.modules[__name__])
