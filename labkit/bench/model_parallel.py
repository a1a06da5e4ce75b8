"""`labkit bench model-parallel`: tensor and pipeline parallelism against PyTorch's own, and the simulator against runs.

One world for each cell runs two equal models in turn, labkit's and PyTorch's; the slowest rank's time counts. A cell is
refused if their losses differ. Parts: tensor, pipeline, simulator.
"""

from __future__ import annotations

import argparse
from typing import Any

from .ratios import geometric_mean, save, table

TARGET = 1.05  # labkit's time over PyTorch's, at most
AGREEMENT = 0.05  # of a step's time, between simulator and run
PARTS = ("tensor", "pipeline", "simulator")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench model-parallel", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--batches", default="4,16", help="sequences in a batch, for tensor parallelism")
    parser.add_argument("--microbatch", default="1,4", help="sequences in a microbatch, for pipelines")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--unit", type=float, default=0.02, help="seconds of a forward pass for the simulator's test")
    parser.add_argument("--transport", default="local", help="what carries labkit's messages; PyTorch's go over gloo")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    ranks, batches, pieces = (
        [int(v) for v in words.split(",")] for words in (options.ranks, options.batches, options.microbatch)
    )  # fmt: skip
    parts = options.parts.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"--parts {unknown[0]}: choose from {', '.join(PARTS)}")
    result: dict[str, Any] = {}
    if "tensor" in parts:
        from .model_parallel_tensor import KINDS, cell

        for kind in KINDS:
            rows = [cell(kind, n, batch, options.pairs, options.transport) for n in ranks for batch in batches]
            result[kind] = compared(f"{kind}, forward and backward", rows)
    if "pipeline" in parts:
        from .model_parallel_pipeline import SCHEDULES
        from .model_parallel_pipeline import cell as pipeline_cell

        for name in SCHEDULES:
            rows = [
                pipeline_cell(name, n, options.microbatches, batch, options.pairs, options.transport)
                for n in ranks
                for batch in pieces
            ]
            result[name] = compared(f"{name}, a step of {options.microbatches} microbatches", rows)
    if "simulator" in parts:
        from .model_parallel_simulator import agreement, speed

        rows = [row for n in ranks for row in agreement(n, options.microbatches, options.unit, options.transport)]
        worst = max(abs(row["wall / simulated"] - 1) for row in rows)
        print(f"\nruns on the wall clock (best of three) and simulator, units of {1000 * options.unit:g} ms")
        print(f"{table(rows)}\nfurthest apart: {100 * worst:.1f} % (target at most {100 * AGREEMENT:g} %)", flush=True)
        large = speed()
        print(f"\n64 stages, 1,024 microbatches\n{table(large)}", flush=True)
        result["simulator"] = {"rows": rows, "worst": worst, "speed": large}
    save(options.json, result)
    return 0


def compared(title: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the rows of a comparison with PyTorch, and their mean."""
    mean = geometric_mean([row["time ratio"] for row in rows])
    noise = geometric_mean([row["A/A"] for row in rows])
    print(f"\n{title}, labkit's over PyTorch's\n{table(rows)}")
    print(f"geometric mean {mean:.2f} (target at most {TARGET:g}; A/A {noise:.2f})", flush=True)
    return {"rows": rows, "mean": mean, "A/A": noise}
