"""`labkit bench align`: alignment as a fleet, its batches, its layouts, its placements, and whether it learns.

Parts:

packing      useful tokens a second of packed rows over padded ones, on one long sequence and fifteen short ones
resharding   a policy from the training layout to the generating one: time over that of the least bytes (virtual clock)
placements   four models on the same ranks: utilization as simulated and as measured (virtual clock)
rewards      PPO, GRPO and DPO with a known truth, over several seeds
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .ratios import save, table

FILE = "labkit/data/runs/alignment.json"


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench align", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--longest", type=int, default=512, help="tokens of the long sequence (packing)")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each way, in turn (packing)")
    parser.add_argument("--ranks", type=int, default=8, help="of the fleet, 4 or more (placements)")
    parser.add_argument("--steps", type=int, default=30, help="of a run (rewards)")
    parser.add_argument("--seeds", type=int, default=5, help="of everything (rewards)")
    parser.add_argument("--json")
    parser.add_argument("--out", metavar="FILE", help="write the runs of the rewards as JSON, as they are shipped")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts {part}: choose from {', '.join(PARTS)}")
    if options.ranks < 4:
        parser.error(f"--ranks {options.ranks}: separate pools of four models need at least 4")
    save(options.json, {part: PARTS[part](options) for part in parts})
    return 0


def packing(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What padding costs."""
    from .align_packing import packing

    rows = [packing(options.longest, options.pairs)]
    print(f"\none sequence of {options.longest} tokens, fifteen of {options.longest // 16}", flush=True)
    print("\n".join(f"{name:>30}  {x:.4g}" for name, x in rows[0].items()), flush=True)
    return rows


def resharding(options: argparse.Namespace) -> list[dict[str, Any]]:
    """From a layout to another."""
    from .align_placements import resharding

    rows = resharding()
    print(f"\nweights of a policy change their layout (virtual clock)\n{table(rows)}", flush=True)
    return rows


def placements(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Who waits."""
    from .align_placements import placements

    rows = placements(options.ranks)
    print(f"\n{options.ranks} ranks, a step of PPO (virtual clock)\n{table(rows)}", flush=True)
    return rows


def rewards(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Does it learn what was meant?"""
    from .align_rewards import rewards, runs
    from .large_batches import as_lines, provenance

    begin = time.process_time()
    found = runs(options.seeds, options.steps)
    rows = rewards(found)
    if options.out:
        how = provenance(options.seeds, time.process_time() - begin, "alignment")
        how["command"] = (
            f"labkit bench align --parts rewards --seeds {options.seeds} --steps {options.steps} --out {FILE}"
        )
        how["note"] = "Everything follows from the seed; another processor may round differently."
        Path(options.out).write_text(as_lines({"provenance": how, "setting": {"steps": options.steps}, "runs": found}))
    print(
        f"\n{options.steps} steps, {options.seeds} seeds: the known truth, before and after\n{table(rows)}", flush=True
    )
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "packing": packing, "resharding": resharding, "placements": placements, "rewards": rewards,
}  # fmt: skip
