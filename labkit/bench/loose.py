"""`labkit bench loose`: training that waits less or says less, by time to a loss; a server beside torch's RPC.

Real processes exchange real gradients. On the virtual clock kernels, stragglers and links take the time they are given,
so those numbers are the same in every run; throughput is on the wall clock, as ratios within one run. Parts:

synchrony   BSP, SSP and ASP with one worker slowed down: time to BSP's loss, and the loss after as many gradients
links       whole gradients, top-k and PowerSGD over a slow link: time to the loss of whole gradients
server      updates and rows a second of the parameter server, over those of one made of torch.distributed.rpc
rows        what a rank holds of a large embedding table, beside the formula

The overhead of hooks where no link is slow is a row of `labkit bench data-parallel`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .ratios import save, table

SSP_TIME, LINK_TIME = 0.6, 0.5  # of BSP's time, and of that of whole gradients


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench loose", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=5, help="of the weights and the data")
    parser.add_argument("--clocks", type=int, default=40, help="gradients of the slow worker (synchrony)")
    parser.add_argument("--factor", type=float, default=4.0, help="by which one worker is slower (synchrony)")
    parser.add_argument("--steps", type=int, default=60, help="with whole gradients (links)")
    parser.add_argument("--bandwidth", type=float, default=125e6, help="of the slow link, bytes a second (links)")
    parser.add_argument("--computing", type=float, default=1e-3, help="seconds of a step's kernels (links)")
    parser.add_argument("--workers", type=_numbers, default=[1, 2, 4, 8], help="of a server")
    parser.add_argument("--updates", type=int, default=100, help="of each worker, in each turn (server)")
    parser.add_argument("--pairs", type=int, default=5, help="of turns (server)")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts {part}: choose from {', '.join(PARTS)}")
    save(options.json, {part: PARTS[part](options) for part in parts})
    return 0


def synchrony(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Who waits for the slow worker, and what that costs."""
    from .loose_training import by_policy

    rows = by_policy(options.seeds, options.clocks, options.factor)
    print(f"\nfour workers, one of them slowed {options.factor:g} times, {options.seeds} seeds (virtual clock)")
    print(f"{table(rows)}\nSSP: target at most {SSP_TIME:g} of BSP's time", flush=True)
    return rows


def links(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What is said in fewer bytes arrives earlier: is that enough?"""
    from .loose_training import by_hook

    rows = by_hook(options.seeds, options.steps, options.bandwidth, options.computing)
    print(f"\nfour ranks, links of {options.bandwidth / 1e6:g} MB/s, {options.seeds} seeds (virtual clock)")
    print(f"{table(rows)}\ntarget at most {LINK_TIME:g} of the time of whole gradients", flush=True)
    return rows


def server(options: argparse.Namespace) -> list[dict[str, Any]]:
    """How many updates, and how many rows, a server takes in a second."""
    from .loose_server import throughput

    rows = [throughput(n, what, options.updates, options.pairs) for n in options.workers for what in ("update", "rows")]
    print(f"\na parameter server, labkit's over one of torch.distributed.rpc (wall clock)\n{table(rows)}", flush=True)
    return rows


def rows(options: argparse.Namespace) -> dict[str, Any]:
    """Memory by formula."""
    from .loose_server import held

    found = held(options.rows, ranks=8)
    print(f"\n{options.rows:,} rows in 8 shards, two steps of row-wise Adagrad\n{table([found])}", flush=True)
    return found


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "synchrony": synchrony, "links": links, "server": server, "rows": rows,
}  # fmt: skip


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]
