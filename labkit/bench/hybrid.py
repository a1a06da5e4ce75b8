"""`labkit bench hybrid`: context parallelism, the planner, and all axes at once, against formulas and against PyTorch.

Real processes exchange real tensors; on the virtual clock kernels and links take the time they are given, so those
numbers are the same in every run. On the wall clock there are two parts, one of them ratios within one run. Parts:

context   contiguous over zigzag ring attention, and what of the ring's messages is hidden of what can be
rivals    Ulysses against one in plain torch.distributed (wall clock); whether PyTorch's own ring runs here
search    seconds in which the planner looks at all factorisations of so many GPUs (wall clock)
step      a step along all axes over what its parts take each by itself
plans     predicted over measured step, plan by plan; figures fitted to one half of them
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from .ratios import save, table

ZIGZAG, HIDDEN, RIVAL, STEP = 1.6, 0.9, 1.05, 1.05
SEARCH = {16_384: 1.0, 131_072: 5.0}  # GPUs, and seconds at most
MEDIAN, WORST = 0.10, 0.25


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench hybrid", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--ranks", type=int, default=8, help="around the ring")
    parser.add_argument("--positions", type=int, default=1024, help="of the sequence")
    parser.add_argument("--pairs", type=int, default=15, help="of steps in turn (rivals)")
    parser.add_argument("--gpus", type=_numbers, default=list(SEARCH), help="to be searched")
    parser.add_argument("--plans", type=int, default=0, help="only the first so many plans, 0: all")
    parser.add_argument("--transport", default="local", help="what carries labkit's messages; PyTorch's go over gloo")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts {part}: choose from {', '.join(PARTS)}")
    save(options.json, {part: PARTS[part](options) for part in parts})
    return 0


def context(options: argparse.Namespace) -> dict[str, Any]:
    """Layouts of the ring, and overlap."""
    from .hybrid_context import hidden, layouts

    found = layouts(options.ranks, options.positions)
    print(f"\na layer of causal ring attention, forward and backward (virtual clock)\n{table([found])}")
    print(f"zigzag is {found['contiguous / zigzag']:.2f} times as fast (target at least {ZIGZAG:g})", flush=True)
    rows = [hidden(options.ranks, options.positions, ratio) for ratio in (0.25, 0.5, 1.0, 2.0)]
    least = min(row["hidden / can be"] for row in rows)
    print(f"\nwhat of the ring's messages is hidden, and what can be (virtual clock)\n{table(rows)}")
    print(f"at least {least:.1%} of what can be (target at least {HIDDEN:.0%})", flush=True)
    return {"layouts": found, "hidden": rows}


def rivals(options: argparse.Namespace) -> dict[str, Any]:
    """Against PyTorch."""
    from .hybrid_context import pytorch_ring, ulysses

    rows = [ulysses(n, options.positions, options.pairs, options.transport) for n in (2, 4)]
    print(f"\nUlysses, a layer forward and backward, labkit's over plain torch.distributed\n{table(rows)}")
    print(f"time ratio: target at most {RIVAL:g}", flush=True)
    ring = pytorch_ring()
    print(f"PyTorch's context_parallel: {ring}", flush=True)
    return {"ulysses": rows, "PyTorch's ring": ring}


def search(options: argparse.Namespace) -> list[dict[str, Any]]:
    """How long the planner takes."""
    from labkit.cost import planner

    model, rows = planner.MODELS["Llama 3 405B"], []
    for gpus in options.gpus:
        seconds, busy = [], []
        for _ in range(3):
            begin, worked = time.perf_counter(), time.process_time()
            found = planner.search(model, planner.h100_cluster(gpus), max(2048, gpus))
            seconds.append(time.perf_counter() - begin)
            busy.append(time.process_time() - worked)
        best = str(found.winner.plan) if found.best else "none fits"
        rows.append({
            "GPUs": gpus, "plans": found.considered, "fit": found.fitting, "best of 3 s": min(seconds),
            "processor s": min(busy), "at most s": SEARCH.get(gpus, float("nan")), "best plan": best,
        })  # fmt: skip
    print(f"\nall factorisations for {model.name} (wall clock)\n{table(rows)}", flush=True)
    return rows


def step(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All axes at once over what they take one at a time."""
    from .hybrid_step import rows

    found = rows()
    print(f"\na step of all axes over what its parts take each by itself (virtual clock)\n{table(found)}")
    print(f"at most {max(r['step / parts'] for r in found):.3f} (target at most {STEP:g})", flush=True)
    return found


def plans(options: argparse.Namespace) -> dict[str, Any]:
    """The planner against real runs."""
    from labkit.parallel.hybrid.trials import CASES, fitted, table_of, try_cases

    rows = try_cases(CASES[: options.plans or None])
    fit = fitted(rows)
    found = table_of(rows, fit)
    print(f"\npredicted and measured steps, figures fitted to every other row (virtual clock)\n{table(found)}")
    for which in ("fitted", "held out"):
        errors = fit.errors(which)
        print(f"{which}: {median(errors):.1%} in the median, {max(errors):.1%} at worst "
              f"(targets {MEDIAN:.0%}, {WORST:.0%})", flush=True)  # fmt: skip
    return {"rows": found, "figures": {name: getattr(fit.efficiency, name) for name in fit.figures}}


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "context": context, "rivals": rivals, "search": search, "step": step, "plans": plans,
}  # fmt: skip


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]
