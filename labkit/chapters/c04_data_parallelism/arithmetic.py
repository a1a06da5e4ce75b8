"""The step by arithmetic: when gradients become ready, and a ring that carries their buckets. No processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from labkit import Link, book, cost
from labkit.chapters.c04_data_parallelism.steps import milliseconds, step_of
from labkit.cost.units import format_seconds

MOST = 40  # buckets that a curve shows


@dataclass(frozen=True)
class StepModel:
    """forward: its seconds. seconds: until each gradient is ready, since the one before. nbytes: of each gradient."""

    forward: float
    seconds: tuple[float, ...]
    sizes: tuple[int, ...]
    ranks: int

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return sum(self.sizes)

    def step(self, bucket_bytes: float, link: Link) -> cost.DataParallelStep:
        """The step with buckets of this size, by `cost.data_parallel_step`."""
        size = {"bucket_bytes": bucket_bytes, "first_bucket_bytes": bucket_bytes}
        links = cost.Links(link.latency, 1 / link.bandwidth)
        return cost.data_parallel_step(self.seconds, self.sizes, self.ranks, links, forward=self.forward, **size)

    def about_buckets(self, bucket_bytes: float, link: Link) -> dict[str, Any]:
        """What the question after the exposed time needs to know: the last two buckets, and when the wire is free."""
        step, flat = self.step(bucket_bytes, link), self.step(2 * self.nbytes, link)
        free = step.buckets[-3].end if len(step.buckets) > 2 else 0.0
        return {"step": step, "flat": flat, "free": free, "link": link, "ranks": self.ranks, "least": bucket_bytes}

    def about_sizes(self, sizes: Sequence[float], near: Link, far: Link) -> dict[str, Any]:
        """What the question after the fastest size needs to know."""
        steps = [self.step(nbytes, far) for nbytes in sizes]
        return {
            "sizes": list(sizes),
            "counts": [len(step.buckets) for step in steps],
            "best": min(range(len(sizes)), key=lambda i: steps[i].seconds),
            "near": min(sizes, key=lambda nbytes: self.step(nbytes, near).seconds),
            "latency": far.latency,
            "total": self.nbytes,
        }


def step_model(run: Any, rank: int = 0) -> StepModel:
    """What the formula needs of a run: when the gradients of `rank` were ready, and their bytes."""
    one = step_of(run, rank=rank)
    times = [one.backward, *(when for when, _, _ in one.ready)]
    seconds = tuple(b - a for a, b in pairwise(times))
    return StepModel(one.backward, seconds, tuple(nbytes for _, _, nbytes in one.ready), run.trace.world_size)


def took(run: Any) -> str:
    """How long the step took on the slowest rank, beside the formula. Each rank returns (bytes of a bucket, link)."""
    slowest = max(range(run.trace.world_size), key=lambda rank: step_of(run, rank=rank).over)
    step = step_model(run, slowest).step(*run.results[0])
    ran, formula = format_seconds(milliseconds(run) / 1e3, 3), format_seconds(step.seconds, 3)
    count, last = len(step.buckets), step.buckets[-1]
    alone = format_seconds(last.end - last.start, 3)
    how = (
        f"{count} buckets: {format_seconds(step.exposed, 3)} stay exposed after the computing, and the last bucket "
        f"alone travels for {alone}."
        if count > 1
        else f"One bucket: it leaves when the computing is over, so all of its {alone} are exposed."
    )
    return f"The run took {ran}; by the formula it takes {formula} ({run.trace.badge}). {how}"


def beside(run: Any, step: cost.DataParallelStep) -> book.Table:
    """The step of a run, and the same by the formula."""
    seen = step_of(run)
    rows = [
        ("all-reduces", len(seen.journeys), len(step.buckets)),
        ("step, ms", 1e3 * seen.total, 1e3 * step.seconds),
        ("exposed, ms", 1e3 * seen.exposed, 1e3 * step.exposed),
    ]
    named = "", "the run (emulated)", "the formula (simulated)"
    return book.Table([dict(zip(named, row, strict=True)) for row in rows], caption="Stage C")


def quickest(runs: Mapping[float, Any]) -> int:
    """The position of the run whose step was the shortest."""
    times = [milliseconds(run) for run in runs.values()]
    return times.index(min(times))


def curve(model: StepModel, link: Link) -> dict[float, float]:
    """The step in ms by its number of buckets: the best of all bucket sizes that make so many."""
    points: dict[float, float] = {}
    for parts in range(1, 60):
        found = model.step(model.nbytes / parts, link)
        count = len(found.buckets)
        points[count] = min(1e3 * found.seconds, points.get(count, float("inf")))
    return {count: ms for count, ms in points.items() if count < MOST}


def step_by_buckets(model: StepModel, near: Link, far: Link, runs: Mapping[float, Any]) -> book.Figure:
    """The step by its number of buckets, for two links, and runs on the far one by the bytes of their buckets."""
    curves = {"near (simulated)": curve(model, near), "far (simulated)": curve(model, far)}
    found = {len(model.step(nbytes, far).buckets): milliseconds(run) for nbytes, run in runs.items()}
    drawn: dict[float, float] = {count: ms for count, ms in found.items() if count < MOST}
    best = [min(each.values()) for each in (*curves.values(), drawn)]
    said = f"Best by the formula: {best[0]:.1f} ms near, and far {best[1]:.1f} ms; of the runs {best[2]:.1f} ms."
    return book.lines(
        curves | {"far, the runs (emulated)": drawn}, x="number of buckets", y="step, ms", badge="emulated",
        title="A step by its number of buckets", sentence=said,
    )  # fmt: skip
