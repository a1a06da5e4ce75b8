"""A rank killed at any message of any collective: the right rank is named, at once, and nothing stays behind.

Each case is drawn from its seed, which is its name: `pytest tests/chaos -k "[137]"` runs one again. `make test-all`
runs all of them; the ordinary tests a slice.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from leftovers import NEVER, alive, eventually
from slices import few

import labkit
from labkit import Kill, RankFailed, collectives
from labkit.collectives import ALGORITHMS

pytestmark = pytest.mark.ranks

CASES, SLICE = 240, 10
EVERY = sorted((collective, name) for collective, table in ALGORITHMS.items() for name in table)


def draw(seed: int) -> dict:
    """One case: who dies where, in what."""
    dice = random.Random(seed)
    collective, algorithm = EVERY[(seed * 7) % len(EVERY)]  # all of them in turn
    size = dice.choice([2, 3, 4, 4, 5, 6])
    victim = dice.randrange(size)
    if algorithm == "native":  # its messages are the library's own
        fault = Kill(victim, at=collective, nth=dice.randint(1, 8))
    else:
        fault = Kill(victim, message=dice.randint(1, 30))
    return {
        "collective": collective, "algorithm": algorithm, "size": size, "fault": fault,
        "transport": dice.choice(["local", "gloo"]), "rows": dice.choice([0, 1, 7, 1000, 60_000]),
        "posted": dice.random() < 0.3, "subgroup": dice.random() < 0.2,
        "network": labkit.Network(nodes=2) if size % 2 == 0 and dice.random() < 0.3 else None,
    }  # fmt: skip


def storm(group, case):
    """The same collective again and again, the root going round, so that every rank comes to send."""
    if case["subgroup"]:
        group = group.subgroup(list(reversed(range(group.size))))
    name, rows, handles = case["collective"], case["rows"], []
    options = {"algorithm": case["algorithm"], "async_op": case["posted"]}
    for i in range(200):
        root, x = i % group.size, torch.ones(rows)
        if name == "barrier":
            got = collectives.barrier(group, **options)
        elif name == "scatter":
            mine = torch.zeros(len(torch.tensor_split(x, group.size)[group.rank]))
            got = collectives.scatter(x if group.rank == root else None, group, root, mine, **options)
        elif name in ("broadcast", "reduce", "gather"):
            got = getattr(collectives, name)(x, group, root=root, **options)
        else:
            got = getattr(collectives, name)(x, group, **options)
        if case["posted"]:
            handles.append(got)
            if len(handles) > 3:
                handles.pop(0).wait()
    for handle in handles:
        handle.wait()


@pytest.mark.parametrize("seed", few(range(CASES), SLICE))
def test_a_rank_killed_at_any_message(seed) -> None:
    case = draw(seed)
    job = labkit.start(storm, case["size"], case, transport=case["transport"], network=case["network"],
                       faults=[case["fault"]], timeout=NEVER)  # fmt: skip
    with pytest.raises(RankFailed) as caught:
        job.wait()
    failure, run = caught.value.failure, caught.value.run
    assert (failure.rank, failure.kind) == (case["fault"].rank, "died"), (case, str(caught.value))
    assert set(failure.waiting) == set(range(case["size"])) - {failure.rank}
    assert [text[:11] for _, _, text in run.events if text.startswith("fault: ")] == ["fault: Kill"], case
    assert run.unfired == []
    assert eventually(lambda: not any(alive(p) for p in job.pids))


def test_the_cases_cover_what_there_is() -> None:
    drawn = [draw(seed) for seed in range(CASES)]
    assert {(c["collective"], c["algorithm"]) for c in drawn} == set(EVERY)
    assert {c["transport"] for c in drawn[:SLICE]} == {"local", "gloo"}
    by_rank = Counter(c["fault"].rank for c in drawn)
    assert set(by_rank) == set(range(6)) and len({c["fault"].message for c in drawn}) > 25
