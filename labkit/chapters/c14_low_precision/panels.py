"""The workbenches of chapter 14: which controls each has, where they begin, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit import book
from labkit.book.workbenches.bench import View
from labkit.chapters.c14_low_precision import blocks, lm, pictures, wires

Run = Callable[..., Any]


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)


def slider(label: str, low: int, high: int, value: int) -> Any:
    from ipywidgets import IntSlider

    return IntSlider(value, low, high, 1, description=label)


def few_bits(run: Run) -> book.Workbench:
    """Which numbers, the bits of the format, and the scale."""
    controls = {
        "kind": choice("numbers", lm.KINDS, "gradients"),
        "exponent": slider("exponent bits", 2, 8, 4), "mantissa": slider("mantissa bits", 1, 10, 3),
        "power": slider("scale: 2 to the", -10, 24, 0),
    }  # fmt: skip
    views: list[View] = [pictures.caught_said, pictures.caught]
    return book.workbench(run, controls, views, title="Your format", ranks=2, transport="local")


def training(run: Run, trainings: lm.Trainings) -> book.Workbench:
    """The formats of both passes, how scales follow, and one of "fixed"; beside it the same training in BF16, and
    without its linear layers. What it has run is kept in `trainings`."""
    trainings.made.clear()  # the reader may have changed `run`
    controls = {
        "forward": choice("forward", ["BF16", "E5M2", "E4M3", "E2M1"], "E4M3"),
        "backward": choice("backward", ["BF16", "E5M2", "E4M3", "E2M1"], "E5M2"),
        "scaling": choice("scales", ["delayed", "current", "fixed"], "delayed"),
        "power": slider("fixed scale: 2 to the", -16, 16, 0),
    }

    def said(done: Any, forward: str, backward: str, scaling: str, power: int) -> str:
        trainings.keep(done.results[0], forward=forward, backward=backward, scaling=scaling, power=power)
        return pictures.trained_said(done, trainings.beside)

    views: list[View] = [said, partial(pictures.trained, beside=trainings.beside)]
    bench = book.workbench(run, controls, views, title="Training in few bits", ranks=lm.RANKS, transport="local",
                           only_when={"power": {"scaling": "fixed"}})  # fmt: skip
    bench.most_recorded = 4  # each takes seconds
    return bench


def on_the_wire(run: Run) -> book.Workbench:
    """How the sum is sent, between how many ranks, and of how many numbers."""
    controls = {
        "way": choice("way", [*wires.WAYS], "8 bits, summed in 32"),
        "ranks": [2, 4, 8],
        "numbers": choice("numbers", {"1,024": 1 << 10, "65,536": wires.NUMBERS, "1 million": 1 << 20}, wires.NUMBERS),
    }
    views: list[View] = [pictures.sent_said, pictures.sent]
    return book.workbench(run, controls, views, title="The sum of a gradient", ranks=4, clock="virtual",
                          network=wires.NETWORK)  # fmt: skip


def outlier(run: Run) -> book.Workbench:
    """Which numbers, in which format, and how many times as large the outlier is."""
    controls = {
        "kind": choice("numbers", lm.KINDS, "activations"),
        "narrow_to": choice("format", ["E4M3", "E5M2", "E2M1"], "E2M1"),
        "times": choice("outlier", {"none": 1} | {f"{10**n:,} times": 10**n for n in range(1, 6)}, 10),
    }
    views: list[View] = [blocks.by_block]
    return book.workbench(run, controls, views, title="An outlier", ranks=2, transport="local")
