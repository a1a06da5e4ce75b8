"""`labkit bench large-batches`: the runs of chapter 7, made again. With --out FILE they replace the shipped ones.

1. The best rate for each batch size, on seeds of its own, and then steps to a target loss over many seeds.
2. The gradient noise scale at three losses: the truth from single examples, and the estimate from two batch sizes.
3. A batch 32 times as large in as many epochs: which recipes still train, and at which rates.

Every number is of trainings that ran; nothing is drawn from a model. About four minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from labkit.bench.large_batches_recipes import BASE, LARGE, SMALL, Recipe, recipes, train
from labkit.bench.large_batches_steps import (
    TARGET,
    estimated_noise_scale,
    steps_to_target,
    true_noise_scale,
    weights_at,
)
from labkit.optim import critical_batch_interval, fit_critical_batch

from .ratios import table

BATCHES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
TUNING_SEEDS = tuple(range(100, 106))
LOSSES = (1.8, 1.2, 0.6, 0.3)
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run, print a summary, and write the file if one is named; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench large-batches", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24, help="seeds of every measured run (default 24)")
    parser.add_argument("--out", metavar="FILE", help="write the runs as JSON")
    options = parser.parse_args(argv)
    begin, seeds = time.process_time(), tuple(range(options.seeds))
    tuning, steps = batch_sizes(seeds)
    result: Row = {
        "provenance": {},
        "target": TARGET,
        "tuning": tuning,
        "steps": steps,
        "noise": [noise_at(loss, seed) for loss in LOSSES for seed in seeds[:6]],
        "recipes": [trained(recipe, seeds) for recipe in recipes()],
        "rates": [trained(recipe, TUNING_SEEDS[:4]) for recipe in grid()],
        "rounding": rounding(steps, seeds[:6]),
    }
    result["provenance"] = provenance(options.seeds, time.process_time() - begin)
    summary(result)
    if options.out:
        Path(options.out).write_text(as_lines(result))
        print(f"\nwritten: {options.out}")
    return 0


def batch_sizes(seeds: Sequence[int]) -> tuple[list[Row], list[Row]]:
    """Tuned on `TUNING_SEEDS`, measured on `seeds`: two lists of rows, one row for each batch size and rate."""
    tuning: list[Row] = []
    measured: list[Row] = []
    power, limit = -6, 4000  # rates are 2^(power / 2): 0.125 at first
    for batch in BATCHES:
        tried: dict[int, Row] = {}

        def cost(p: int, batch: int = batch, tried: dict[int, Row] = tried, limit: int = limit) -> float:
            if p not in tried:
                tried[p] = to_target(batch, 2 ** (p / 2), TUNING_SEEDS, limit)
            values = sorted(math.inf if s is None else s for s in tried[p]["steps"])
            return sum(values) / len(values)  # one seed that never arrives makes a rate useless

        while cost(power + 1) < cost(power) or cost(power) == math.inf > cost(power + 1):
            power += 1
        while cost(power - 1) < cost(power) or (cost(power) == math.inf and power > -14):
            power -= 1
        tuning += [tried[p] for p in sorted(tried)]
        measured.append(to_target(batch, 2 ** (power / 2), seeds, limit))
        limit = max(300, 3 * round(cost(power)))  # a larger batch needs no more steps
    return tuning, measured


def to_target(batch: int, lr: float, seeds: Sequence[int], limit: int) -> Row:
    found = [steps_to_target(batch, lr, seed, limit=limit).steps for seed in seeds]
    return {"batch": batch, "lr": lr, "seeds": list(seeds), "steps": found}


def noise_at(loss: float, seed: int) -> Row:
    """The truth and an estimate (4 ranks of 16, 100 steps at fixed weights)."""
    model = weights_at(loss, lr=0.5, seed=seed)
    signal, noise = true_noise_scale(model)
    found = estimated_noise_scale(model, ranks=4, per_rank=16, steps=100, seed=seed).estimate()
    values = {"signal": signal, "noise": noise, "estimate": found.scale, "low": found.low, "high": found.high}
    return {"loss": loss, "seed": seed} | {name: _digits(value) for name, value in values.items()}


def trained(recipe: Recipe, seeds: Sequence[int]) -> Row:
    rows = [train(recipe, seed) for seed in seeds]
    row = {"recipe": recipe.name, "optimizer": recipe.optimizer, "batch": recipe.batch, "lr": _digits(recipe.lr)}
    columns = {name: [_digits(getattr(r, name)) for r in rows] for name in ("loss", "accuracy", "worst")}
    return row | {"warm": recipe.warm, "seeds": list(seeds)} | columns


def grid() -> list[Recipe]:
    """Rates around those of the recipes: what each batch and optimizer can take."""
    found = [
        Recipe(f"{o}, rate {base * 2**p:g}", o, SMALL, base * 2**p) for o, base in BASE.items() for p in (-2, -1, 0, 1)
    ]
    for optimizer, base in BASE.items():
        for lr in (base * 2**p for p in range(0, 7)):
            for warm in (0.0, 0.25):
                found.append(Recipe(f"{optimizer}, rate {lr:g}", optimizer, LARGE, lr, warm))
    found += [Recipe(f"LARS, rate {lr:g}", "LARS", LARGE, lr, 0.25) for lr in (0.1, 0.2, 0.3, 0.4)]
    return found + [Recipe(f"LAMB, rate {lr:g}", "LAMB", LARGE, lr, 0.25) for lr in (0.02, 0.04, 0.06, 0.08)]


def rounding(steps: list[Row], seeds: Sequence[int]) -> dict[str, float]:
    """How far fp64 is from fp32: as far as another processor's order of additions may be. Parts of the steps;
    points of accuracy, over the recipes that train."""
    off = [0.0]
    for row in steps:
        for seed in seeds:
            one = row["steps"][row["seeds"].index(seed)]
            other = steps_to_target(row["batch"], row["lr"], seed, dtype=torch.float64).steps
            if one and other:
                off.append(abs(one - other) / other)
    tame = [r for r in recipes() if "linear" not in r.name and r.batch == LARGE]
    points = [abs(train(r, s).accuracy - train(r, s, dtype=torch.float64).accuracy) for r in tame for s in seeds[:3]]
    return {"steps": _digits(max(off)) or 0.0, "accuracy": _digits(max(points)) or 0.0}


def provenance(seeds: int, cpu_seconds: float, benchmark: str = "large-batches") -> Row:
    packages = {name: version(name) for name in ("torch", "scikit-learn", "numpy")}
    file = f"labkit/data/runs/{benchmark.replace('-', '_')}.json"
    return {
        "command": f"labkit bench {benchmark} --seeds {seeds} --out {file}",
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} shared CPU cores ({platform.machine()}), no GPU, one thread",
        "versions": {"python": platform.python_version(), **packages},
        "cpu_seconds": round(cpu_seconds),
        "note": "Same weights and same order of examples everywhere; another processor may round differently.",
    }


def summary(result: Row) -> None:
    runs: dict[int, list[float]] = {row["batch"]: [s for s in row["steps"] if s] for row in result["steps"]}
    rows = [{"batch": r["batch"], "rate": r["lr"], "steps (median)": median(runs[r["batch"]]),
             "not reached": r["steps"].count(None)} for r in result["steps"]]  # fmt: skip
    print(table(rows))
    fit = fit_critical_batch([(batch, median(steps)) for batch, steps in runs.items()])
    low, high = critical_batch_interval(runs)
    print(f"\nleast steps {fit.least_steps:.1f}, least examples {fit.least_examples:.0f}, critical batch "
          f"{fit.critical:.1f} (95 % over seeds: {low:.1f} to {high:.1f}), residual {fit.residual:.1%}\n")  # fmt: skip
    for loss in LOSSES:
        found = [r for r in result["noise"] if r["loss"] == loss]
        true, estimate = median(r["noise"] / r["signal"] for r in found), median(r["estimate"] for r in found)
        print(f"loss {loss}: noise scale {true:.1f} (truth, median of {len(found)}), {estimate:.1f} (estimated)")
    for part in ("recipes", "rates"):
        rows = [{"recipe": r["recipe"], "batch": r["batch"], "rate": r["lr"], "warmup": r["warm"],
                 "loss": median(math.inf if x is None else x for x in r["loss"]),
                 "accuracy": median(r["accuracy"]), "worst": min(r["accuracy"])} for r in result[part]]  # fmt: skip
        print("\n" + table(rows))
    print(f"\nfp64 against fp32: {result['rounding']}")


def as_lines(result: Row) -> str:
    """JSON with one row a line: small, and a change shows in a diff."""
    parts = []
    for name, value in result.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row, separators=(",", ":"), allow_nan=False) for row in value)
            parts.append(f'"{name}": [\n{rows}\n]')
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _digits(x: float) -> float | None:
    """Four digits, which is more than the seeds agree on; None for what JSON cannot hold."""
    return float(f"{x:.4g}") if math.isfinite(x) else None
