"""`labkit bench launch`: how long it takes until ranks have talked, against torch.multiprocessing.spawn.

Both start 4 processes and have them do one all-reduce over gloo, and both are timed from the call to the result.
labkit's worker process is warm, as in the second cell of a notebook. Memory is each rank's proportional share (PSS):
pages that N processes share count 1/N for each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

import labkit

from .ratios import alternate, ratio, save, self_ratio, table

TARGET_SPEEDUP, TARGET_MEMORY = 30.0, 60e6


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench launch", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    labkit.warm()
    with_labkit(4)
    spawned, launched = alternate(with_spawn, lambda: with_labkit(4), options.pairs)
    many = [with_labkit(64) for _ in range(3)]
    again = [with_labkit(4) for _ in range(10)]
    share = memory(16)
    rows = [
        {"what": "spawn, 4 ranks", "median s": statistics.median(spawned)},
        {"what": "labkit, 4 ranks, warm", "median s": statistics.median(launched)},
        {"what": "labkit, 64 ranks, warm", "median s": statistics.median(many)},
    ]
    print(table(rows))
    speedup = ratio(spawned, launched)
    noise, share64 = self_ratio(again), statistics.median(many) / statistics.median(spawned)
    print(f"\nwarm launch of 4 ranks against spawn: {speedup:.1f} times faster (target {TARGET_SPEEDUP:g})")
    print(f"the same launch against itself (A/A): {noise:.2f}")
    print(f"64 ranks take {share64:.2f} of the time spawn needs for 4 (target below 1)")
    print(f"proportional memory at 16 ranks: {share / 1e6:.0f} MB a rank (target at most {TARGET_MEMORY / 1e6:.0f})")
    save(options.json, {"speedup": speedup, "spawn": spawned, "labkit": launched, "labkit64": many, "pss": share})
    return 0


def with_labkit(n: int) -> float:
    begin = time.perf_counter()
    run = labkit.launch(_one_all_reduce, n)
    end = time.perf_counter()
    assert run.results == [float(n)] * n
    return end - begin


def _one_all_reduce(group: labkit.Group) -> float:
    x = torch.ones(1000)
    dist.all_reduce(x)
    return x[0].item()


def with_spawn() -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        torch.multiprocessing.spawn(_spawned, (f"file://{folder}/rendezvous",), nprocs=4)
        return time.perf_counter() - begin


def _spawned(rank: int, where: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=4)
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert x[0].item() == 4.0
    dist.destroy_process_group()


def memory(n: int) -> float:
    """Mean proportional memory of a rank in bytes, while all of them are alive."""

    def measure(group: labkit.Group) -> int:
        x = torch.ones(1000)
        dist.all_reduce(x)
        group.barrier()
        with open(f"/proc/{os.getpid()}/smaps_rollup") as f:
            pss = next(int(line.split()[1]) * 1024 for line in f if line.startswith("Pss:"))
        group.barrier()
        return pss

    return statistics.mean(labkit.launch(measure, n).results)
