"""The workbenches of chapter 4: which controls each has, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

from labkit import Link, Network, book
from labkit.chapters.c04_data_parallelism import arithmetic, breaking, pictures, reading
from labkit.telling import live

Run = Callable[..., Any]
View = Callable[[Any], Any]
SIZES = arithmetic.SIZES


class Tried:
    """The packets that a reader has tried. Its function `length` is a view that remembers what it has shown."""

    def __init__(self) -> None:
        self.took: dict[float, float] = {}  # milliseconds of a step, by the size that was asked for
        self.ranks, self.nbytes = 0, 0  # of the runs, and of their whole gradient

    def length(self, run: Any) -> str:
        journeys = pictures.step_of(run).journeys
        least = min(j.nbytes for j in journeys[:-1] or journeys)  # a packet that was closed holds what was asked for
        asked = max((1000 * kB for kB in SIZES if 1000 * kB <= least), default=least)
        self.took[asked if len(journeys) > 1 else max(asked, 1000 * SIZES[-1])] = arithmetic.milliseconds(run)
        self.ranks, self.nbytes = run.trace.world_size, sum(j.nbytes for j in journeys)
        return pictures.length(run)

    def best(self, model: arithmetic.StepModel) -> float | None:
        """Of two sizes or more the one of the shortest step, if `model` is of the same step; else nobody has chosen."""
        if not live() or len(self.took) < 2 or (self.ranks, self.nbytes) != (model.ranks, model.nbytes):
            return None
        return min(self.took, key=self.took.__getitem__)


def packets(train_step: Run, wire: Link) -> Any:
    """A step of four ranks whose gradients travel over `wire`, by the size of their packets; `tried` has the sizes."""
    tried = Tried()
    controls = {"packet_kB": SIZES}

    def picture(run: Any) -> book.Figure:
        return pictures.step_picture(run, until=arithmetic.longest(run, [wire]))

    views: list[View] = [tried.length, picture]
    network = Network(nodes=4, ranks_per_node=1, inter=wire)
    options: dict[str, Any] = {"clock": "virtual", "network": network}
    bench: Any = book.workbench(train_step, controls, views, title="How large should a packet be?", ranks=4, **options)
    bench.tried = tried
    return bench


def epochs(read: Run, ranks: int, transport: str) -> Any:
    """An epoch that several ranks read: without a mistake, or with one of three."""
    mistakes = ["none", "an order of its own", "forgot its rank", "forgot the epoch"]
    controls = {"ranks": (2, 8), "mistake": mistakes, "end_of_epoch": ["pad", "drop", "exact"]}
    views: list[View] = [reading.shares, reading.who_reads]
    return book.workbench(read, controls, views, title="One epoch", ranks=min(ranks, 8), transport=transport)


def buckets(step: Run, links: Mapping[str, Link], ranks: int, asked: Sequence[float] = ()) -> Any:
    """A step by the size of its buckets, its link, and how much slower the last rank is.

    asked: sizes in bytes that the question before the panel names; the panel has them, too.
    """
    sizes = sorted({*SIZES, *(int(kB) if kB == int(kB) else kB for kB in (nbytes / 1000 for nbytes in asked))})
    controls = {"bucket_kB": sizes, "link": list(links), "last_rank_slower_by_factor": [1.0, 1.25, 1.5, 2.0]}

    def picture(run: Any) -> book.Figure:  # a step that is longer than its axis would be fills the whole width
        return pictures.first_and_last(run, until=arithmetic.longest(run, links.values(), 1.5))

    views: list[View] = [arithmetic.took, picture]
    return book.workbench(step, controls, views, title="Bucket, link and straggler", ranks=ranks)


def your_own() -> Any:
    """The formula for a model and a link of the reader's."""
    sliders = {
        "parameters": book.Slider("parameters, in millions", 50, 10_000, 1500, 50),
        "computing": book.Slider("forward and backward pass", 20, 2000, 400, 20, "ms"),
        "ranks": book.Slider("ranks", 2, 256, 32),
        "bandwidth": book.Slider("bandwidth of a link", 1, 400, 25, unit="GB/s"),
        "latency": book.Slider("latency of a link", 5, 500, 20, 5, "µs"),
    }

    def answer(parameters: float, computing: float, ranks: int, bandwidth: float, latency: float) -> Any:
        link = Link(1e9 * bandwidth, latency / 1e6)
        return arithmetic.plan(1e6 * parameters, computing / 1e3, ranks, link)

    return book.explorer("Your own model and network", sliders, answer)


def passes(accumulating: Run, ranks: int, transport: str) -> Any:
    """The loss by pass, with more or fewer passes for each update. `ran` has the runs by their passes, each made once,
    and those of 1 and of 4 at once."""
    few = SimpleNamespace(size=ranks)  # all that a run asks of its world
    ran = {number: accumulating(few, number) for number in book.in_turn((1, 4), "a training, passes = {}")}
    views: list[View] = [partial(pictures.losses, ran[1].results[0][0])]

    @wraps(accumulating)
    def once(world: Any, passes: int = 4) -> Any:
        if passes not in ran:
            ran[passes] = accumulating(world, passes)
        return ran[passes]

    title = "Passes for each update"
    bench: Any = book.workbench(once, {"passes": [1, 2, 4]}, views, title=title, ranks=ranks, transport=transport)
    bench.ran = ran
    return bench


def agreement(two_steps: Run, ranks: int, transport: str) -> Any:
    """Which rank breaks the agreement, in which way, and which guard is on."""
    controls = {"who": (0, ranks - 1), "does": breaking.WAYS, "guard": breaking.GUARDS}
    views: list[View] = [breaking.verdict, breaking.weights_after]
    step = breaking.refused(two_steps)
    return book.workbench(step, controls, views, title="One rank", ranks=ranks, transport=transport)
