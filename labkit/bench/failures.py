"""`labkit bench failures`: what fault tolerance costs, and how soon a run goes on when something breaks.

Parts: ftar (the fault-tolerant all-reduce against native and against labkit's ring), quorum (its latency with the
members), checkpoint (the stall of synchronous and asynchronous ones), stall (at a kill, at a rejoin, and the overhead
without faults), torchft (these beside that library, where it is installed). A part is a module `failures_<part>` with
two functions, and a third if it has options of its own:

    rows(options)       measures, and returns a list of rows: dictionaries with the same keys
    report(options)     measures, prints its table beside its targets, and returns what --json saves: plain data
    arguments(parser)   adds its options to the parser; a list is read by `words` or `numbers`
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .ratios import save

PARTS = ("ftar", "quorum", "checkpoint", "stall", "torchft")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    there = [part for part in PARTS if find_spec(f"{__package__}.failures_{part}")]
    modules = {part: import_module(f".failures_{part}", __package__) for part in there}
    parser = argparse.ArgumentParser(prog="labkit bench failures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", type=words, default=there, help=f"{', '.join(there)} (default: all)")
    parser.add_argument("--pairs", type=int, default=15, help="how often two things are compared in turn (default 15)")
    parser.add_argument("--transport", default="local", help="what carries labkit's messages (default local)")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured")
    for part, module in modules.items():
        if hasattr(module, "arguments"):
            module.arguments(parser.add_argument_group(part))
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in modules]
    if unknown:
        parser.error(f"--parts {','.join(unknown)}: choose from {', '.join(there)}")
    if options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: at least 1")
    result: dict[str, Any] = {part: modules[part].report(options) for part in options.parts}
    save(options.json, result)
    return 0


def words(text: str) -> list[str]:
    """'a, b' as a list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """'2, 4' as a list."""
    return [int(word) for word in words(text)]
