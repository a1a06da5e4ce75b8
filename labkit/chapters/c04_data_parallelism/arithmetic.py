"""The step by arithmetic: when gradients become ready, and a ring that carries their buckets. No processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, floor, log, log10
from typing import Any

from labkit import Link, book, cost
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREEN, ORANGE
from labkit.book.drawing.svg import Svg, number, text_width
from labkit.book.drawing.tables import Row
from labkit.chapters.c04_data_parallelism.steps import milliseconds, step_of
from labkit.cost import textbook
from labkit.cost.units import MS, format_bytes, format_seconds

POINTS = 120  # sizes of a bucket that a curve shows
SIZES = [1, 8, 32, 75, 125, 250, 410, 1000]  # kB, of the panels; each makes another number of buckets
GAP = "\u00a0" * 4  # the table of a form has no space between its columns
SHOWN = 4  # buckets of a row of this table; of more, some are dots if their sizes are not needed
DOTS = (
    "Dots stand for buckets that the table leaves out. You do not need them: once the first bucket is full, the link "
    "is never idle, so the times of all buckets simply add up. You need only the time at which the first bucket is "
    "full, the number of buckets, and the bytes of the whole gradient."
)
SOME_DOTS = (
    "Dots stand for buckets that the table leaves out. In their rows the link is never idle once the first bucket is "
    "full, so the times of all buckets simply add up. In the other rows it may be idle between two buckets, so go "
    "through them in turn."
)


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

    @property
    def computing(self) -> float:
        """Seconds of both passes."""
        return self.forward + sum(self.seconds)

    def step(self, bucket_bytes: float, link: Link, first: float | None = None) -> cost.DataParallelStep:
        """The step with buckets of this size, by `cost.data_parallel_step`. first: that of the first one, if another"""
        size = {"bucket_bytes": bucket_bytes, "first_bucket_bytes": bucket_bytes if first is None else first}
        links = cost.Links(link.latency, 1 / link.bandwidth)
        return cost.data_parallel_step(self.seconds, self.sizes, self.ranks, links, forward=self.forward, **size)

    def about_buckets(self, bucket_bytes: float, link: Link) -> dict[str, Any]:
        """What the question after the exposed time needs to know: when buckets are full, and the earlier ones back.

        Its times count from the beginning of the step, as those of the pictures do.
        """
        step, flat = self.step(bucket_bytes, link), self.step(2 * self.nbytes, link)
        rows = [f"| bucket | {GAP}kB | {GAP}full at, ms | {GAP}back at, ms |", "|--:|--:|--:|--:|"]
        for k, b in enumerate(step.buckets):
            full, end = ((self.forward + t) / MS for t in (b.ready, b.end))
            back = f"{end:.4g}" if k < len(step.buckets) - 2 else "?"
            rows.append(f"| {k} | {b.nbytes / 1e3:.4g} | {full:.4g} | {back} |")
        return {"step": step, "flat": flat, "link": link, "ranks": self.ranks, "table": "\n".join(rows)}

    def buckets(self, bucket_bytes: float) -> Sequence[Any]:
        """The buckets of a step: when each is full, in seconds since the step began, and its bytes."""
        cut = self.step(bucket_bytes, Link(1.0, 0.0)).buckets
        return [replace(bucket, ready=self.forward + bucket.ready) for bucket in cut]

    def fastest(self, sizes: Sequence[float], link: Link) -> float:
        """Of these sizes of a bucket, that of the shortest step."""
        return min(sizes, key=lambda nbytes: self.step(nbytes, link).seconds)

    def range_of_sizes(self) -> list[float]:
        """Sizes of a bucket from the smallest that makes a difference to the whole gradient, evenly on a log axis."""
        low, high = max(1.0, self.nbytes / 1000), 1.2 * self.nbytes
        return [low * (high / low) ** (k / (POINTS - 1)) for k in range(POINTS)]

    def five_sizes(self, near: Link, far: Link) -> list[float]:
        """Five sizes with different numbers of buckets, and the fastest on both links are among them.

        They are sizes of the panels, if those make the same buckets.
        """
        every = self.range_of_sizes()
        found: dict[tuple[int, ...], float] = {}
        for kB in SIZES:
            found.setdefault(self._cut(1000.0 * kB), 1000.0 * kB)
        five: dict[int, float] = {}
        wanted = [self.fastest(every, far), self.fastest(every, near), every[0], every[-1]]
        extra = (self.nbytes / parts for parts in (6.5, 2, 12, 3, 20, 4.5))
        for nbytes in (*wanted, *reversed(found.values()), *extra):
            cut = self._cut(nbytes)
            rounded = next(r for d in range(2, 18) if self._cut(r := float(f"{nbytes:.{d}g}")) == cut)
            if len(five) < 5:
                five.setdefault(len(cut), found.get(cut, rounded))
        return sorted(five.values())

    def _cut(self, bucket_bytes: float) -> tuple[int, ...]:
        """The bytes of each bucket."""
        return tuple(round(bucket.nbytes) for bucket in self.buckets(bucket_bytes))

    def about_sizes(self, sizes: Sequence[float], near: Link, far: Link) -> dict[str, Any]:
        """What the question after the fastest size needs to know."""
        steps = [self.step(nbytes, far) for nbytes in sizes]
        dots = DOTS if all(map(_busy, steps)) else SOME_DOTS
        names = [
            f"{_buckets(step)}, each closed at {format_bytes(nbytes, 2)}" if len(step.buckets) > 1 else
            "1 bucket for the whole gradient"
            for nbytes, step in zip(sizes, steps, strict=True)
        ]  # fmt: skip
        return {
            "names": names,
            "best": min(range(len(sizes)), key=lambda i: steps[i].seconds),
            "latency": far.latency,
            "near_latency": near.latency,
            "ranks": self.ranks,
            "total": self.nbytes,
            "bandwidth": far.bandwidth,
            "dots": dots if any(len(step.buckets) > SHOWN and _busy(step) for step in steps) else "",
            "table": "\n".join(
                [f"| buckets | {GAP}size of each, kB | {GAP}full at, ms |", "|--:|--:|--:|", *map(self._leaving, steps)]
            ),
        }

    def _leaving(self, step: cost.DataParallelStep) -> str:
        """A row: the bytes of each bucket of `step`, and when each is full; of many that leave without a pause on the
        link, the first two and the last."""
        cells = [(f"{b.nbytes / 1e3:.4g}", f"{(self.forward + b.ready) / MS:.4g}") for b in step.buckets]
        shown = [*cells[:2], ("…", "…"), cells[-1]] if len(cells) > SHOWN and _busy(step) else cells
        return f"| {len(cells)} | {' · '.join(kB for kB, _ in shown)} | {' · '.join(at for _, at in shown)} |"


def step_model(run: Any, rank: int = 0) -> StepModel:
    """What the formula needs of a run: when the gradients of `rank` were ready, and their bytes."""
    one = step_of(run, rank=rank)
    times = [one.backward, *(when for when, _, _ in one.ready)]
    seconds = tuple(b - a for a, b in pairwise(times))
    return StepModel(one.backward, seconds, tuple(nbytes for _, _, nbytes in one.ready), run.trace.world_size)


def longest(run: Any, links: Iterable[Link], slowest: float = 1.0) -> float:
    """Seconds of a step whose gradient goes in one piece, over the slowest of these links, where the last rank needs
    `slowest` times as long as rank 0 of `run`: a time axis for steps with all sensible sizes of a bucket."""
    model = step_model(run)
    rings = [cost.ring_all_reduce_time(model.nbytes, model.ranks, x.latency, 1 / x.bandwidth) for x in links]
    return slowest * model.computing + max(rings)


def took(run: Any) -> str:
    """How long the step took on the slowest rank, beside the formula. Each rank returns its link."""
    slowest = max(range(run.trace.world_size), key=lambda rank: step_of(run, rank=rank).over)
    *closed, last = (j.nbytes for j in step_of(run, rank=slowest).journeys)
    step = step_model(run, slowest).step(min(closed, default=last), run.results[0])  # cut as the run has cut it
    ran, formula = format_seconds(milliseconds(run) / 1e3, 3), format_seconds(step.seconds, 3)
    count, last = len(step.buckets), step.buckets[-1]
    alone = format_seconds(last.end - last.start, 3)
    how = (
        f"{count} buckets: {format_seconds(step.exposed, 3)} stay exposed after the computing, and the last bucket "
        f"alone takes {alone}."
        if count > 1
        else f"One bucket: it is sent when the slowest rank has computed, so all of its {alone} are exposed."
    )
    return f"The run took {ran} ({run.trace.badge}); by the formula it takes {formula} (simulated). {how}"


def beside(model: StepModel, nbytes: float, runs: Mapping[str, Any], back: float) -> book.Table:
    """The last of three stages, and the same by the formula; whether less of it is exposed than of the second, and
    whether all have come to the same gradient. back: when the page's loop says that the last bucket is back, in seconds
    since the step began. nbytes: at which a bucket is closed."""
    first, *others = (run.results[0] for run in runs.values())
    same = all(first.allclose(other, atol=1e-6) for other in others)
    flat, seen = (step_of(run) for run in [*runs.values()][1:])
    left, whole = (f"{1e3 * one.exposed:.3g} ms" for one in (seen, flat))
    said = f"All three stages come to {'the same' if same else 'different'} gradients. "
    said += f"Stage C leaves {left} exposed, and stage B left {whole}."
    if seen.exposed > flat.exposed:
        said += f" With so small a gradient {len(seen.journeys)} all-reduces pay more latency than the overlap hides."
    rows = [
        ("all-reduces", len(seen.journeys), len(model.buckets(nbytes))),
        ("step, ms", 1e3 * seen.total, 1e3 * max(model.computing, back)),
        ("exposed, ms", 1e3 * seen.exposed, 1e3 * max(0.0, back - model.computing)),
    ]
    named = "", "the run (emulated)", "the formula (simulated)"
    return book.Table([dict(zip(named, row, strict=True)) for row in rows], caption=said)


def quickest(runs: Mapping[float, Any]) -> int:
    """The position of the run whose step was the shortest."""
    times = [milliseconds(run) for run in runs.values()]
    return times.index(min(times))


def ask_exposed(chapter: Any, model: StepModel, nbytes: float, link: Link) -> Any:
    """The question after the exposed time of a step with buckets of `nbytes`."""
    return chapter.predict("exposed", **model.about_buckets(nbytes, link))


def ask_fastest(chapter: Any, model: StepModel, sizes: Sequence[float], links: Mapping[str, Link]) -> Any:
    """The question after the size of the fastest step on the far link."""
    return chapter.predict("bucket-size", **model.about_sizes(sizes, links["near"], links["far"]))


def beside_fastest(prediction: Any, runs: Mapping[float, Any]) -> book.Table:
    """A prediction of the fastest of these sizes beside the runs, and what a wrong one overlooked."""
    right = quickest(runs)
    table: book.Table = prediction.compare(right, mark="emulated")
    if not prediction.predicted or prediction.values[0] == right:
        return table
    few = (
        "Yours are fewer and larger buckets. They save latencies, but a large bucket is full late, so less of its "
        "time on the wire can be hidden behind the backward pass."
    )
    many = (
        "Yours are more and smaller buckets. They hide more behind the backward pass, but every bucket pays the "
        "latencies of all rounds, which are ten times as long now."
    )
    said = few if prediction.values[0] > right else many
    mine, best = (milliseconds([*runs.values()][place]) for place in (prediction.values[0], right))
    if mine < (1 + ALIKE) * best:
        said = f"Yours is within {ALIKE:.0%} of it, which hardly any machine would show. {said}"
    return book.Table(table, caption=said)


def beside_exact(prediction: Any, chance: float, sizes: Sequence[int] = (8, 32)) -> book.Table:
    """A prediction of late steps beside their probability, which is what a run of endless length would show."""
    law = cost.RareDelay(1, 1, chance)
    rows = prediction.compare(*(100 * law.stalled_steps(ranks) for ranks in sizes), mark="simulated")
    named = [
        {"exact probability (simulated)" if k.startswith("the run") else k: v for k, v in row.items()} for row in rows
    ]
    return book.Table(named, caption=rows.caption)


GPT2_PASS = 1.8  # seconds for 16 samples on one GPU, by source 003


def gpt2_ring(gpus: int) -> float:
    """Seconds of an all-reduce of GPT-2's gradient: on one node of 8 over NVLink, on more over Ethernet."""
    speed = textbook.NVLINK_ONE_DIRECTION if gpus <= 8 else textbook.TEN_GIGABIT
    return textbook.ring_at(textbook.GPT2_GRADIENT, gpus, speed).seconds


def gpt2_on_nodes() -> book.Table:
    """Samples in a second of GPT-2 on one node and on four, with an update after each pass and after every four."""
    nodes = {"one node, 8 GPUs": 8, "four nodes, 32 GPUs": 32}
    ways = {"an update after each pass": 1, "an update after every four": 4}

    def rate(gpus: int, passes: int) -> int:
        seconds = cost.accumulated_step_seconds(GPT2_PASS, gpt2_ring(gpus), passes)
        return round(cost.global_batch(16, gpus, passes) / seconds)

    rows = [
        {"samples in a second": name} | {way: rate(gpus, passes) for way, passes in ways.items()}
        for name, gpus in nodes.items()
    ]
    return book.Table(rows, caption="GPT-2 on one node and on four (simulated)")


def step_by_size(
    model: StepModel, links: Mapping[str, Link], runs: Mapping[float, Any], mine: float | None = None
) -> book.Figure:
    """The step by the size of a bucket, a panel for each link with a scale of its own; `runs` are on the last link.

    mine: the size in bytes that the reader has found on the first link, if there is one.
    """
    sizes = model.range_of_sizes()
    best = {name: model.fastest(sizes, link) for name, link in links.items()}
    least = {name: model.step(best[name], link) for name, link in links.items()}
    told = [f"{name} {least[name].seconds / MS:.1f} ms, with {_buckets(least[name])}" for name in links]
    computing = model.computing / MS
    said = (
        f"The shortest step by the formula: {', '.join(told)}. The horizontal dashed line marks the {computing:.3g} ms "
        "of computing. The two plots have different scales, and steps that are too long for a plot end at its edge."
        + (" The dotted line marks your best packet of the opening." if mine is not None else "")
    )
    svg = Svg(WIDTH, "A step by the size of its buckets", said)
    looks = [("the formula", BLUE, "", ""), ("its shortest step", GREEN, "x", "")]
    looks.append((f"runs on the {list(links)[-1]} link (emulated)", ORANGE, "", ""))
    top = legend(svg, heading(svg, "simulated", said), looks) + 14
    rows: list[Row] = []
    wide, high = 310.0, 190.0
    for panel, (name, link) in enumerate(links.items()):
        left = 52 + panel * 378.0
        points = {nbytes: model.step(nbytes, link).seconds / MS for nbytes in sizes}
        dots = {n: milliseconds(run) for n, run in runs.items()} if name == list(links)[-1] else {}
        tallest = max(*points.values(), *dots.values(), 0.0)
        marks = _ticks(computing, min(tallest, computing + 3 * (min(points.values()) - computing) + 0.2 * computing))
        low, peak = marks[0], marks[-1]  # what is far longer than the shortest step ends at the frame

        def x(nbytes: float, left: float = left) -> float:
            inside = min(max(nbytes, sizes[0]), sizes[-1])
            return left + wide * log(inside / sizes[0]) / log(sizes[-1] / sizes[0])

        def y(ms: float, low: float = low, peak: float = peak) -> float:
            return top + 20 + high * (peak - min(ms, peak)) / (peak - low)

        svg.text(left, top + 6, f"{name}: a latency of {format_seconds(link.latency)}", bold=True)
        svg.text(left + wide, top + 6, "vertical: length of the step, ms", 11, "end")
        svg.rect(left, top + 20, wide, high)
        for ms in marks:
            svg.line(left - 4, y(ms), left, y(ms))
            svg.text(left - 6, y(ms) + 4, f"{ms:g}", 11, "end")
        svg.line(left, y(computing), left + wide, y(computing), "4 3")
        svg.text(left + 6, y(computing) - 4, f"{computing:.3g} ms of computing", 11)
        for kB in (1, 10, 100, 1000):
            if sizes[0] <= 1000 * kB <= sizes[-1]:
                svg.line(x(1000 * kB), top + 20 + high, x(1000 * kB), top + 24 + high)
                svg.text(x(1000 * kB), top + 37 + high, f"{kB} kB", 11, "middle")
        svg.text(left + wide / 2, top + 54 + high, "size of a bucket (logarithmic)", 11, "middle")
        if mine is not None:
            svg.line(x(mine), top + 20, x(mine), top + 20 + high, "1 3", 2)
            words = "your best" if panel == 0 else f"your best, {next(iter(links))}"
            fits = x(mine) + 4 + text_width(words, 11) < left + wide
            svg.text(x(mine) + (4 if fits else -4), top + 33, words, 11, "start" if fits else "end")
        places = [(x(nbytes), y(ms)) for nbytes, ms in points.items()]
        steps = "".join(f" H{number(a)} V{number(b)}" for a, b in places[1:])
        svg.path(f"M{number(places[0][0])} {number(places[0][1])}{steps}", colour=BLUE, width=2)
        for nbytes, ms in dots.items():
            svg.marker(x(nbytes), y(ms), "circle", ORANGE, 5)
            if ms > peak:
                svg.text(x(nbytes) + 9, y(ms) + 13, f"{ms:.0f} ms", 11)
        svg.marker(x(best[name]), y(points[best[name]]), "x", GREEN, 6)
        rows += [
            {"link": name, "bucket, kB": n / 1e3, "formula, ms": points[n]} for n in (sizes[0], best[name], sizes[-1])
        ]
        rows += [{"link": name, "bucket, kB": n / 1e3, "run, ms": ms} for n, ms in dots.items()]
    return book.Figure("A step by the size of its buckets", "simulated", said, rows, svg.render(top + high + 64))


def _round_step(atleast: float) -> float:
    """The next of ..., 0.5, 1, 2, 5, 10, ... for the ticks of an axis."""
    ten = 10.0 ** floor(log10(atleast))
    return next(ten * k for k in (1, 2, 5, 10) if ten * k >= atleast * (1 - 1e-9))


def _ticks(low: float, peak: float) -> list[float]:
    """Round numbers at equal distances, from `low` or just below it to `peak` or just above it."""
    pitch = _round_step((peak - low) / 6)
    return [pitch * k for k in range(floor(low / pitch + 1e-6), ceil(peak / pitch - 1e-6) + 1)]


def _busy(step: cost.DataParallelStep) -> bool:
    """Whether the link has something to carry from the first bucket to the end of the last one."""
    return all(after.ready <= before.end for before, after in pairwise(step.buckets))


def _buckets(step: cost.DataParallelStep) -> str:
    return f"{len(step.buckets)} bucket{'s' * (len(step.buckets) != 1)}"


def _part(step: cost.DataParallelStep) -> str:
    """How much of a step is exposed: never "0%" where there is some, nor "100%" where something is computed as well."""
    part = step.exposed / step.seconds
    if 0 < part < 0.01:
        return "less than 1%"
    return "more than 99%" if 0.99 < part < 1 else f"{part:.0%}"


LAYERS, BYTES = 100, 2  # of a model of which only its parameters are known: even gradients of 16 bits
ALIKE = 0.01  # steps that differ by less than this part are equally long


def plan(parameters: float, computing: float, ranks: int, link: Link) -> tuple[str, list[Row]]:
    """The best bucket of a model, and its step beside those of other buckets. computing: seconds of a step.

    Sizes whose steps differ by less than `ALIKE` are equally good: PyTorch's default is taken, else the smallest.
    """
    nbytes = BYTES * parameters / LAYERS
    model = StepModel(computing / 3, (2 / 3 * computing / LAYERS,) * LAYERS, (round(nbytes),) * LAYERS, ranks)
    every = [model.step(model.nbytes / parts, link) for parts in range(1, LAYERS + 1)]
    usual = model.step(cost.BUCKET_BYTES, link, cost.FIRST_BUCKET_BYTES)
    shortest = min(every, key=lambda step: step.seconds)
    enough = (1 + ALIKE) * shortest.seconds
    good = {step.buckets[0].nbytes: step for step in every if step.seconds <= enough}
    least, default_is_good = min(good), usual.seconds <= enough
    sizes = f"equal buckets of {format_bytes(least, 3)}"
    if len(good) > 1:
        sizes = f"equal buckets of {format_bytes(least, 3)} to {format_bytes(max(good), 3)}"
    tries = {} if default_is_good else {f"of {format_bytes(least, 3)}": good[least]}
    tries |= {"PyTorch's default": usual, "a single one": model.step(2.0 * model.nbytes, link)}
    rows: list[Row] = [
        {"buckets": name, "number": len(step.buckets), "step, ms": step.seconds / MS, "exposed, ms": step.exposed / MS}
        for name, step in tries.items()
    ]
    taken = usual if default_is_good else good[least]
    alike = f"come within {ALIKE:.0%} of that" if len(good) > 1 or default_is_good else "make it"
    said = (
        f"A gradient of {format_bytes(model.nbytes, 3)}. The shortest step with equal buckets takes "
        f"{format_seconds(shortest.seconds, 3)}, and {sizes} {alike}. "
    )
    if taken.exposed > taken.seconds / 2:
        said += (
            f"But even then {_part(taken)} of the step is exposed: the network is too slow for this model. Send less "
        )
        said += "often (section 6)."
    else:
        said += f"{_choice(len(good), default_is_good)}{_part(taken)} of the step is exposed."
        said += " To hide more of it, send less often (section 6)." if taken.exposed > taken.seconds / 10 else ""
    if nbytes > cost.BUCKET_BYTES:
        often = ""
        if not default_is_good:
            often = f", and the latencies are paid {len(usual.buckets)} times in place of {len(taken.buckets)}"
        said += (
            f" Each of the {LAYERS} gradients has {format_bytes(nbytes, 3)}, more than PyTorch's default of "
            f"{format_bytes(cost.BUCKET_BYTES, 3, binary=True)}, and no gradient is ever cut. So with that "
            f"default each of them is a bucket of its own{often}."
        )
    return said, rows


def _choice(sizes: int, default_is_good: bool) -> str:
    """Which of the good sizes one takes, as the beginning of a sentence on how much of the step is exposed."""
    if default_is_good:
        return "So does PyTorch's default, and you can leave it as it is: "
    return "The smallest of these sizes is large enough: with it " if sizes > 1 else "With them "
