"""`labkit bench recovery-accuracy`: the runs of chapter 19 on the quality of the model, made again.

With --out FILE they replace the shipped ones. 14 settings, each with the same seeds: without faults, the same in
another order, and one or three of twelve replicas away, for short or long, with three ways to set the learning rate.
About three minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from labkit.data.runs import AccuracyRow, accuracy_rows
from labkit.resilience.accuracy.claims import at_end, during, flattened, shift
from labkit.resilience.accuracy.experiment import RATE, REPLICAS, STEPS, Setting, settings, train

from .large_batches import as_lines, provenance
from .ratios import table

RATES = (4e-3, 8e-3, 16e-3, 32e-3)
TUNING_SEEDS = (100, 101, 102, 103)
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run, print a summary, and write the file if one is named; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench recovery-accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24, help="seeds of every setting (default 24)")
    parser.add_argument("--out", metavar="FILE", help="write the runs as JSON")
    parser.add_argument("--read", metavar="FILE", help="print the summary of runs that were written, and run nothing")
    options = parser.parse_args(argv)
    if options.read:
        summary(json.loads(Path(options.read).read_text()))
        return 0
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: at least 2, or there is no spread")
    begin, seeds = time.process_time(), list(range(options.seeds))
    result: Row = {
        "provenance": {},
        "replicas": REPLICAS,
        "planned": STEPS,
        "rate": RATE,
        "tuning": [tuned(rate) for rate in RATES],
        "runs": [trained(setting, seeds) for setting in settings()],
    }
    result["provenance"] = provenance(options.seeds, time.process_time() - begin, "recovery-accuracy")
    summary(result)
    if options.out:
        Path(options.out).write_text(as_lines(result))
        print(f"\nwritten: {options.out}")
    return 0


def tuned(rate: float) -> Row:
    """The loss at the end without faults, on seeds of its own."""
    losses = train(Setting(), TUNING_SEEDS, rate)[-1].losses
    return {"rate": rate, "seeds": list(TUNING_SEEDS), "losses": [round(loss, 4) for loss in losses]}


def trained(setting: Setting, seeds: list[int]) -> Row:
    """All seeds of one setting; looks are at the same steps for all."""
    looks = train(setting, seeds)
    print(f"{setting.name}: {sum(looks[-1].losses) / len(seeds):.4f} at the end", flush=True)
    what = {name: getattr(setting, name) for name in ("lost", "length", "intervention", "order")}
    axes = {"steps": [look.step for look in looks], "samples": [look.samples for look in looks]}
    by_seed = zip(*(look.losses for look in looks), strict=True)
    return what | axes | {"seeds": seeds, "losses": [[round(loss, 4) for loss in run] for run in by_seed]}


def summary(result: Row) -> None:
    """Print differences from the run without faults, and what they say about each claim."""
    rows = accuracy_rows(result["runs"])
    print(table([{"rate": row["rate"], "loss at the end": row["losses"]} for row in result["tuning"]]))
    print("\nloss minus that of the same seed without faults, nats a byte, ± its standard error over seeds")
    print(table([described(rows, run) for run in result["runs"][1:]]))
    print("\nhow much closer to the run without faults than with the rate left as it is")
    for run in result["runs"]:
        if run["intervention"] != "none":
            found = flattened(rows, run["lost"], run["length"], run["intervention"])
            print(f"{run['lost']} of {REPLICAS} for {run['length']} steps, {run['intervention']}: {found}", flush=True)


def described(rows: list[AccuracyRow], run: Row) -> Row:
    which = {name: run[name] for name in ("lost", "length", "intervention", "order")}
    found: Row = {"setting": Setting(**which).name}
    for name, measure in (("away", during), ("end", at_end)):
        for axis in ("steps", "samples"):
            found[f"{name}, equal {axis}"] = str(shift(rows, measure, axis, **which))
    return found | {"spread": round(shift(rows, at_end, "samples", **which).spread, 4)}
