"""The workbenches of chapter 16: which controls each has, where they begin, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit import book
from labkit.align.task import Task
from labkit.book.workbenches.bench import View
from labkit.chapters.c16_alignment import asynchronous, fleets, learning, lengths, timelines

Run = Callable[..., Any]


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)


def fleet(run: Run, ranks: int = 8) -> book.Workbench:
    """Where the four models live, and how long a response may become."""
    controls = {
        "where": choice("four models", [*fleets.WHERE], "a pool for each, same sizes"),
        "longest": choice("longest response", {"8 tokens": 8, "16": 16, "32": 32, "48": 48}, 32),
    }
    views: list[View] = [timelines.placed_said, partial(timelines.placed, axis=fleets.AXIS)]
    return book.workbench(run, controls, views, title="A step of PPO on eight ranks", ranks=ranks, clock="virtual",
                          network=fleets.NETWORK(ranks), transport="local")  # fmt: skip


def learn(run: Run, task: Task) -> book.Workbench:
    """How expensive it is to leave the reference, and how many steps."""
    begin = learning.Beginning.of(task)
    controls = {
        "beta": choice("KL penalty", {"none": 0.0, "0.05": 0.05, "0.2": 0.2, "1": 1.0}, 0.05),
        "steps": choice("steps", [8, 16, 32], 16),
        "judge": choice("judge", [*learning.JUDGES], learning.JUDGES[0]),
    }
    views: list[View] = [
        partial(learning.learned_said, begin=begin),
        partial(learning.learned, begin=begin),
        learning.written,
    ]
    bench = book.workbench(run, controls, views, title="PPO on a task whose truth is known", ranks=2, transport="local")
    bench.most_recorded = 4  # each takes seconds
    return bench


def batch(run: Run) -> book.Workbench:
    """Which lengths, how sequences become rows, and which rank gets which."""
    controls = {
        "mix": choice("lengths", [*lengths.MIXES], lengths.HELL),
        "way": choice("rows", [*lengths.WAYS], lengths.WAYS[0]),
        "deal": choice("ranks get", ["same number each", "same tokens each"], "same number each"),
    }
    views: list[View] = [lengths.batch_said, lengths.batch]
    return book.workbench(run, controls, views, title="A batch on four ranks", ranks=4, clock="virtual",
                          transport="local")  # fmt: skip


def nobody_waits(run: Run) -> book.Workbench:
    """How many versions old a response may be, and which worker dies."""
    controls = {
        "staleness": choice("versions old", {"none": 0, "1": 1, "2": 2}, 0),
        "writers": [1, 2, 3, 4, 6],  # each with a chunk of every batch of six
        "kill": choice("kill", {"nobody": 0, "the first writer": 1, "the last writer": -1}, 0),
    }
    views: list[View] = [asynchronous.stale_said, asynchronous.stale]
    bench = book.workbench(run, controls, views, title="A trainer, and ranks that write")
    bench.most_recorded = 6
    return bench
