"""Section 6 of chapter 3: which algorithm is fastest for which size, as measured here and by the alpha-beta model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit import book, cost
from labkit.cost.units import format_bytes, format_seconds

Points = dict[str, dict[int, list[float]]]
FAST, WIDE = "recursive_doubling", "ring"
STEPS, LEAST = 7, 1024  # sizes, each four times the one before, and the smallest in bytes
UNSEEN = 1e-12  # seconds a byte: where noise has hidden what bytes cost


def ranks(world_size: int) -> int:
    """As many as the machine has cores, or four on a smaller one: ranks that wait for a core measure the waiting."""
    return min(world_size, max(4, os.cpu_count() or 1))


def sizes_up_to(megabytes: float) -> list[int]:
    """Bytes of the tensors, in whole float32 numbers, from small to large."""
    sizes = [int(megabytes * 1e6) // 4**k // 4 * 4 for k in reversed(range(STEPS))]
    return [n for n in sizes if n >= LEAST] or [LEAST, 4 * LEAST]


def collect(trace: Any) -> Points:
    """{algorithm: {bytes: [seconds of the fastest all-reduce]}}: from when the last rank came until all are through.

    The fastest, because what else a machine does makes a run slower, and never faster.
    """
    points: Points = {}
    for call in trace.calls("all_reduce"):
        known = points.setdefault(call.algorithm, {}).setdefault(call.nbytes, [call.seconds])
        known[0] = min(known[0], call.seconds)
    return points


def fit(points: Points, size: int) -> Any:
    """One alpha and beta for all: each all-reduce is so many rounds of messages of a known length."""
    each = []
    for name, times in points.items():
        form = cost.cost_of("all_reduce", name)
        rounds, share = form.rounds(size), form.seconds(1, size, 0, 1)
        each += [(n * share / rounds, seconds / rounds) for n, (seconds,) in times.items()]
    line = cost.fit_alpha_beta(each)
    return replace(line, beta=max(line.beta, UNSEEN))


def how_good(line: Any, size: int) -> book.Conclusion:
    """What a message costs here, and how far the lines are from what was measured."""
    return book.conclude(
        "With {ranks} ranks on this machine, a message costs {alpha}, and its bytes travel at {speed} [measured]. "
        "The lines of the model miss a typical mark by {error:.0%}.",
        {
            "error <= 0.3": "For a model of two numbers that is close.",
            "error > 0.3": "That is a lot. It happens where ranks share few cores, because a rank then also waits for "
            "a core. So believe the marks in the picture, and take the lines for an order of magnitude.",
        },
        ranks=size, error=line.residual, alpha=format_seconds(line.alpha, 3),
        speed=cost.format_bandwidth(line.bandwidth, 3),
    )  # fmt: skip


def curves(points: Points, size: int, line: Any) -> book.Figure:
    """The measured all-reduces, and what the line says of them: of two at first, and of the others by the legend."""

    def seconds(name: str) -> Any:
        form = cost.cost_of("all_reduce", name)
        return lambda n: form.seconds(n, size, line.alpha, line.beta)

    def drawn(names: Sequence[str]) -> book.Figure:
        shown = {name: points[name] for name in names}
        title = f"All-reduce with {size} ranks on this machine"
        return book.cost_curves({name: seconds(name) for name in names}, shown, title=title, badge="measured")

    two = [FAST, WIDE]
    both, every = drawn(two), drawn([*two, *(name for name in points if name not in two)])
    assert both.spec and every.spec
    first = both.spec["data"]
    later = [{**trace, "visible": "legendonly"} for trace in every.spec["data"][len(first) :]]
    return replace(both, rows=every.rows, spec={**both.spec, "data": [*first, *later]})


def overtakes(points: Points, first: str, then: str) -> tuple[int | None, int | None]:
    """The largest size at which `then` is slower than `first`, and the next one, at which it is not any more."""
    at = {n: (points[first][n][0], points[then][n][0]) for n in sorted(points[first])}
    before = max((n for n, (a, b) in at.items() if b > a), default=None)
    return before, next((n for n in at if n > (before or 0)), None)


def by_model(line: Any, size: int) -> float | None:
    """The bytes at which the ring overtakes recursive doubling on such links; None if it never does."""
    crossing = cost.crossover("all_reduce", FAST, WIDE, size, line.alpha, line.beta)
    return crossing if crossing < float("inf") else None


def in_a_row(name: str, size: int) -> float:
    """How many tensors go one after the other, on the longest chain of messages."""
    return float(cost.cost_of("all_reduce", name).seconds(1, size, 0, 1))


def where_they_cross(points: Points, size: int, line: Any) -> book.Conclusion:
    """Where the ring overtakes recursive doubling, in the runs and by the lines, and what the tree does."""
    model, (before, seen) = by_model(line, size), overtakes(points, FAST, WIDE)
    known = sorted(points[WIDE])
    names: dict[float | None, str] = {n: format_bytes(n, 2) for n in (before, seen, known[-1], model) if n}
    at = {name: times[known[-1]][0] for name, times in points.items()}
    return book.conclude(
        {
            "before is None": "In the runs the ring is no slower than recursive doubling at any size [measured].",
            "seen is None": "In the runs recursive doubling is ahead up to {largest_text}, the largest size "
            "[measured].",
            "before < seen": "In the runs the ring overtakes recursive doubling between {before_text} and {seen_text} "
            "[measured].",
        },
        {
            "model is None and ranks == 2": "By the lines the ring is never ahead, because with two ranks both send "
            "one tensor, and the ring takes a round more [simulated].",
            "model is None": "By the lines the ring is never ahead [simulated].",
            "smallest <= model <= largest": "By the lines it does so at {model_text} [simulated].",
            "model > largest": "By the lines it does so at {model_text}, beyond the sizes that we ran [simulated].",
            "model < smallest": "By the lines it is ahead at all of these sizes [simulated].",
        },
        {
            "seen is not None and (model is None or model > 1.5 * seen)": "One reason for the difference is that the "
            "model only counts messages, while recursive doubling also has to add up a whole tensor in every round, "
            "and the ring adds less than one in all.",
            "True": "",
        },
        {
            "tree <= 1.2 * ring": "\n\nOne thing is against the model: for {largest_text} the tree is about as fast "
            "as the ring, or faster. Here a few cores copy the bytes of *all* ranks, and all ranks together send as "
            "much by tree as by ring. Where every rank has a core and a link of its own, it takes longer, because "
            "{more:.2g} times as many bytes go one after the other.",
            "True": "\n\nFor {largest_text} the tree takes {slower:.1f} times as long as the ring [measured]. By the "
            "model {more:.2g} times as many of its bytes go one after the other.",
        },
        before=before, seen=seen, smallest=known[0], largest=known[-1], model=model, before_text=names.get(before),
        seen_text=names.get(seen), largest_text=names[known[-1]], model_text=names.get(model), ranks=size,
        tree=at["tree"], ring=at["ring"], slower=at["tree"] / at["ring"],
        more=in_a_row("tree", size) / in_a_row("ring", size),
    )  # fmt: skip
