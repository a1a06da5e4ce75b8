"""The workbenches of chapter 12: which controls each has, where they begin, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit import Link, Network, book
from labkit.book.workbenches.bench import View
from labkit.chapters.c12_experts import hot, pictures
from labkit.chapters.c12_experts.travel import ON_NODE, far_apart

Run = Callable[..., Any]
WIRE = Network(intra=Link(bandwidth=1e9, latency=5e-6))  # 1 GB/s, 5 µs
CAPACITIES = {"no limit": 0.0, "0.5": 0.5, "1": 1.0, "1.25": 1.25, "2": 2.0}


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)


def tokens_fly(run: Run) -> book.Workbench:
    """How much the tokens are alike, how many experts each takes, and how many tokens an expert takes."""
    controls = {
        "ranks": [2, 4, 8], "skew": (0.0, 6.0, 1.0), "choices": [1, 2],
        "capacity": choice("capacity factor", CAPACITIES, 0.0),
    }  # fmt: skip
    views: list[View] = [pictures.flew, pictures.flying]
    return book.workbench(run, controls, views, title="Eight experts", ranks=4, clock="virtual", network=WIRE)


def divided(run: Run, world_size: int) -> book.Workbench:
    """By which number an expert's gradient is divided, and which optimizer takes the steps."""
    controls = {
        "by": choice("divided by", ["all ranks", "the replicas", "nothing"], "the replicas"),
        "optimizer": ["SGD", "AdamW"],
    }
    views: list[View] = [pictures.compared]
    return book.workbench(run, controls, views, title="The wrong number", ranks=world_size, transport="local")


def cures(run: Run, world_size: int, alone: Any) -> book.Workbench:
    """What is done about the hot expert, and how strongly; beside it the run `alone`, where nothing is done."""
    controls = {"cure": choice("cure", hot.CURES, "a bias"), "strength": [0.02, 0.1, 0.5]}

    def against(run: Any, cure: str) -> book.Figure:
        return hot.against({"nothing": alone, cure: run})

    def bars(run: Any) -> book.Player:
        return hot.shares(run, beside=alone)

    views: list[View] = [against, bars]
    return book.workbench(run, controls, views, title="Does it help?", ranks=world_size, transport="local")


def over_the_nodes(run: Run) -> book.Workbench:
    """In one hop or by way of the node, how late messages arrive, how many rows there are, and links inside a node."""
    controls = {
        "way": ["one hop", "by way of the node"],
        "latency": choice("latency between nodes (µs)", [5, 50, 200], 50),
        "tokens": choice("tokens of a rank", [16, 256], 16),
        "gbs": choice("links inside a node (GB/s)", [1.5, 5], 5),
    }  # fmt: skip
    views: list[View] = [pictures.crossing]
    return book.workbench(run, controls, views, title="One hop or a detour", ranks=2 * ON_NODE)


def shared_expert(run: Run, world_size: int) -> book.Workbench:
    """How long the shared expert takes, and when it works; each rank is on a node of its own."""
    from ipywidgets import IntSlider

    controls = {
        "shared": IntSlider(200, 50, 400, 50, description="shared expert (µs)"),
        "overlap": choice("works", {"while rows travel": True, "afterwards": False}, True),
    }
    views: list[View] = [pictures.shared_expert]
    return book.workbench(run, controls, views, title="A shared expert", ranks=world_size, clock="virtual",
                          network=far_apart(world_size))  # fmt: skip
