"""`labkit bench trace`: what the status page and the trace cost a message.

The same exchanges are made with the recorder writing and with it replaced by one that writes nothing, in turn, in one
world of two ranks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import labkit

from .ratios import ratio, save, self_ratio, table

TARGET_SHARE, TARGET_MICROSECONDS = 0.05, 10.0


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench trace", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    rows = []
    for transport in ("local", "gloo"):
        for kib in (0, 64, 1024):
            run = labkit.launch(measure, 2, kib << 10, options.pairs, transport=transport, check=True)
            with_it, without = run.results[0]
            cost = [(a - b) * 1e6 for a, b in zip(with_it, without, strict=True)]
            rows.append({"transport": transport, "KiB": kib, "us a message": 1e6 * statistics.median(without),
                         "recording us": statistics.median(cost), "with/without": ratio(with_it, without),
                         "A/A": self_ratio(without)})  # fmt: skip
    print(table(rows))
    print(f"targets: at most {TARGET_SHARE:.0%} from 64 KiB on, at most {TARGET_MICROSECONDS:g} us a message")
    save(options.json, {"rows": rows})
    return 0


def measure(group: labkit.Group, nbytes: int, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds a message with and without recording, `pairs` times each in turn."""
    x, y = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    other = 1 - group.rank
    context = group.context
    recorder, silent = context.recorder, _Silent(context.recorder)
    repeat = 200 if nbytes < 1 << 20 else 40
    times: dict[bool, list[float]] = {True: [], False: []}
    for i in range(pairs + 1):
        for writing in (True, False) if i % 2 else (False, True):
            context.recorder = recorder if writing else silent
            group.exchange(x, other, y, other)
            begin = time.perf_counter()
            for _ in range(repeat):
                group.exchange(x, other, y, other)
            if i:
                times[writing].append((time.perf_counter() - begin) / repeat)
    context.recorder = recorder
    return times[True], times[False]


class _Silent:
    """A recorder that writes nothing."""

    def __init__(self, real: Any):
        self._real, self.step = real, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin(self, *args: Any, **kwargs: Any) -> int:
        return 1

    def message(self, *args: Any) -> int:
        return 1

    def end(self, *args: Any) -> None: ...
    def count(self, *args: Any) -> None: ...
    def slot(self, *args: Any) -> None: ...
    def flag(self, *args: Any) -> None: ...
