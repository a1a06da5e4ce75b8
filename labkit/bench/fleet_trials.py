"""`labkit bench fleet-trials`: the runs of chapter 21 that check the simulator of a failing fleet, made again.

With --out FILE they replace the shipped ones. Two policies, each with a run that measures the system's times, and
runs whose failures are drawn at random. Beside each run stands what the simulator says for the same failures.

How the shipped files came about. The first recordings ran two trials at a time, and counted a run's steps by the median
step of another run, the one that gives the times. On a busy computer that was off by up to 10 percent; they were not
kept. So a run is now counted in its own median step, and runs go one at a time. `fleet_trials_busy.json` was made like
that, 12 runs of each policy, while other programs ran: `load` says how many. `fleet_trials.json` is one later attempt
on a quiet computer, 16 runs of each, with this command's defaults; it was agreed before that it ships as it comes out.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import labkit
from labkit.cost.estimates import Estimate
from labkit.data.runs import fleet_trial_rows
from labkit.resilience.fleet_trial import POLICIES, Trial, draw_strikes, far_apart, run_trials, simulated, times_of

from .large_batches import as_lines, provenance
from .ratios import table

EVERY = 3.6  # seconds between failures
BUSY, PATIENCE = 4.0, 10.0  # a run waits for a load below this, for so many seconds at most
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run, print a summary, and write the file if one is named; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench fleet-trials", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=16, help="runs of each policy (default 16)")
    parser.add_argument("--out", metavar="FILE", help="write the runs as JSON")
    parser.add_argument("--read", metavar="FILE", help="print the summary of runs that were written, and run nothing")
    options = parser.parse_args(argv)
    if options.read:
        summary(json.loads(Path(options.read).read_text()))
        return 0
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: at least 2, or there is no spread")
    labkit.warm()
    begin = time.process_time()
    trial = Trial(step=0.2, repair=1.4, time=16.0)
    setting = {name: getattr(trial, name) for name in ("replicas", "step", "repair", "time")} | {"every": EVERY}
    result: Row = {"provenance": {}, "setting": setting, "times": [], "runs": []}
    for policy in POLICIES:
        times, runs = tried(Trial(policy, trial.replicas, trial.step, trial.repair, trial.time), options.seeds)
        result["times"].append({"policy": policy} | times)
        result["runs"] += [{"policy": policy} | row for row in runs]
    result["provenance"] = provenance(options.seeds, time.process_time() - begin, "fleet-trials")
    result["provenance"]["note"] = "Wall clock on a shared machine: another run gives other numbers."
    summary(result)
    if options.out:
        Path(options.out).write_text(as_lines(result))
        print(f"\nwritten: {options.out}")
    return 0


def tried(trial: Trial, seeds: int) -> tuple[Row, list[Row]]:
    """The times of one policy, and a row for each seed."""
    quiet()
    (slow,) = run_trials([far_apart(trial, 8)])
    times = times_of(slow)
    rows = []
    for seed in range(seeds):
        load = quiet()
        (run,) = run_trials([(trial, draw_strikes(trial, EVERY, seed))])
        strikes = [[round(at, 4), replica] for at, replica in run.strikes]
        row = {
            "seed": seed,
            "measured": round(run.effective, 4),
            "own_step": round(run.usual, 4),
            "load": round(load, 1),
        }
        rows.append(row | {"strikes": strikes})
        print(f"{trial.policy}, seed {seed}: {row['measured']:.3f}, {len(strikes)} failures", flush=True)
    return {name: round(getattr(times, name), 4) for name in ("usual", "recovery", "stall", "rejoin")}, rows


def quiet() -> float:
    """Wait until the computer is, and return its load: of a run's result it knows nothing yet."""
    end = time.monotonic() + PATIENCE
    while os.getloadavg()[0] > BUSY and time.monotonic() < end:
        time.sleep(1.0)
    return os.getloadavg()[0]


def summary(result: Row) -> None:
    """For each policy the means, and how far the simulator is from the measurement."""
    runs = fleet_trial_rows(result)
    rows = []
    for policy in POLICIES:
        mine = [x for x in runs if x.policy == policy]
        said = [simulated(x) for x in mine]
        off = [s - x.measured for s, x in zip(said, mine, strict=True)]
        rows.append({"policy": policy, "runs": len(mine), "measured": str(Estimate.of(x.measured for x in mine)),
                     "simulated": str(Estimate.of(said)), "difference": str(Estimate.of(off))})  # fmt: skip
    print(table(rows))


if __name__ == "__main__":
    raise SystemExit(main())
