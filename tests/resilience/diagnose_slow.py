"""Worlds with a straggler that changes: slow for some steps, then another one, then nobody."""

from __future__ import annotations

import random

import labkit
from labkit import Slow
from labkit.resilience.diagnose import stragglers

from .diagnose_worlds import Outcome, _size

EACH = 4  # steps of a case


def stragglers_of(program, sizes, algorithm="ring", cases=8, seed=0, clock="virtual", transport="local"):
    """For each case a rank is made slower by a factor between 1.5 and 5 for some steps; in every fourth nobody is."""
    dice = random.Random(repr((program.__name__, sizes, algorithm, seed, clock)))
    faults, truth = [], []
    for case in range(cases):
        if case % 4 == 3:
            truth.append(frozenset())
            continue
        rank, factor = dice.randrange(_size(sizes)), round(dice.uniform(1.5, 5), 2)
        faults += [Slow(rank, step=case * EACH, factor=factor), Slow(rank, step=(case + 1) * EACH, factor=1 / factor)]
        truth.append(frozenset({rank}))
    run = labkit.launch(program, _size(sizes), sizes, cases * EACH + 1, algorithm, 64, clock=clock, faults=faults,
                        transport=transport)  # fmt: skip
    found = []
    for case, slow in enumerate(truth):
        judged = range(case * EACH + 1, (case + 1) * EACH)  # in the first one the others still wait for the case before
        verdict = stragglers(run.trace, judged).verdict
        found.append(Outcome(f"{program.__name__} {sizes} {clock}: slow {sorted(slow)}", slow, verdict, verdict))
    return found
