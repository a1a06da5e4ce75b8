"""Worlds that compute nonsense: a rank that computes wrongly, a replica that decays, a bit that flips."""

from __future__ import annotations

import random
import sys

import cloudpickle
import torch

import labkit
from labkit import Corrupt, collectives
from labkit.resilience.diagnose import checksum, compare, find_flip, replay

from .diagnose_worlds import Outcome

PATTERNS = ("transient", "persistent", "intermittent", "replica", "clean")


def flip(x, at, bit=30):
    x.view(torch.int32)[at] ^= 1 << bit


def share(owner, step, numbers):
    """What a rank computes of its samples in a step: real arithmetic, the same bits each time."""
    generator = torch.Generator().manual_seed(1000 * step + owner)
    x, w = (torch.randn(numbers, 16, generator=generator) for _ in range(2))
    return torch.tanh(x @ w.T).sum(0)


def faulty_program(group, plan, numbers):
    """A case a step: (pattern, rank). Returns the verdicts of all steps, which all ranks have alike."""
    weights = torch.zeros(numbers)
    said = []
    for step, (pattern, bad) in enumerate(plan):
        group.step(step)
        mine, times = group.rank == bad, [0]

        def work(owner, step=step, pattern=pattern, mine=mine, times=times):
            times[0] += 1
            x = share(owner, step, numbers)
            wrong = {"persistent": True, "transient": times[0] == 1, "intermittent": times[0] % 2 == 1}
            if mine and wrong.get(pattern, False):
                flip(x, step % numbers)
            return [x]

        (gradient,) = work(group.rank)
        recorded = checksum([gradient])
        weights -= 0.01 * collectives.all_reduce(gradient, group, algorithm="ring")
        if pattern == "replica" and mine:
            flip(weights, (7 * step) % numbers, 22)
        differs = compare({"weights": weights}, group)
        if differs is not None:
            weights = collectives.broadcast(weights, group, root=(bad + 1) % group.size)
        replayed = replay(work, recorded, group)
        said.append((None if differs is None else differs.verdict, replayed.verdict, replayed.pattern))
    return said


def wrong_ranks(size, transport="local", seed=0):
    """All patterns, each at several ranks: the outcomes, and for each case (pattern asked for, pattern said)."""
    dice = random.Random(repr((size, seed)))
    plan = [(pattern, dice.randrange(size)) for pattern in PATTERNS for _ in range(3)]
    run = labkit.launch(faulty_program, size, plan, 50, transport=transport)
    assert all(repr(r) == repr(run.results[0]) for r in run.results)  # everybody says the same
    found, said = [], []
    for (pattern, bad), (differs, replayed, told) in zip(plan, run.results[0], strict=True):
        truth = frozenset() if pattern == "clean" else frozenset({bad})
        verdict = differs if pattern == "replica" and differs is not None else replayed
        found.append(Outcome(f"{pattern} fault of rank {bad} of {size}", truth, verdict, verdict))
        said.append((pattern, told))
        assert (differs is not None) == (pattern == "replica")
    return found, said


def flipping_program(group, steps, numbers):
    """An all-reduce a step, done again to see whether it came out right."""
    said = []
    for step in range(steps):
        group.step(step)
        local = share(group.rank, step, numbers)
        with group.span("first"):
            result = collectives.all_reduce(local.clone(), group, algorithm="ring")
        right = collectives.all_reduce(local.clone(), group, algorithm="ring")
        found = find_flip(local, result, right, group)
        if found is None:  # as many messages as where something was found, so that a fault's number finds its place
            collectives.all_gather(torch.zeros(1, 2), group, algorithm="ring")
        said.append(None if found is None else (found.ways, found.verdict))
    return said


def flipped_messages(size, cases=12, seed=0, numbers=64, transport="local"):
    """A bit of one message of each second step flips: (the way that was hit, what was found)."""
    dice = random.Random(repr((size, seed)))
    steps = 2 * cases
    run = labkit.launch(flipping_program, size, steps, numbers, transport=transport)
    spans = {(s.rank, s.step): (s.start, s.end) for s in run.trace.spans("first")}
    faults, truth = [], []
    for case in range(cases):
        rank, step = dice.randrange(size), 2 * case
        sent = sorted((m.index, m.start) for m in run.trace.sends if m.src == rank)
        begin, end = spans[rank, step]
        inside = [n for n, (_, start) in enumerate(sent, 1) if begin <= start <= end]
        faults.append(Corrupt(rank, message=dice.choice(inside), bit=dice.randrange(8)))
        truth.append((rank, (rank + 1) % size))
    run = labkit.launch(flipping_program, size, steps, numbers, transport=transport, faults=faults)
    assert all(repr(r) == repr(run.results[0]) for r in run.results)
    assert all(run.results[0][step] is None for step in range(1, steps, 2))  # where nothing was hit nothing is found
    return [(way, run.results[0][2 * case]) for case, way in enumerate(truth)]


cloudpickle.register_pickle_by_value(sys.modules[__name__])
