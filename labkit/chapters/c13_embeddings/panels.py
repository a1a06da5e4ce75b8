"""The workbenches of chapter 13: which controls each of them has, and which pictures it shows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from labkit import Link, Network, book
from labkit.book.workbenches.bench import View, Workbench
from labkit.chapters.c13_embeddings import hot, pictures, ports, travel
from labkit.chapters.c13_embeddings.clients import DYING
from labkit.chapters.c13_embeddings.tables import PLACEMENTS

Run = Callable[..., Any]
WIRE = Network(intra=Link(bandwidth=pictures.BANDWIDTH, latency=pictures.LATENCY))

SKEWS = [0.0, 0.8, 1.1, 1.4]


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)


def who_is_asked(look_up: Run) -> Workbench:
    """Where the rows lie, and how unequal the ids are."""
    controls = {"placement": list(PLACEMENTS), "skew": SKEWS, "ranks": [2, 4, 8]}
    views: list[View] = [pictures.step_took, travel.piles, pictures.sent]
    return book.workbench(look_up, controls, views, title="Who is asked for rows?", ranks=4, clock="virtual",
                          network=WIRE)  # fmt: skip


def hot_rows(hold: Run, rows: int, ranks: int) -> Workbench:
    """How unequal the ids are, how long a row is, and how many ranks share the table of `rows` rows."""
    controls = {"skew": SKEWS, "width": choice("numbers in a row", [4, 16, 64], 64),
                "ranks": sorted({2, 4, 8, ranks})}  # fmt: skip
    views: list[View] = [hot.hot_rows, functools.partial(hot.holding, rows=rows)]
    return book.workbench(hold, controls, views, title="Which rows should every rank hold?", ranks=ranks,
                          clock="virtual", network=WIRE)  # fmt: skip


def tiers(cached: Run) -> Workbench:
    """How many rows the fast tier has room for, who must leave it, and how unequal the ids are."""
    controls = {
        "capacity": choice("rows in the fast tier", [20, 100, 400, 1000], 100), "policy": ["lru", "lfu"],
        "skew": SKEWS,
    }  # fmt: skip
    views: list[View] = [pictures.hit_rates(cached)]
    return book.workbench(cached, controls, views, title="A small fast tier", ranks=2, transport="local")


def server_or_ring(with_workers: Run) -> Workbench:
    """How many ranks work, how many more of them serve, and how large the gradient is."""
    controls = {
        "workers": [*range(1, 9)], "servers": [1, 2, 4], "kilobytes": choice("gradient (kB)", [1, 3, 10, 100], 100),
    }  # fmt: skip
    views: list[View] = [ports.compared, ports.by_workers, ports.many_workers]
    return book.workbench(with_workers, controls, views, title="Servers or a ring?", ranks=5)


def federated(with_clients: Run) -> Workbench:
    """How unlike the clients are, which of them dies, and how long each trains in a round; beside clients that are
    alike and train as long."""
    controls = {
        "alpha": [0.03, 0.1, 0.3, 1.0, 100.0], "dies": list(DYING),
        "epochs": choice("epochs in a round", [1, 4, 16], 4),
    }  # fmt: skip

    @functools.cache
    def curve(alpha: float, epochs: int) -> dict[int, float]:
        return pictures.curve(with_clients(alpha=alpha, epochs=epochs))

    def drawn(run: Any, alpha: float, dies: str, epochs: int) -> book.Figure:
        lines = {"alpha 100, all alive": curve(100.0, epochs)}
        if dies != "nobody" and alpha != 100:
            lines["these clients, all alive"] = curve(alpha, epochs)
        here = "these clients" if dies == "nobody" else f"these without {dies}, which dies in round 3"
        return pictures.rounds(lines | {here: pictures.curve(run)})

    views: list[View] = [drawn]
    return book.workbench(with_clients, controls, views, title="Six clients and a server", ranks=7, transport="local")
