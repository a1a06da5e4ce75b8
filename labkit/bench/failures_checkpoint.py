"""Checkpoints: what a save costs training, at once and behind it, in one run; a part of `labkit bench failures`.

Every rank trains for some steps, four ways in turn: without a save, with one that it waits for, with one that is
written behind training, and with one that is also copied beside the next step, up to where an update would begin. The
stall is what the slowest rank took longer than without. Kernels are stood in for (a GPU
would compute, and the processors be free), or real: then the thread that writes takes processors from training.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import labkit
from labkit import collectives
from labkit.parallel import FullyShard
from labkit.resilience.checkpoint import Checkpointer

from .ratios import save, table

TARGET = 0.10  # the stall of a save behind training over that of one that is waited for, at most
WAYS = ("without", "at once", "behind", "beside")
KERNELS = ("stand-in", "real")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(
        prog="labkit.bench.failures_checkpoint", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument(
        "--mib", type=int, nargs="+", default=[64, 256], help="of training state, on all ranks together"
    )
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--step", type=float, default=0.05, help="seconds of a step's kernels")
    parser.add_argument("--directory", help="on the disk to be measured; by default that of temporary files")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    found = checkpoints(options.ranks, options.mib, options.repeats, options.step, options.directory, options.kernels)
    save(options.json, found)
    return 0


def arguments(parser: Any) -> None:
    """The options of this part of `labkit bench failures`."""
    parser.add_argument("--checkpoint-ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--checkpoint-mib", type=int, nargs="+", default=[64, 256], help="of training state, in all")
    parser.add_argument("--checkpoint-repeats", type=int, default=7)
    parser.add_argument("--checkpoint-step", type=float, default=0.05, help="seconds of a step's kernels")
    parser.add_argument("--checkpoint-directory", help="on the disk to be measured; else that of temporary files")


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measured, printed and returned."""
    o = options
    found = checkpoints(
        o.checkpoint_ranks, o.checkpoint_mib, o.checkpoint_repeats, o.checkpoint_step, o.checkpoint_directory
    )
    return dict(found["checkpoint"])


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the table."""
    return list(report(options)["rows"])


def checkpoints(
    ranks: list[int], mib: list[int], repeats: int = 7, step: float = 0.05, directory: str | None = None,
    kernels: Sequence[str] = KERNELS,
) -> dict[str, Any]:  # fmt: skip
    """The table, printed and returned."""
    rows = []
    for work in kernels:
        for n in ranks:
            for size in mib:
                rows.append(cell(n, size, work, repeats, step, directory))
                print(".", end="", flush=True)
    worst = max(row["beside / at once"] for row in rows)
    print(f"\nstall of training by a checkpoint, in steps of {1000 * step:g} ms\n{table(rows)}")
    print(f"largest ratio {worst:.3f} (target at most {TARGET:g})", flush=True)
    return {"checkpoint": {"rows": rows, "worst": worst, "target": TARGET}}


def cell(n: int, mib: int, work: str, repeats: int, step: float, directory: str | None) -> dict[str, Any]:
    """One row."""
    where = tempfile.mkdtemp(prefix="labkit-checkpoint-", dir=directory)
    try:
        run = labkit.launch(measure, n, where, mib, work, repeats, step, transport="local", timeout=600)
    finally:
        shutil.rmtree(where, ignore_errors=True)
    times = {way: [max(t) for t in zip(*(r[way] for r in run.results), strict=True)] for way in WAYS}
    stalls = {way: statistics.median(a - b for a, b in zip(times[way], times["without"], strict=True)) for way in WAYS}
    inside = {way: 1e3 * statistics.median(max(t) for t in zip(*(r[f"in {way}"] for r in run.results), strict=True))
              for way in WAYS[1:]}  # fmt: skip
    halves = times["without"]
    noise = statistics.median(abs(a - b) for a, b in zip(halves, halves[1:], strict=False))
    return {
        "kernels": work, "ranks": n, "MiB": mib, "steps": run.results[0]["steps"],
        "at once ms": 1e3 * stalls["at once"], "behind ms": 1e3 * stalls["behind"], "A/A ms": 1e3 * noise,
        "behind / at once": max(0.0, stalls["behind"]) / stalls["at once"],
        "beside / at once": max(0.0, stalls["beside"]) / stalls["at once"], "save() at once ms": inside["at once"],
        "save() behind ms": inside["behind"], "save() beside ms": inside["beside"],
        "save() ratio": inside["behind"] / inside["at once"],
        "save() beside ratio": inside["beside"] / inside["at once"],
    }  # fmt: skip


def measure(group: labkit.Group, where: str, mib: int, work: str, repeats: int, step: float) -> dict[str, Any]:
    """Seconds of each block of steps on this rank, by way; and of `save` inside."""
    width = 1024
    layers = max(1, round(mib * 2**20 / (3 * 4 * width * width)))  # weights, momentum and variance of 4 bytes each
    model = FullyShard(nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))), group)
    optimizer = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    found: dict[str, Any] = {name: [] for name in (*WAYS, *(f"in {way}" for way in WAYS[1:]))}
    with Checkpointer(Path(where), group, model, optimizer, keep=2) as checkpoints:
        for wait in (True, False, True, False):  # room, plans and pages that only the first save needs
            first = checkpoints.save(0, wait=wait)
            checkpoints.finish()
        longest = torch.tensor([first.written])
        steps = max(4, 1 + int(2 * collectives.all_reduce(longest, group, "max").item() / step))  # it ends within
        for i in range(repeats):
            for way in WAYS if i % 2 else reversed(WAYS):
                seconds, inside = block(group, checkpoints, way, work, steps, step, i)
                found[way].append(seconds)
                if way != "without":
                    found[f"in {way}"].append(inside)
                checkpoints.finish()
    return found | {"steps": steps}


def block(
    group: labkit.Group, checkpoints: Checkpointer, way: str, work: str, steps: int, step: float, number: int
) -> tuple[float, float]:
    """(seconds of `steps` steps with a save in it, seconds inside of `save` and waiting for the copy)."""
    x = torch.ones(256, 256)
    collectives.barrier(group, algorithm="dissemination")
    begun, inside = time.perf_counter(), 0.0
    for i in range(steps):
        if i == 1 and way != "without":
            before = time.perf_counter()
            checkpoints.save(number, wait=way == "at once", beside=way == "beside")
            inside = time.perf_counter() - before
        if work == "real":
            for _ in range(round(step / 0.0015)):  # as many products each time, whatever else runs
                x = x @ x / 256
        else:
            with group.compute(step):
                pass
        collectives.barrier(group, algorithm="dissemination")  # as the gradients of a step would
        if i == 1:
            before = time.perf_counter()
            checkpoints.staged()  # as the update would
            inside += time.perf_counter() - before
    return time.perf_counter() - begun, inside


if __name__ == "__main__":
    raise SystemExit(main())
