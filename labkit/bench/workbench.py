"""`labkit bench workbench`: from the change of a control to the new picture, and what that is made of.

A second call into a kept world stands beside a launch of the same function, run in turn. A change is timed from the
moment in which the control has its new value until the pictures for the page are made; what a browser then needs is
not in it. Each time is a median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import labkit
from labkit import book
from labkit.collectives import all_reduce
from labkit.wire import Group
from labkit.world import World

from .ratios import alternate, ratio, save, self_ratio, table

TARGET_CALL, TARGET_CHANGE = 0.010, {4: 0.5, 8: 1.0}  # seconds: of a second call, of a change at so many ranks


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench workbench", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    labkit.warm()
    calls, launches, empty = second_calls(4, options.pairs)
    print(table([
        {"what, on 4 ranks": name, "median ms": 1e3 * statistics.median(seconds)}
        for name, seconds in (("a launch", launches), ("a second call", calls), ("one that does nothing", empty))
    ]))  # fmt: skip
    print(f"\na second call is {ratio(launches, calls):.1f} times faster than a launch; "
          f"against itself (A/A): {self_ratio(calls):.2f}; target {1e3 * TARGET_CALL:g} ms\n")  # fmt: skip
    rows = [change(ranks, options.pairs) for ranks in TARGET_CHANGE]
    print(table(rows))
    targets = ", ".join(f"{seconds:g} s on {ranks} ranks" for ranks, seconds in TARGET_CHANGE.items())
    print(f"\ntarget of a change: {targets}")
    save(options.json, {"launch": launches, "call": calls, "empty": empty, "changes": rows})
    return 0


def add_up(group: Group, kilobytes: int = 4, algorithm: str = "ring") -> float:
    return all_reduce(torch.ones(250 * kilobytes), group, algorithm=algorithm)[0].item()


def nothing(group: Group) -> None:
    pass


def second_calls(size: int, pairs: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of calls into a kept world and of launches, in turn, and of calls that do nothing."""
    with World(size, transport="local") as world:
        world.run(add_up)
        labkit.launch(add_up, size, transport="local")
        calls, launches = alternate(
            _seconds(lambda: world.run(add_up)), _seconds(lambda: labkit.launch(add_up, size, transport="local")), pairs
        )
        empty = [_seconds(lambda: world.run(nothing))() for _ in range(pairs)]
    return calls, launches, empty


def change(ranks: int, times: int) -> dict[str, object]:
    """Medians in milliseconds: a change of data and one of size, and the parts of the first."""
    before = os.environ.get("LABKIT_HEADLESS")
    os.environ["LABKIT_HEADLESS"] = "0"  # as if somebody were there
    took: dict[str, list[float]] = {"timeline": [], "circle": []}

    def timed(name: str, view: Callable[[labkit.Run], Any]) -> Callable[[labkit.Run], Any]:
        def draw(run: labkit.Run) -> Any:
            begin = time.perf_counter()
            made = view(run)
            took[name].append(time.perf_counter() - begin)
            return made

        return draw

    views = [timed("timeline", lambda run: book.timeline(run.trace)),
             timed("circle", lambda run: book.replay(run.trace, by="round", shape="circle"))]  # fmt: skip
    bench = book.workbench(add_up, {"ranks": (2, ranks), "kilobytes": (1, 100)}, views, ranks=ranks, transport="local")
    try:
        assert bench.panel and bench.wait(60)  # shown for the first time, it runs
        data = [_settled(bench, kilobytes=4 + i % 2) for i in range(times)]
        size = [_settled(bench, ranks=ranks - (i % 2 == 0)) for i in range(times)]
    finally:
        bench.close()
        if before is None:
            del os.environ["LABKIT_HEADLESS"]
        else:
            os.environ["LABKIT_HEADLESS"] = before

    def ms(seconds: list[float]) -> float:
        return 1e3 * statistics.median(seconds)

    return {
        "ranks": ranks, "data changes, ms": ms(data), "size changes, ms": ms(size),
        "of it timeline, ms": ms(took["timeline"]), "circle, ms": ms(took["circle"]),
    }  # fmt: skip


def _settled(bench: book.Workbench, **settings: object) -> float:
    begin = time.perf_counter()
    bench.set(**settings)
    if not bench.wait(60) or not bench.said.startswith("run on"):
        raise RuntimeError(f"the workbench did not follow {settings}: {bench.said}")
    return time.perf_counter() - begin


def _seconds(fn: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        begin = time.perf_counter()
        fn()
        return time.perf_counter() - begin

    return timed
