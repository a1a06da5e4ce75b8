"""Section 6 of chapter 3: which algorithm is fastest for which size, as measured here and by the alpha-beta model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from labkit import book, cost
from labkit.book.drawing.units import plural
from labkit.cost.units import format_bytes, format_seconds

Points = dict[str, dict[int, list[float]]]
FAST, WIDE = "recursive_doubling", "ring"
STEPS, LEAST = 7, 1024  # sizes, each four times the one before, and the smallest in bytes
NEAR, CLOSE = 1.3, 1.5  # factors between a mark and its line: near enough, and still of use
SURE = 2  # standard errors: a slope that is smaller is noise


def ranks(world_size: int) -> int:
    """As many as the machine has cores, or four on a smaller one: ranks that wait for a core measure the waiting.

    A power of two, at which the formula of recursive doubling is exact: with others some ranks send early.
    """
    at_most = 1 << max(4, os.cpu_count() or 1).bit_length() - 1
    return min(at_most, 1 << (world_size - 1).bit_length())


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


def per_message(points: Points, size: int) -> list[tuple[float, float]]:
    """(bytes, seconds) of one message of each all-reduce, which is so many rounds of messages of a known length."""
    each = []
    for name, times in points.items():
        form = cost.cost_of("all_reduce", name)
        rounds, share = form.rounds(size), form.seconds(1, size, 0, 1)
        each += [(n * share / rounds, seconds / rounds) for n, (seconds,) in times.items()]
    return each


def fit(messages: list[tuple[float, float]]) -> Any:
    """The line through (bytes, seconds) of messages: alpha is its height at no bytes, and beta its slope.

    Where the slope of the line is no more than noise, no byte was measured: beta is 0, and alpha fits a level line.
    """
    line = cost.fit_alpha_beta(messages)
    if line.beta > SURE * line.beta_error:
        return line
    times_of_one = [seconds for _, seconds in messages]
    level = sum(1 / t for t in times_of_one) / sum(1 / t**2 for t in times_of_one)  # by relative least squares
    return replace(line, alpha=level, beta=0.0)


def misses(points: Points, size: int, line: Any) -> list[tuple[float, str, int]]:
    """(measured / model, algorithm, bytes) of each mark, the one that is furthest from its line first."""
    each = []
    for name, times in points.items():
        form = cost.cost_of("all_reduce", name)
        each += [(seconds / form.seconds(n, size, line.alpha, line.beta), name, n) for n, (seconds,) in times.items()]
    return sorted(each, key=lambda miss: -factor(miss[0]))


def factor(ratio: float) -> float:
    """How far from 1, upwards or downwards."""
    return max(ratio, 1 / ratio)


def how_good(points: Points, line: Any, size: int) -> book.Conclusion:
    """What a message costs here, how far the marks are from the lines, and on which side, of which sizes."""
    (ratio, name, nbytes), *_ = ranked = misses(points, size, line)
    known = sorted(points[WIDE])
    middle, cores = known[len(known) // 2], os.cpu_count() or 1
    off = [(r, n) for r, _, n in ranked if factor(r) > NEAR]
    slower, faster = all(r > 1 for r, _ in off), all(r < 1 for r, _ in off)
    return book.conclude(
        {
            "unseen == 'bytes'": "With {ranks} ranks on this machine, a message costs {alpha} [measured]. These "
            "tensors are too small to show what their bytes cost: beside the latencies it is lost in the noise. Make "
            "`megabytes` larger to measure it.",
            "unseen == 'latency'": "With {ranks} ranks on this machine, bytes travel at {speed} [measured]. These "
            "tensors are too large to show what a message costs: beside the bytes it is lost in the noise. Make "
            "`megabytes` smaller to measure it.",
            "True": "With {ranks} ranks on this machine, a message costs $\\alpha$ = {alpha}, and its bytes travel at "
            "{speed}, which is $1/\\beta$ [measured].",
        },
        {
            "cores < ranks": "(Your machine has {cores_text} for {ranks} ranks, so $\\alpha$ also contains what a rank "
            "waits for a core.)",
            "True": "",
        },
        {
            "unseen": "",
            f"worst <= {CLOSE}": "No mark is further from its line than a factor of {worst:.2g}, so two numbers "
            "describe these runs {well}.",
            "True": "But two numbers do not describe all of these runs: for {bytes_text} {name} took "
            "{ratio:.2g} times as long as its line says.",
        },
        {
            f"unseen or worst <= {CLOSE}": "",
            "large_only": f"At smaller sizes every mark is within a factor of {NEAR}, so the lines fail for large "
            "tensors only. They leave out that all ranks copy and add in one memory, and that a large tensor no longer "
            "fits into the cache.",
            "small_only": f"At larger sizes every mark is within a factor of {NEAR}, so the lines fail for small "
            "tensors only. They leave out that a rank may have to wait for a core before it can send.",
            "slower": "The lines leave out that ranks wait for cores and share one memory, and your machine may have "
            "been busy. Run the cell again, and trust the marks more.",
            "faster": "The marks below their lines are up to {below:.2g} times as fast. Your machine was probably busy "
            "with other work. Run the cell again, and trust the marks more than the lines.",
            "True": "Other marks lie below their lines and are up to {below:.2g} times as fast. Your machine was "
            "probably busy with other work. Run the cell again, and trust the marks more than the lines.",
        },
        ranks=size, cores=cores, cores_text=plural(cores, "core"), unseen=unseen(line),
        alpha=format_seconds(line.alpha, 3),
        speed="" if unseen(line) == "bytes" else cost.format_bandwidth(line.bandwidth, 3),
        worst=factor(ratio), well="well" if round(factor(ratio), 1) <= NEAR else "roughly", ratio=ratio,
        name="the ring" if name == WIDE else said(name), bytes_text=format_bytes(nbytes, 2),
        large_only=slower and all(n >= middle for _, n in off), small_only=slower and all(n < middle for _, n in off),
        faster=faster, slower=slower, below=1 / min(r for r, *_ in ranked),
    )  # fmt: skip


def unseen(line: Any) -> str:
    """What the runs did not show: "bytes" or "latency", by the side of the other; "" if both were measured."""
    return "latency" if not line.alpha else "" if line.beta else "bytes"


def numbers(line: Any, size: int) -> dict[str, float | str]:
    """What is recorded of the line, and of where the ring overtakes by it."""
    crossing, hidden = by_model(line, size), unseen(line)
    never = "not measured" if hidden else "never"
    return {
        "alpha_us": "not measured" if hidden == "latency" else 1e6 * line.alpha,
        "bandwidth_gb": "not measured" if hidden == "bytes" else line.bandwidth / 1e9,
        "crossover_kb": never if hidden or crossing is None else crossing / 1e3,
    }


def said(name: str) -> str:
    return name.replace("_", " ")


def curves(points: Points, size: int, line: Any) -> book.Figure:
    """The measured all-reduces as marks, and what the line says of them."""

    def seconds(name: str) -> Any:
        form = cost.cost_of("all_reduce", name)
        return lambda n: form.seconds(n, size, line.alpha, line.beta)

    title = f"Two algorithms on {size} ranks: the model as lines, the fastest runs as marks"
    named = {name: said(name) for name in (FAST, WIDE)}
    return book.cost_curves(
        {text: seconds(name) for name, text in named.items()},
        {text: points[name] for name, text in named.items()}, title=title, badge="measured",
        axes=("size of the tensor", "time of an all-reduce"), sentence=ahead(points),
    )  # fmt: skip


def ahead(points: Points) -> str:
    """Which algorithm is fastest from which size to which, in the runs."""
    runs: list[tuple[str, int, int]] = []  # name, first and last size
    for n in sorted(points[WIDE]):
        name = min(points, key=lambda one: points[one][n][0])
        name = "the ring" if name == WIDE else said(name)
        runs[-1:] = [(name, runs[-1][1], n)] if runs and runs[-1][0] == name else [*runs[-1:], (name, n, n)]
    if len(runs) == 1:
        return f"In the runs {runs[0][0]} is fastest at every size."
    (first, _, low), *middle, (last, high, _) = runs
    told = [f"{first} is fastest up to {format_bytes(low, 2)}"]
    told += [
        f"{name} " + ("at" if a == b else f"from {format_bytes(a, 2)} to") + f" {format_bytes(b, 2)}"
        for name, a, b in middle
    ]
    return f"In the runs {', '.join(told)}, and {last} from {format_bytes(high, 2)} on."


def overtakes(points: Points, first: str, then: str) -> tuple[int | None, int | None]:
    """The largest size at which `then` is slower than `first`, and the next one, at which it is not any more."""
    at = {n: (points[first][n][0], points[then][n][0]) for n in sorted(points[first])}
    before = max((n for n, (a, b) in at.items() if b > a), default=None)
    return before, next((n for n in at if n > (before or 0)), None)


def by_model(line: Any, size: int) -> float | None:
    """The bytes at which the ring overtakes recursive doubling on such links; None if it never does."""
    crossing = cost.crossover("all_reduce", FAST, WIDE, size, line.alpha, line.beta)
    return crossing if crossing < float("inf") else None


def _apart(line: Any, size: int, nbytes: float) -> float:
    """How many times as long the slower of the two takes by its line."""
    a, b = (cost.cost_of("all_reduce", name).seconds(nbytes, size, line.alpha, line.beta) for name in (FAST, WIDE))
    return max(a, b) / min(a, b)


def where_they_cross(points: Points, size: int, line: Any) -> book.Conclusion:
    """Where the ring overtakes recursive doubling, in the runs and by the lines, and whether the two agree."""
    model, (before, seen) = by_model(line, size), overtakes(points, FAST, WIDE)
    known = sorted(points[WIDE])
    names: dict[float | None, str] = {n: format_bytes(n, 3) for n in (before, seen, known[-1], model) if n}
    low, high, at = before or 0, seen or float("inf"), seen or known[-1]
    near, off = _apart(line, size, at), max(NEAR, factor(misses(points, size, line)[0][0]))
    return book.conclude(
        {
            "before is None": "In the runs the ring is no slower than recursive doubling at any size [measured].",
            "seen is None and earlier": "In the runs recursive doubling is ahead at {largest_text}, the largest size, "
            "but not at every smaller one [measured].",
            "seen is None": "In the runs recursive doubling is ahead up to {largest_text}, the largest size "
            "[measured].",
            "before < seen and earlier": "In the runs the ring is ahead at some smaller sizes as well, but overtakes "
            "recursive doubling for good between {before_text} and {seen_text} [measured].",
            "before < seen": "In the runs the ring overtakes recursive doubling between {before_text} and {seen_text} "
            "[measured].",
        },
        {
            "unseen": "The lines say nothing of that, because these runs did not show what {what} costs.",
            "model is None and ranks == 2": "By the lines the ring never overtakes it, because with two ranks both "
            "send one tensor, and the ring takes a round more [simulated].",
            "model is None": "By the lines the ring never overtakes it [simulated].",
            "smallest <= model <= largest": "By the lines the ring overtakes it at {model_text} [simulated].",
            "model > largest": "By the lines the ring overtakes it at {model_text}, beyond the sizes that we ran "
            "[simulated].",
            "model < smallest": "By the lines the ring is ahead at all of these sizes [simulated].",
        },
        {
            "unseen": "",
            "agree and earlier": "So the two agree about the large sizes only.",
            "agree": "So the two agree.",
            "nearly": "That is as near as one can ask of lines from which a mark may be a factor of {off:.2g} away.",
            "near <= 1.15": "At {at_text} the two lines differ by {near_text} only, so the crossing "
            "is decided by what the model leaves out: recursive doubling also has to add up a whole tensor in every "
            "round, and the ring adds less than one in all.",
            "later": "So the runs cross at a smaller size than the lines. A likely reason is that the model counts "
            "messages only, while recursive doubling also has to add up a whole tensor in every round, and the ring "
            "adds less than one in all.",
            "seen is None": "So the runs do not cross where the lines do. The model gives every rank a core and a link "
            "of its own, but here the ranks share cores and memory, and each round of the ring has to wait for the "
            "rank that comes last.",
            "True": "So the runs cross at a larger size than the lines. The model gives every rank a "
            "core and a link of its own, but here the ranks share cores and memory, and each round of the ring "
            "has to wait for the rank that comes last.",
        },
        earlier=any(points[WIDE][n] < points[FAST][n] for n in known if n < low),
        unseen=unseen(line), what="a byte" if unseen(line) == "bytes" else "a message",
        before=before, seen=seen, smallest=known[0], largest=known[-1], model=model, before_text=names.get(before),
        seen_text=names.get(seen), largest_text=names[known[-1]], model_text=names.get(model), ranks=size,
        agree=low <= model <= high if model is not None else seen is None,
        nearly=model is not None and low / off <= model <= high * off, off=off,
        later=seen is not None and (model is None or model > seen), near=near,
        at_text=format_bytes(at, 3), near_text="less than 1%" if near < 1.01 else f"{100 * (near - 1):.2g}%",
    )  # fmt: skip
