"""Silent corruption: how long it goes on, and what finding it costs.

Three ways to look, each blind to something. Replica checksums see states that differ, but a bad gradient that was
summed is in all replicas alike. A second run of a step on the same machine sees what happens now and then, but not
what happens each time. A second run on another machine sees both, at twice the cost.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import positive, probability, whole

__all__ = ["corrupted_before_found", "interruptions_per_host", "replay_overhead", "runs_to_clear", "steps_until_found"]


def replay_overhead(every: int) -> float:
    """The work that running one step in `every` twice adds: 1 / every."""
    whole(every=every)
    return 1 / every


def steps_until_found(chance: float, every: int = 1, caught: float = 1.0) -> float:
    """Mean number of steps until a machine is found that corrupts each step with probability `chance`.

    One step in `every` is run again, and shows a corruption in it with probability `caught`: every / (chance caught).
    Infinite if it never corrupts, or replay never shows it.
    """
    probability(chance=chance, caught=caught)
    whole(every=every)
    return math.inf if chance * caught == 0 else every / (chance * caught)


def corrupted_before_found(every: int = 1, caught: float = 1.0) -> float:
    """Mean number of corrupted steps up to and with the one that is found: every / caught, however rare they are."""
    probability(caught=caught)
    whole(every=every)
    return math.inf if caught == 0 else every / caught


def runs_to_clear(chance: float, sure: float = 0.99) -> int:
    """How many clean runs of a test show, with confidence `sure`, that a machine does not fail with `chance` in each.

    ln(1 - sure) / ln(1 - chance), rounded up: 459 runs for one failure in a hundred.
    """
    positive(chance=chance, sure=sure)
    if chance >= 1 or sure >= 1:
        raise ValueError(f"chance={chance!r} and sure={sure!r} must be below 1")
    return math.ceil(math.log1p(-sure) / math.log1p(-chance))


def interruptions_per_host(interruptions: int, hosts: int) -> float:
    """How often one bad host comes back before it is found: FT-HSDP's 37 interruptions came from 7 hosts, 5.3 each."""
    whole(interruptions=interruptions, hosts=hosts)
    return interruptions / hosts
