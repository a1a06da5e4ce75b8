"""The workbenches of chapter 3: which controls each has, where they begin, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from labkit import Link, Network, book, collectives
from labkit.book.workbenches.bench import View
from labkit.chapters.c03_collectives import pictures, race, two_nodes
from labkit.chapters.c03_collectives.crossover import LEAST
from labkit.wire import Group

Run = Callable[..., Any]
LINK = Network(intra=Link(bandwidth=pictures.BANDWIDTH, latency=pictures.LATENCY))  # 1 GB/s, 20 µs
SIZES = {"1 kB": 1, "10 kB": 10, "100 kB": 100, "1 MB": 1000, "8 MB": 8000}


def allowed(world_size: int, transport: str, width: int, batch: int, megabytes: float) -> None:
    """Raises ParameterError for parameters with which the chapter makes no sense, before anything is started."""
    book.allow({
        f"world_size={world_size!r}: take 2 to 16 ranks, because one has nobody to talk to, and pictures show 16":
            isinstance(world_size, int) and 2 <= world_size <= 16,
        f'transport={transport!r}: it is "local" or "gloo"': transport in ("local", "gloo"),
        f"width={width!r}: take a multiple of 4, the number of heads":
            isinstance(width, int) and width > 0 and width % 4 == 0,
        f"batch={batch!r}: take a whole number of pieces, 1 or more": isinstance(batch, int) and batch >= 1,
        f"megabytes={megabytes!r}: take {LEAST / 250_000:g} or more, so that there are two sizes to time":
            megabytes >= LEAST / 250_000,
    })  # fmt: skip


def scatter(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Parts of rank 0's tensor, one to each rank; what the others have counts for its shape and dtype alone."""
    given = x if group.rank == 0 else None
    return collectives.naive_scatter(given, group, like=x[:1].clone())


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)


def add_up_gradients(add_up: Run, **options: Any) -> book.Workbench:
    """Three ways to an all-reduce, and from two to eight ranks."""
    controls = {"ranks": (2, 8), "way": ["naive", "everyone", "ring"], "megabytes": [1.0, 4.0]}
    views: list[View] = [pictures.time_taken, pictures.circle]
    return book.workbench(add_up, controls, views, title="Add up gradients", ranks=8, **options)


def one_slip(slip: Run, world_size: int, **options: Any) -> book.Workbench:
    """Which rank of a ring slips, in which round, and how."""
    controls = {
        "slip": ["none", "forgets to add", "adds", "is 0.1 ms late"],
        "rank": (0, world_size - 1), "in_round": (0, 2 * world_size - 3),
    }  # fmt: skip
    views: list[View] = [pictures.verdict, pictures.timeline, pictures.slipped]
    return book.workbench(slip, controls, views, title="One slip", ranks=world_size, **options)


def who_gets_what(tour: Run, calls: Mapping[str, Run], **options: Any) -> book.Workbench:
    """Each of the collectives `calls` on small whole numbers."""
    controls = {"collective": list(calls), "ranks": (2, 8)}
    views: list[View] = [pictures.brought_and_got, pictures.cost_of_call, pictures.messages]
    return book.workbench(tour, controls, views, title="Who gets what?", ranks=4, **options)


def a_race(run: Run) -> book.Workbench:
    """Algorithms of all-reduce for one size, on links with one latency; one of them is shown round by round."""
    controls = {
        "watch": race.RACERS, "ranks": [2, 4, 8, 16],
        "kilobytes": choice("size", SIZES, 100), "latency": choice("latency (µs)", [2, 20, 200], 20),
        "shared": choice("network", {"a link for each pair": False, "two switches, one link": True}, False),
    }  # fmt: skip
    views: list[View] = [race.raced, race.watched, race.followed]
    return book.workbench(run, controls, views, title="A race", ranks=8)


def over_the_nodes(over_nodes: Run, world_size: int) -> book.Workbench:
    """The flat ring and the hierarchical way side by side, and how slow the links between nodes are."""
    controls = {"slow_gigabytes": choice("slow links (GB/s)", [1, 2, 5, 10], 1)}
    views: list[View] = [partial(view, ranks_per_node=world_size // 2) for view in (two_nodes.times, two_nodes.picture)]
    return book.workbench(over_nodes, controls, views, title="Over the nodes", ranks=world_size)


def one_disagrees(sums: Run) -> book.Workbench:
    """What rank 1 does otherwise than the others, in step 2 of five."""
    ways = ["does as the others", "brings int32", "brings 4 numbers of 8", "leaves one call out", "dies"]
    title = "Rank 1 in step 2"
    return book.workbench(sums, {"rank_1": ways}, [pictures.sums], title=title, ranks=4, transport="local")
