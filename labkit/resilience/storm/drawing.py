"""Seeded plans of failures: `draw(seed)` gives the same plan every time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from .plans import StormPlan
from .shapes import PAIRS, SHAPES

PACE = 0.15  # seconds


def draw(seed: int, shapes: Iterable[str] | None = None, *, thaw: float = 1.0, largest: int = 6) -> StormPlan:
    """The plan of this seed. shapes: only these (see `SHAPES`). thaw: the longest freeze. largest: processes."""
    names = sorted(SHAPES) if shapes is None else list(shapes)
    dice = random.Random(seed)
    shape = names[seed % len(names)]
    ranks = 1 if shape in PAIRS else dice.choice([1, 1, 1, 2, 2])
    least = 3 if shape in ("source", "all but one") and 3 * ranks <= largest else 2
    replicas = 2 if shape in PAIRS else dice.randint(least, max(least, min(4, largest // ranks)))
    inside = "plain" if ranks == 1 else dice.choice(["fsdp", "tp"])
    steps = dice.randint(6, 10)
    strikes = SHAPES[shape](dice, replicas, ranks, steps, thaw)
    intervention = dice.choice(["none", "linear", "sqrt"])
    waits = dice.random() < (0.75 if shape in ("source", "while another recovers") or "again" in shape else 0.5)
    least, pace = replicas if waits and shape != "twin" else 1, 0.0
    if least == 1 and (shape == "twin" or dice.random() < 0.5):
        steps, pace = steps + 8, PACE
    return StormPlan(seed, shape, replicas, ranks, inside, steps, tuple(strikes), intervention, least, pace)


def table(plans: Iterable[StormPlan]) -> dict[str, Counter[str]]:
    """How many plans of each shape, and strikes of each kind and at each instant."""
    counts: dict[str, Counter[str]] = {"shape": Counter(), "what": Counter(), "at": Counter(), "inside": Counter()}
    for plan in plans:
        counts["shape"][plan.shape] += 1
        counts["inside"][f"{plan.replicas} x {plan.ranks} {plan.inside}"] += 1
        for s in plan.strikes:
            counts["what"][s.what] += 1
            counts["at"][s.at] += 1
    return counts
