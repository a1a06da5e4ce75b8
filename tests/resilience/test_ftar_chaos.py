"""Faults at random messages, one or two at once, in exchanges of any shape: the others always go on, and sum right.

Each case is drawn from its seed, which is in its name: `pytest tests/resilience -k "[137-gloo]"` runs one again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter

import pytest
import torch
from leftovers import alive, eventually
from slices import REBUILDABLE, few

import labkit
from labkit import Drop, Hang, Kill, Raise
from labkit.resilience.deadlines import Deadlines
from labkit.resilience.errors import Fatal
from labkit.resilience.ftar.queued import Ftar

CASES, SLICE = 200, 13
IN_EACH = {"local": SLICE, "gloo": 4}  # run of the ordinary tests


def draw(seed: int) -> dict:
    """One case: who is struck where, in what."""
    dice = random.Random(seed)
    size = dice.choice([2, 3, 3, 4, 4, 5, 6, 8])
    victims = dice.sample(range(size), 2 if size > 2 and dice.random() < 0.3 else 1)
    kinds = [Kill, Kill, Hang, Drop, Raise]
    faults = [kinds[(seed + i) % len(kinds)](v, message=dice.randint(1, 60)) for i, v in enumerate(victims)]
    return {
        "size": size, "faults": faults, "numel": dice.choice([0, 1, 5, 500, 20_000]), "queued": dice.choice([1, 3, 8]),
        "chunk_bytes": dice.choice([1024, 8192, 1 << 20]), "chunks": dice.choice([1, 2, 4]),
    }  # fmt: skip


def storm(group, case):
    """Queues of all-reduces until one breaks, then one over the ranks that nothing has struck."""
    limits = Deadlines(message=2, exchange=10, vote=12, step=25, join=30, hang=40)
    ftar = Ftar(group, limits, chunk_bytes=case["chunk_bytes"], chunks=case["chunks"])
    right = 0
    while True:
        tensors = [torch.full((case["numel"],), 1.0 + i) for i in range(case["queued"])]
        works = [ftar.all_reduce(x) for x in tensors]
        try:
            error = ftar.finish()
        except Fatal:
            return "fatal"
        for i, (x, work) in enumerate(zip(tensors, works, strict=True)):
            if work.error is None:
                assert (x == (1.0 + i) * group.size).all()
                right += 1
        if error is not None:
            break
    victims = {fault.rank for fault in case["faults"]}
    if group.rank in victims:
        return "struck"
    ftar.rebuild([r for r in range(group.size) if r not in victims], epoch=2)
    x = torch.ones(case["numel"])
    ftar.all_reduce(x)
    return right, ftar.finish(), bool((x == group.size - len(victims)).all())


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("seed", "transport"),
    few(sorted(((s, t) for s in range(CASES) for t in REBUILDABLE), key=lambda case: case[0] >= IN_EACH[case[1]]),
        sum(IN_EACH.values())),
)  # fmt: skip
def test_the_others_go_on(seed, transport) -> None:
    case = draw(seed)
    job = labkit.start(storm, case["size"], case, transport=transport, on_failure="continue", faults=case["faults"],
                       timeout=30, deadline=60)  # fmt: skip
    victims = {f.rank for f in case["faults"]}
    others = set(range(case["size"])) - victims
    while (run := job.poll()) is None:
        if others <= set(job._blobs):  # they are through: the stopped one may go on, and find itself alone
            for fault in case["faults"]:
                if isinstance(fault, Hang):
                    with contextlib.suppress(ProcessLookupError):  # it has ended since
                        os.kill(job.pids[fault.rank], signal.SIGCONT)
        eventually(lambda: job.poll() is not None, 0.05)
    assert {f.rank for f in run.failures} <= victims, case
    for rank in others:
        _, error, equal = run.results[rank]
        assert error is None and equal, case
    assert eventually(lambda: not any(alive(p) for p in job.pids))


def test_the_cases_cover_what_there_is() -> None:
    drawn = [draw(seed) for seed in range(CASES)]
    assert {c["size"] for c in drawn[:SLICE]} >= {2, 3, 4, 8}
    kinds = Counter(type(f) for c in drawn[:SLICE] for f in c["faults"])
    assert set(kinds) == {Kill, Hang, Drop, Raise} and any(len(c["faults"]) == 2 for c in drawn[:SLICE])
