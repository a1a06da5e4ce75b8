"""`labkit bench model-parallel`: tensor and pipeline parallelism against PyTorch's own, and the simulator against runs.

One world for each cell runs two equal models in turn, labkit's and PyTorch's; the slowest rank's time counts. A cell is
refused if their losses differ. Parts: tensor, pipeline, simulator.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .ratios import geometric_mean, save, table

TARGET = 1.05  # labkit's time over PyTorch's, at most
AGREEMENT = 0.05  # of a step's time, between simulator and run


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench model-parallel", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--only", type=_words, help="of the comparisons, only these: '1F1B', 'TP GPT,TP layers', ...")
    parser.add_argument("--ranks", type=_numbers, default=[2, 4])
    parser.add_argument("--batches", type=_numbers, default=[4, 16], help="sequences in a batch (tensor)")
    parser.add_argument("--microbatch", type=_numbers, default=[1, 4], help="sequences in a microbatch (pipeline)")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--unit", type=float, default=0.05, help="seconds of a stage's forward pass (simulator)")
    parser.add_argument("--transport", default="local", help="what carries labkit's messages; PyTorch's go over gloo")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    parts = _words(options.parts)
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts {part}: choose from {', '.join(PARTS)}")
    result: dict[str, Any] = {}
    for part in parts:
        result |= PARTS[part](options)
    save(options.json, result)
    return 0


def tensor(options: argparse.Namespace) -> dict[str, Any]:
    """Forward and backward of layers and of a GPT."""
    from .model_parallel_tensor import KINDS, cell

    result = {}
    for kind in _chosen(KINDS, options):
        rows = [cell(kind, n, b, options.pairs, options.transport) for n in options.ranks for b in options.batches]
        result[kind] = compared(f"{kind}, forward and backward", rows)
    return result


def pipeline(options: argparse.Namespace) -> dict[str, Any]:
    """A step of a GPT by each schedule that both have."""
    from .model_parallel_pipeline import SCHEDULES, cell

    result = {}
    for name in _chosen(SCHEDULES, options):
        rows = [
            cell(name, n, options.microbatches, b, options.pairs, options.transport)
            for n in options.ranks
            for b in options.microbatch
        ]
        result[name] = compared(f"{name}, a step of {options.microbatches} microbatches", rows)
    return result


def simulator(options: argparse.Namespace) -> dict[str, Any]:
    """Steps of stand-in kernels on the wall clock and by the simulator; and how fast the simulator is."""
    from .model_parallel_simulator import agreement, speed

    rows = [
        row for n in options.ranks for row in agreement(n, options.microbatches, options.unit, options.transport)
    ]  # fmt: skip
    worst = max(abs(row["wall / simulated"] - 1) for row in rows)
    print(f"\nruns on the wall clock (best of three) and simulator, units of {1000 * options.unit:g} ms\n{table(rows)}")
    print(f"furthest apart: {100 * worst:.1f} % (target at most {100 * AGREEMENT:g} %)", flush=True)
    large = speed()
    print(f"\n64 stages, 1,024 microbatches\n{table(large)}", flush=True)
    return {"agreement": rows, "worst": worst, "speed": large}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "tensor": tensor, "pipeline": pipeline, "simulator": simulator,
}  # fmt: skip


def compared(title: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the rows of a comparison with PyTorch, and their mean."""
    mean = geometric_mean([row["time ratio"] for row in rows])
    noise = geometric_mean([row["A/A"] for row in rows])
    work = geometric_mean([row["CPU ratio"] for row in rows])
    print(f"\n{title}, labkit's over PyTorch's\n{table(rows)}")
    print(
        f"geometric mean: time {mean:.2f} (target at most {TARGET:g}; A/A {noise:.2f}), processors {work:.2f}",
        flush=True,
    )
    return {"rows": rows, "mean": mean, "A/A": noise, "CPU": work}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _chosen(names: Any, options: argparse.Namespace) -> list[str]:
    return [name for name in names if options.only is None or name in options.only]
