"""How long the others stand still when a replica is lost and when it comes back; what all this costs without failures.

A step is a stand-in kernel of a fixed length around a small real model, so a rank at work takes no processor from the
others, as on accelerators. What is measured is the fault tolerance, not the machine. Beside it the same failure in
a run that is restarted from its last checkpoint: all replicas stop, and repeat what was lost.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import labkit
from labkit.resilience import Deadlines
from labkit.resilience.ft_hsdp import FtConfig
from labkit.wire.faults import Fault, Hang, Kill

from .ratios import ratio, self_ratio, table

DETECTION = 0.2  # seconds from the death of a process until the supervisor knows, at most
KILL = 1.5  # step times that the healthy lose beyond the detection deadline, at most
REJOIN = 0.5  # step times that they lose when the replica comes back, at most
OVERHEAD = 1.03  # a step of FT-HSDP over one of HSDP without failures, at most


def arguments(parser: Any) -> None:
    """The options of this part."""
    parser.add_argument("--stall-step", type=float, default=0.4, help="seconds of a step's stand-in kernel")
    parser.add_argument("--stall-replicas", type=int, default=3)
    parser.add_argument("--stall-steps", type=int, default=28)
    parser.add_argument("--stall-runs", type=int, default=3, help="of each kind of failure, and pairs for the overhead")
    parser.add_argument("--stall-every", type=int, default=5, help="steps between checkpoints, in the run beside")


class Standing:
    """`build` for `train`: a small model whose step takes `seconds`."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __call__(self, inner: Any, seed: int) -> tuple[Any, Any, Any]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))

        def loss(model: nn.Module, numbers: Tensor) -> Tensor:
            with inner.compute(self.seconds):
                x = torch.sin(numbers[:, None] * torch.arange(1.0, 65.0))
                return nn.functional.mse_loss(model(x), x[:, :8])

        return model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss


def configuration(options: argparse.Namespace) -> FtConfig:
    limits = Deadlines.for_step(options.stall_step)
    return FtConfig(options.stall_replicas, deadlines=limits, batch=4, join_wait=options.stall_step, beat=0.1)


def failures(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A replica is killed at several instants, and hangs: what it cost the others, in steps."""
    from labkit.resilience.supervising.run import run_ft_hsdp

    config, at = configuration(options), max(3, options.stall_steps // 6)
    faults: list[Fault] = [Kill(1, at=name, nth=at) for name in ("forward", "exchange", "commit")]
    found = []
    for fault in [*faults, Hang(1, at="forward", nth=at)]:
        for _ in range(options.stall_runs):
            run = run_ft_hsdp(config, Standing(options.stall_step), options.stall_steps, faults=[fault],
                                transport=options.transport).require()  # fmt: skip
            (incident,) = run.incidents
            lost = {what: [s for s in run.stalls if s.what == what] for what in ("kill", "rejoin")}
            worst = {what: max((s.extra / s.step for s in x), default=float("nan")) for what, x in lost.items()}
            found.append({
                "fault": f"{type(fault).__name__} {fault.where()}", "detected s": incident.detection,
                "kill stall": worst["kill"], "rejoin stall": worst["rejoin"],
                "away s": (incident.committed or float("nan")) - (incident.struck or float("nan")),
                "step s": statistics.median(s.step for s in run.stalls),
                "deadline": config.deadlines.message / options.stall_step if isinstance(fault, Hang) else 0.0,
            })  # fmt: skip
    return found


def calm(options: argparse.Namespace) -> dict[str, Any]:
    """Steps of FT-HSDP over steps of HSDP, without failures, run in turn."""
    from labkit.resilience.ft_hsdp import plain_hsdp
    from labkit.resilience.supervising.run import run_ft_hsdp

    config, build = configuration(options), Standing(options.stall_step)

    def tolerant() -> float:
        run = run_ft_hsdp(config, build, options.stall_steps, transport=options.transport).require()
        return _step([r.attempts for r in run.results if r is not None])

    def plain() -> float:
        run = labkit.launch(plain_hsdp, config.world_size, config, build, options.stall_steps,
                            transport=options.transport)  # fmt: skip
        return _step([r.attempts for r in run.results])

    theirs: list[float] = []
    ours: list[float] = []
    for i in range(options.stall_runs):
        for which in (0, 1) if i % 2 else (1, 0):
            (ours.append(tolerant()) if which else theirs.append(plain()))
    return {"FT-HSDP s": statistics.median(ours), "HSDP s": statistics.median(theirs),
            "overhead": ratio(ours, theirs), "A/A": self_ratio(theirs)}  # fmt: skip


def _step(attempts: list[list[Any]]) -> float:
    """Median seconds from the beginning of one step to that of the next, on the slowest rank."""
    gaps = [[b.began - a.began for a, b in zip(x, x[1:], strict=False)] for x in attempts]
    return statistics.median(max(g) for g in zip(*[x[1:] for x in gaps], strict=False))


def _checkpointed(group: Any, folder: str, seconds: float, steps: int, every: int) -> None:
    """Data-parallel training that saves its state; when it begins it goes on from the last one."""
    from labkit.parallel import DataParallel
    from labkit.resilience.checkpoint.checkpointer import Checkpointer

    model, optimizer, loss = Standing(seconds)(group, 0)
    model = DataParallel(model, group)
    with Checkpointer(f"{folder}/checkpoints", group, model, optimizer) as checkpoints:
        loaded = checkpoints.load()
        for step in range(loaded.step if loaded else 0, steps):
            group.step(step)
            with group.span("forward"):
                optimizer.zero_grad()
                loss(model, torch.arange(4) + step * 4 * group.size + 4 * group.rank).backward()
            optimizer.step()
            if group.rank == 0:
                with open(f"{folder}/steps", "a") as f:
                    f.write(f"{step} {time.monotonic()}\n")
            if (step + 1) % every == 0:
                checkpoints.save(step + 1, wait=False)


def restarted(options: argparse.Namespace) -> dict[str, Any]:
    """The same failure in a world that is restarted from its last checkpoint: seconds and steps until it is as far."""
    from labkit.resilience.elastic import run_elastic

    at, lost = options.stall_steps // 3, []
    with tempfile.TemporaryDirectory(prefix="labkit-bench-") as folder:
        for i in range(options.stall_runs):
            here = Path(folder, str(i))
            here.mkdir()
            run_elastic(_checkpointed, options.stall_replicas, str(here), options.stall_step, options.stall_steps,
                        options.stall_every, faults=[Kill(1, at="forward", nth=at)],
                        transport=options.transport)  # fmt: skip
            rows = [line.split() for line in (here / "steps").read_text().splitlines()]
            done = [(int(step), float(when)) for step, when in rows]
            back = next(n for n in range(1, len(done)) if done[n][0] <= done[n - 1][0])
            far = next(n for n in range(back, len(done)) if done[n][0] > done[back - 1][0])
            usual = statistics.median(b - a for (_, a), (_, b) in zip(done[:back], done[1:back], strict=False))
            lost.append((done[far][1] - done[back - 1][1] - usual, usual))
    stall = statistics.median(x / usual for x, usual in lost)
    return {
        "stall in steps": stall,
        "stall s": statistics.median(x for x, _ in lost),
        "checkpoint every": options.stall_every,
    }


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each failure."""
    return failures(options)


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print beside the targets, and return everything."""
    found = rows(options)
    print(f"\na replica is lost and comes back; stalls of the others in steps beyond an ordinary one\n{table(found)}")
    dead = [row for row in found if row["fault"].startswith("Kill")]
    beyond = max(row["kill stall"] - row["deadline"] for row in found)
    back = [row["rejoin stall"] for row in found if row["rejoin stall"] == row["rejoin stall"]]
    print(f"a dead process is detected within {max(row['detected s'] for row in dead):.3f} s (target {DETECTION:g}); "
          f"the others lose at most {beyond:.2f} steps beyond the deadline of a message (target {KILL:g}), and at the "
          f"return {max(back, default=float('nan')):.2f} (target {REJOIN:g})")  # fmt: skip
    beside = restarted(options)
    print(f"restarted from a checkpoint instead: {table([beside])}")
    quiet = calm(options)
    print(
        f"without failures\n{table([quiet])}\noverhead {quiet['overhead']:.3f} (target at most {OVERHEAD:g})",
        flush=True,
    )
    return {"failures": found, "restart from checkpoint": beside, "calm": quiet,
            "targets": {"detection": DETECTION, "kill": KILL, "rejoin": REJOIN, "overhead": OVERHEAD}}  # fmt: skip
