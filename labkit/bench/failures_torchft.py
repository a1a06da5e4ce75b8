"""FT-HSDP beside torchft, the library of the same idea: what a death, a return, and days without either cost in each.

The job is that of `failures_stall`: replica groups of one rank, a small real model, a stand-in kernel. One process is
killed with SIGKILL half a step into a step, and started again at once. All numbers come from what each process wrote
down at its updates (`diaries`), for both alike. torchft is no dependency of labkit: without it this part says so.

What is not alike, and no merit of either: labkit's new process is forked from one that has PyTorch loaded, torchft's is
a new interpreter ("ready s" says how much of "away s" that is), and labkit's makes one step for nothing before it
joins. labkit's supervisor tells the quorum service of a death; nobody tells torchft's lighthouse, which has to miss
heartbeats. labkit writes an audit log and trains each sample once; torchft promises neither.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from labkit.resilience.ft_hsdp import FtConfig

from .diaries import ProcessDiary, cost, ordinary, together
from .failures_stall import configuration
from .ratios import ratio, self_ratio, table
from .rivals import LabkitJob, Processes, Torchft
from .side_by_side import Episode, Job, episode

ABSENT = "torchft is not installed beside labkit: pip install torchft, and run this part again"
VICTIM = 1
BEFORE, AFTER = 6, 5  # steps of all replicas before the kill, and after the return
BEATS = 6  # of a replica that may be missed before it is dead, in the row with the shortest time-out
OURS, BARE = "labkit", "bare loop"
# `torchft_lighthouse --help` (0.2.0), milliseconds. The class LighthouseServer, which tests use, has 100 for the first:
# less than a step. With it replicas that did not start together take turns: whoever sat out a step has waited for long
# enough when the first of the others asks, and the quorum is made without the second, which comes a moment later.
COMMAND = {"join_timeout_ms": 60_000, "heartbeat_timeout_ms": 5_000, "quorum_tick_ms": 100}

Start = Callable[[Path], Job]


def arguments(parser: Any) -> None:
    """The options of this part; the job is set by those of the part `stall`."""
    parser.add_argument("--torchft-patience", type=float, default=120.0,
                        help="seconds after which a run that stands still is broken off (default 120)")  # fmt: skip


def ways(config: FtConfig) -> dict[str, Torchft]:
    """Row -> how torchft is used in it.

    DDP: as in its example, with its own time-outs. its waits: the same, by `Manager.allreduce`; `torchft_process` says
    why. our waits: the limits that labkit sets for the same waits; join is that of its quorum service for replicas that
    are in a step. The last: labkit does not wait for its limit on heartbeats when a process dies, so here torchft's is
    a few beats. A process that gets no processor for so long counts as dead.
    """
    limits = config.deadlines
    ours = {"join_timeout_ms": round(1e3 * limits.step), "heartbeat_timeout_ms": round(1e3 * limits.exchange),
            "quorum_tick_ms": 10}  # fmt: skip
    short = {**ours, "heartbeat_timeout_ms": round(1e3 * BEATS * config.beat)}
    manager = {"timeout": limits.exchange, "quorum_timeout": limits.join, "connect_timeout": limits.message,
               "heartbeat_interval": config.beat}  # fmt: skip
    return {
        "torchft DDP, its waits": Torchft(True, COMMAND),
        "torchft, its waits": Torchft(False, COMMAND),
        "torchft, our waits": Torchft(False, ours, limits.message, manager),
        f"torchft, {BEATS} beats": Torchft(False, short, limits.message, manager),
    }


def systems(options: argparse.Namespace) -> dict[str, Start]:
    """Row -> what starts the job in a folder."""
    config = configuration(options)
    found: dict[str, Start] = {OURS: partial(LabkitJob, config=config, seconds=options.stall_step)}
    for name, way in ways(config).items():
        found[name] = partial(Processes, replicas=options.stall_replicas, seconds=options.stall_step, how=way)
    return found


def version() -> str | None:
    """Of torchft; None where it cannot be imported."""
    try:
        import_module("torchft")
    except ImportError:
        return None
    return metadata.version("torchft")


def _in_turn(starts: dict[str, Start], options: argparse.Namespace, **more: Any) -> list[tuple[str, Episode]]:
    """An episode of each, again and again, the order reversed every other time."""
    found = []
    for i in range(options.stall_runs):
        for name, start in list(starts.items())[:: -1 if i % 2 else 1]:
            with tempfile.TemporaryDirectory(prefix="labkit-bench-") as folder:
                found.append((name, episode(start, Path(folder), options.stall_replicas, **more)))
    return found


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each run with a death, the systems in turn: what it cost (`cost`), and its error if it broke off."""
    if version() is None:
        return []
    seen = _in_turn(systems(options), options, before=BEFORE, after=AFTER, victim=VICTIM,
                    patience=options.torchft_patience)  # fmt: skip
    return [{"system": name, "error": run.error, **cost(run.lives, options.stall_replicas, VICTIM, run.killed)}
            for name, run in seen]  # fmt: skip


def summary(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each system: medians over the runs that did not break off, and the worst stalls."""
    made = []
    for name in dict.fromkeys(row["system"] for row in found):
        mine = [row for row in found if row["system"] == name]
        whole = [row for row in mine if not row["error"]]

        def over(which: Callable[[list[float]], float], key: str, whole: Any = whole) -> float:
            values = [row[key] for row in whole if not math.isnan(row[key])]
            return which(values) if values else math.nan

        made.append({
            "system": name, "runs": len(mine), "broke off": len(mine) - len(whole),
            "kill stall": over(statistics.median, "kill stall"), "worst kill": over(max, "kill stall"),
            "rejoin stall": over(statistics.median, "rejoin stall"), "worst rejoin": over(max, "rejoin stall"),
            "lost": over(statistics.median, "lost"), "away s": over(statistics.median, "away s"),
            "ready s": over(statistics.median, "ready s"),
        })  # fmt: skip
    return made


def calm(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each system: its median step without failures, over that of the bare loop, run in turn."""
    bare = partial(Processes, replicas=options.stall_replicas, seconds=options.stall_step, how=None)
    patience = options.torchft_patience + 2 * options.stall_steps * options.stall_step
    seen = _in_turn({BARE: bare, **systems(options)}, options, before=options.stall_steps, patience=patience)
    print(_told([{"system": name, "error": run.error} for name, run in seen]), end="")
    steps: dict[str, list[float]] = {}
    for name, run in seen:
        steps.setdefault(name, []).append(math.nan if run.error else slowest(run.lives, options.stall_replicas))
    made = []
    for name, seconds in steps.items():
        whole = [(a, b) for a, b in zip(seconds, steps[BARE], strict=True) if not math.isnan(a + b)]
        mine = [a for a, _ in whole]
        made.append({
            "system": name, "runs": len(seconds), "broke off": sum(map(math.isnan, seconds)),
            "step s": statistics.median(mine) if mine else math.nan,
            "over bare": ratio(mine, [b for _, b in whole]) if mine else math.nan, "A/A": self_ratio(mine),
        })  # fmt: skip
    return made


def slowest(lives: Sequence[ProcessDiary], replicas: int) -> float:
    """Median seconds of a step on the slowest replica, from when all were there."""
    since = together(lives, replicas)
    return max(ordinary(life, since) for life in lives)


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print, and return everything; where torchft is not there, say that in one sentence."""
    theirs = version()
    if theirs is None:
        print(ABSENT, flush=True)
        return {"skipped": ABSENT}
    versions = {"torchft": theirs, "torch": metadata.version("torch"), "python": platform.python_version()}
    print(f"\nbeside torchft {theirs} (torch {versions['torch']}): {options.stall_replicas} replica groups of a rank, "
          f"steps of {options.stall_step:g} s; one is killed in the middle of a step and started again")  # fmt: skip
    used = {name: vars(way) for name, way in ways(configuration(options)).items()}
    for name, way in used.items():
        print(f"{name}: {_spelled(way)}")
    found = rows(options)
    brief = summary(found)
    print("stalls of the others in steps beyond an ordinary one; medians of the runs that did not break off\n"
          f"{table(brief)}\n{_told(found)}"
          "lost: steps that the others did not make, from the kill to the end. away: until the new process has made a "
          "step;\nready: until it has loaded its libraries and built its model, which is part of it. "
          "nan rejoin stall: it was back\nbefore the others went on, within the stall of the kill")  # fmt: skip
    quiet = calm(options)
    print(f"without failures, against the same loop without other processes\n{table(quiet)}", flush=True)
    return {"versions": versions, "ways": used, "rows": found, "summary": brief, "calm": quiet}


def _spelled(way: dict[str, Any]) -> str:
    """The time-outs of one way of using torchft, in words."""
    seconds = {"gloo": way["gloo"], **way["manager"]}
    words = [f"{name.removesuffix('_ms')} {value:g} ms" for name, value in way["lighthouse"].items()]
    words += [f"{name} {value:g} s" for name, value in seconds.items() if value is not None]
    return ", ".join(words) + ("" if way["manager"] else ", all others default")


def _told(found: Sequence[dict[str, Any]]) -> str:
    """The runs that broke off, a line each."""
    return "".join(f"broke off: {row['system']}: {row['error']}\n" for row in found if row["error"])
