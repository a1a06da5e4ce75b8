"""`labkit bench precision`: what few bits save, on the wire and in memory, and what they cost in loss.

Bytes are those that ranks sent, beside the formula. Times are those of the virtual clock, on which kernels and links
take the time they are given, so all numbers are the same in every run. Parts:

bytes    gradients, FSDP's gathers, rows of experts and stages of a pipeline: FP32 and FP8, by formula and as sent
links    a step of data parallelism over a slow link, in FP32, BF16 and FP8: its time over FP32's, and the loss
states   AdamW with moments of a byte: what it keeps, and its loss beside that of 32 bits
layers   a GPT whose linear layers multiply in 8 and in 4 bits: its loss beside that of BF16
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .ratios import save, table


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench precision", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--ranks", type=int, default=4, help="of a run (bytes, links)")
    parser.add_argument("--bandwidth", type=float, default=125e6, help="of the slow link, bytes a second (links)")
    parser.add_argument("--computing", type=float, default=1e-3, help="seconds of a step's kernels (links)")
    parser.add_argument("--steps", type=int, default=60, help="of a run (links, states, layers)")
    parser.add_argument("--seeds", type=int, default=3, help="of the weights and the data (states, layers)")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts {part}: choose from {', '.join(PARTS)}")
    save(options.json, {part: PARTS[part](options) for part in parts})
    return 0


def nbytes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What is sent in a step."""
    from .precision_wire import traffic

    rows = traffic(options.ranks)
    print(f"\n{options.ranks} ranks, kB that rank 0 sends in a step\n{table(rows)}", flush=True)
    return rows


def links(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Fewer bytes arrive earlier, and are they good enough?"""
    from .precision_wire import by_hook

    rows = by_hook(options.ranks, options.steps, options.bandwidth, options.computing)
    print(
        f"\n{options.ranks} ranks, links of {options.bandwidth / 1e6:g} MB/s (virtual clock)\n{table(rows)}", flush=True
    )
    return rows


def states(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What an optimizer keeps for each parameter."""
    from .precision_states import by_optimizer

    rows = by_optimizer(options.seeds, options.steps)
    print(f"\na GPT, {options.steps} steps, {options.seeds} seeds\n{table(rows)}", flush=True)
    return rows


def layers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What factors of few bits do to training."""
    from .precision_training import by_recipe

    rows = by_recipe(options.seeds, options.steps)
    print(f"\na GPT, {options.steps} steps, {options.seeds} seeds\n{table(rows)}", flush=True)
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "bytes": nbytes, "links": links, "states": states, "layers": layers,
}  # fmt: skip
