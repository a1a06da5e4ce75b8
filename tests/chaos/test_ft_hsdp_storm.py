"""FT-HSDP under seeded storms: it ends in time, every sample counts once, and the weights are those of a calm run.

Each run is drawn from its seed, which is in its name: `pytest tests/chaos -k "storm and [137-gloo]"` runs one again.
`make test-all` runs all; the ordinary tests a few, most of them over gloo, where a death is heard otherwise.
"""

from __future__ import annotations

import os

import psutil
import pytest
from leftovers import alive, eventually
from slices import few

from labkit.resilience.storm import INSTANTS, SHAPES, draw, table
from labkit.resilience.storm.weather import Verdict, weather

pytestmark = pytest.mark.ranks

RUNS, OVER_GLOO = 500, 200
FIRST = [(0, "local"), (3, "gloo"), (5, "gloo"), (6, "gloo"), (8, "gloo")]  # all but one, drop, freeze, leader
REST = [(s, t) for t, runs in (("local", RUNS), ("gloo", OVER_GLOO)) for s in range(runs) if (s, t) not in FIRST]


def services() -> list[int]:
    """Quorum services that this process has started and that still live."""
    found = psutil.Process(os.getpid()).children()
    return [p.pid for p in found if "labkit.resilience.quorum" in " ".join(p.cmdline())]


@pytest.mark.parametrize(("seed", "transport"), few(FIRST + REST, len(FIRST)))
def test_a_storm(seed, transport, request) -> None:
    plan = draw(seed)
    verdict: Verdict = weather(plan, transport=transport)
    request.node.user_properties.append(("storm", str(verdict)))
    assert verdict.ok, f"{verdict}\n{plan}\n" + "\n".join(map(str, verdict.run.incidents if verdict.run else []))
    assert verdict.replayed and verdict.run is not None
    assert eventually(lambda: not any(alive(p) for p in verdict.run.pids)) and services() == []


def test_the_storms_cover_what_there_is() -> None:
    counts = table(draw(seed) for seed in range(RUNS))
    assert set(counts["shape"]) == set(SHAPES) and set(counts["at"]) >= set(INSTANTS) - {"rebuild"}
    assert {draw(seed).shape for seed in range(len(SHAPES))} == set(SHAPES)
