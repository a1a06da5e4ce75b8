"""The workbenches of chapter 2: which controls each has, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit import Link, book
from labkit.chapters.c02_ranks_and_messages import pictures
from labkit.cost import wires
from labkit.cost.units import MS

Run = Callable[..., Any]
View = Callable[[Any], Any]


def first_moves(letters: Run) -> Any:
    """Four ranks in a circle: what each of them does first."""
    controls = {f"rank_{rank}": ["send", "receive"] for rank in range(4)}
    views: list[View] = [pictures.letters, pictures.in_order]
    return book.workbench(letters, controls, views, title="What does each rank do first?", ranks=4, transport="local")


def three_ways(neighbour: Run, one: float, **options: Any) -> Any:
    """A message to the right neighbour in one of several ways, on several ranks. one: seconds of a message alone."""
    controls = {"ranks": (2, pictures.MOST), "way": ["one exception", "every second", "yours", "exchange", "handles"]}
    views: list[View] = [lambda run: pictures.in_messages(run, one), lambda run: pictures.meetings(run, one)]
    return book.workbench(neighbour, controls, views, title="Pass it to the right", ranks=4, **options)


def compute_and_send(step: Run, message: float, **options: Any) -> Any:
    """Computing of some milliseconds and a message of `message` seconds, one after the other or at the same time."""
    most = 16
    controls = {"compute_ms": (0, most), "overlap": False}
    longest = wires.step_seconds(most * MS, message, overlapped=False)
    views: list[View] = [lambda run: pictures.took(run, message), lambda run: pictures.up_to(run, longest)]
    return book.workbench(step, controls, views, title="Compute and send", ranks=2, **options)


def link_of(wire: str) -> Link:
    """The emulated link that has the bandwidth and the latency of a wire, by the name of that wire."""
    chosen = next(one for one in wires.WIRES if one.name == wire)
    return Link(bandwidth=chosen.bandwidth, latency=chosen.alpha)


def three_wires(over_wire: Run) -> Any:
    """A message from rank 0 to rank 1 over one of three wires, by its size."""
    controls = {"wire": [wire.name for wire in wires.WIRES], "kilobytes": [1, 10, 100, 1000, 8000]}
    views: list[View] = [pictures.on_each_wire, pictures.in_parts]
    return book.workbench(over_wire, controls, views, title="One message on three wires", ranks=2)


def send_first(swap: Run, ranks: int, longest: float, **options: Any) -> Any:
    """Everybody sends first, eagerly up to a limit that the reader is to find; that message takes `longest` seconds."""
    controls = {"kilobytes": (1, 128)}
    views: list[View] = [pictures.all_ended, lambda run: pictures.eager_sends(run, longest)]
    title = "Everybody sends first: up to which size does the program end?"
    return book.workbench(swap, controls, views, title=title, ranks=ranks, **options)
