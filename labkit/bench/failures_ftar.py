"""FTAR against gloo's native all-reduce and against labkit's own ring, on the same ranks and tensors, in turn.

A ratio is the other's time over FTAR's: 1 is as fast, less is slower. The slowest rank's time counts. Beside the time
stands the processors' time of all ranks: where many ranks share few cores it decides, and noise moves it less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import labkit
from labkit import collectives

from .ratios import geometric_mean, ratio, self_ratio, table

MIB = 1 << 20
TARGET = 0.97
WAYS = ("native", "ring", "ftar")


def arguments(parser: Any) -> None:
    """The options of this part."""
    parser.add_argument("--ftar-ranks", type=_numbers, default=[2, 4, 8], help="2,4,8")
    parser.add_argument("--ftar-mib", type=_numbers, default=[4, 16, 64, 256], help="tensor sizes: 4,16,64,256")
    parser.add_argument("--ftar-chunk", type=int, help="bytes of a chunk")
    parser.add_argument("--ftar-chunks", type=int, help="chunks on their way")


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each number of ranks and size. Large tensors get fewer pairs: they are as long as many small ones."""
    shape = {"chunk_bytes": options.ftar_chunk, "chunks": options.ftar_chunks}
    shape = {name: value for name, value in shape.items() if value is not None}
    found = []
    for n in options.ftar_ranks:
        for mib in options.ftar_mib:
            pairs = max(4, min(options.pairs, options.pairs * 256 // (mib * n)))
            run = labkit.launch(compare, n, mib * MIB, pairs, shape, transport=options.transport, timeout=300)
            found.append({"ranks": n, "MiB": mib, **_row(run.results)})
    return found


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print, and return the rows and their means."""
    found = rows(options)
    print(f"\nFTAR against native (gloo) and labkit's ring: time of the other over FTAR's\n{table(found)}")
    means = {}
    for name in ("native/ftar", "A/A native", "ring/ftar", "A/A ring", "CPU native/ftar", "CPU ring/ftar"):
        means[name] = geometric_mean([row[name] for row in found])
    for other in ("native", "ring"):
        print(
            f"geometric mean against {other}: {means[f'{other}/ftar']:.3f} (target at least {TARGET:g}; A/A "
            f"{means[f'A/A {other}']:.3f}), processors {means[f'CPU {other}/ftar']:.3f}",
            flush=True,
        )
    return {"rows": found, "means": means, "target": TARGET}


def compare(group: labkit.Group, nbytes: int, pairs: int, shape: dict[str, int]) -> dict[str, Any]:
    """On this rank: seconds on the clock, and of the processor, of each way, `pairs` times in turn.

    Raises RuntimeError if FTAR's sum is not that of the ring, bit by bit.
    """
    from labkit.resilience import ft_all_reduce

    def exchange(way: str, x: torch.Tensor) -> None:
        ft_all_reduce(x, group, **shape) if way == "ftar" else collectives.all_reduce(x, group, algorithm=way)

    ours = torch.randn(nbytes // 4, generator=torch.Generator().manual_seed(group.rank))
    ring = ours.clone()
    exchange("ftar", ours)
    exchange("ring", ring)
    if not torch.equal(ours, ring):
        raise RuntimeError("FTAR and the ring came to different sums")
    del ring
    exchange("native", ours)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    busy: dict[str, list[float]] = {way: [] for way in WAYS}
    for i in range(pairs):
        for way in WAYS[:: -1 if i % 2 else 1]:
            ours.fill_(1.0)
            collectives.barrier(group, algorithm="dissemination")
            begin, cpu = time.perf_counter(), time.process_time()
            exchange(way, ours)
            seconds[way].append(time.perf_counter() - begin)
            busy[way].append(time.process_time() - cpu)
    return {"seconds": seconds, "busy": busy}


def _row(results: list[dict[str, Any]]) -> dict[str, Any]:
    slowest = {w: [max(times) for times in zip(*(r["seconds"][w] for r in results), strict=True)] for w in WAYS}
    busy = {w: [sum(times) for times in zip(*(r["busy"][w] for r in results), strict=True)] for w in WAYS}
    row = {f"{w} ms": 1e3 * statistics.median(slowest[w]) for w in WAYS}
    for other in ("native", "ring"):
        row[f"{other}/ftar"] = ratio(slowest[other], slowest["ftar"])
        row[f"A/A {other}"] = self_ratio(slowest[other])
        row[f"CPU {other}/ftar"] = ratio(busy[other], busy["ftar"])
    return row


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
