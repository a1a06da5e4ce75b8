"""How long a quorum takes as the number of members grows, with a real control plane and no training.

Each row is one world of `labkit.resilience.quorum.emulate`: replicas of many ranks, whose heartbeats reach the service
through host aggregators. A quorum counts from the question of the last leader to the last member on the last host.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from typing import Any

from labkit.resilience.quorum import QuorumClient, QuorumService
from labkit.resilience.quorum.connection import Connection, parse
from labkit.resilience.quorum.emulate import emulate, processor

from .ratios import table

TARGET = 0.7  # seconds at 100,000 members: Salpekar et al. 2026, section 5
BEAT = 5.0  # seconds between two heartbeats of a member


def arguments(parser: Any) -> None:
    """The options of this part."""
    parser.add_argument("--quorum-members", type=_numbers, default=[100, 1_000, 10_000, 100_000], help="100,1000,...")
    parser.add_argument("--quorum-replicas", type=int, default=12)
    parser.add_argument("--quorum-rounds", type=int, default=30, help="quorums of each kind")


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each number of members. Milliseconds; "same" keeps the members and the id, "new" has a new id."""
    found = []
    for members in options.quorum_members:
        seen = emulate(members, options.quorum_replicas, rounds=options.quorum_rounds, beat=BEAT)
        same, new = sorted(seen["same"]), sorted(seen["new"])
        found.append({
            "members": members, "hosts": seen["hosts"], "same ms": 1e3 * statistics.median(same),
            "same max": 1e3 * same[-1], "new ms": 1e3 * statistics.median(new), "new max": 1e3 * new[-1],
            "death ms": 1e3 * seen["death"], "check-in ms": 1e3 * seen["again"], "rejoin ms": 1e3 * seen["rejoin"],
            "start s": seen["check in"], "CPU ms a round": 1e3 * seen["service CPU of a round"],
            "CPU % of heartbeats": 100 * seen["service CPU of a second of heartbeats"],
        })  # fmt: skip
    return found


def growth(found: list[dict[str, Any]], key: str) -> float:
    """The exponent: by which power of the number of members a column grows, from the first row to the last."""
    first, last = found[0], found[-1]
    if last["members"] == first["members"]:
        return math.nan
    return math.log(last[key] / first[key]) / math.log(last["members"] / first["members"])


def direct(beats: int = 5000) -> float:
    """Processor seconds of the service for one heartbeat that reaches it without an aggregator."""
    with QuorumService.start(1) as service, QuorumClient(service.address, service.token) as client:
        client.begin(0)
        connection = Connection(parse(service.address), service.token)
        before = processor(service.pid)
        for _ in range(beats):
            connection.call({"call": "beat", "replica": 0, "incarnation": 1, "rank": 0})
        used = processor(service.pid) - before
        connection.close()
    return used / beats


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print, and return the rows and what follows from them."""
    found = rows(options)
    print(
        f"\nquorum over {options.quorum_replicas} replicas, from the last question to the last member\n{table(found)}"
    )
    last = found[-1]
    worst = max(last["same max"], last["new max"]) / 1e3
    print(
        f"{last['members']:,} members: {last['new ms']:.0f} ms, slowest of {2 * options.quorum_rounds} "
        f"{1e3 * worst:.0f} ms (target under {1e3 * TARGET:g} ms), on {os.cpu_count()} processors; "
        f"grows with members to the power {growth(found, 'new ms'):.2f}"
    )
    each = direct()
    alone, through = 100 * last["members"] / BEAT * each, last["CPU % of heartbeats"]
    print(
        f"a heartbeat without an aggregator takes {1e6 * each:.0f} us of the service's processor; {last['members']:,} "
        f"members, each every {BEAT:g} s: {alone:.0f} % of a processor, through aggregators {through:.1f} %",
        flush=True,
    )
    return {"rows": found, "target": TARGET, "worst": worst, "growth": growth(found, "new ms"), "direct": each}


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]
