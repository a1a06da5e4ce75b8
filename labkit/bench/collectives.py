"""`labkit bench collectives`: labkit's own collectives against gloo's native ones, on the same ranks.

One world for each number of ranks runs both in turn on the same tensors; the slowest rank's time counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import labkit
from labkit import collectives

from .ratios import geometric_mean, ratio, save, self_ratio, table

MIB = 1 << 20
CANDIDATES = {"all_reduce": ["ring", "halving_doubling"], "reduce_scatter": ["ring", "halving", "pairwise"]}
TARGETS = {("all_reduce", "local"): 1.5, ("all_reduce", "gloo"): 0.85, ("reduce_scatter", "local"): 2.0}


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench collectives", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--mib", default="1,4,16,64")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    ranks, sizes = [[int(v) for v in text.split(",")] for text in (options.ranks, options.mib)]
    result: dict[str, Any] = {}
    for (name, transport), target in TARGETS.items():
        rows = []
        for n in ranks:
            for mib in sizes:
                run = labkit.launch(compare, n, name, mib * MIB, options.pairs, transport=transport, timeout=300)
                rows.append({"ranks": n, "MiB": mib, **_row(run.results)})
        mean = geometric_mean([r["native/own"] for r in rows])
        noise = geometric_mean([r["A/A"] for r in rows])
        print(f"\n{name} over {transport}, best own algorithm against gloo's native\n{table(rows)}")
        print(f"geometric mean {mean:.2f} (target at least {target:g}); A/A {noise:.2f}", flush=True)
        result[f"{name} {transport}"] = {"rows": rows, "mean": mean, "A/A": noise}
    save(options.json, result)
    return 0


def compare(group: labkit.Group, name: str, nbytes: int, pairs: int) -> dict[str, list[float]]:
    """Seconds of each algorithm and of the native one, `pairs` times in turn (on this rank)."""
    x = torch.ones(nbytes // 4)
    collective = getattr(collectives, name)
    algorithms = [*CANDIDATES[name], "native"]
    times: dict[str, list[float]] = {a: [] for a in algorithms}
    for a in algorithms:
        collective(x, group, algorithm=a)
    for i in range(pairs):
        for a in algorithms[:: -1 if i % 2 else 1]:
            x.fill_(1.0)
            collectives.barrier(group, algorithm="dissemination")
            begin = time.perf_counter()
            collective(x, group, algorithm=a)
            times[a].append(time.perf_counter() - begin)
    return times


def _row(results: list[dict[str, list[float]]]) -> dict[str, Any]:
    slowest = {a: [max(r[a][i] for r in results) for i in range(len(results[0][a]))] for a in results[0]}
    native = slowest.pop("native")
    best = max(slowest, key=lambda a: ratio(native, slowest[a]))
    own = slowest[best]
    return {
        "native ms": 1e3 * statistics.median(native),
        "own ms": 1e3 * statistics.median(own),
        "best": best,
        "native/own": ratio(native, own),
        "A/A": self_ratio(native),
    }
