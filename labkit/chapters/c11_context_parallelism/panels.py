"""The workbenches of chapter 11: which controls each of them has, and which pictures it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from labkit import book, cost
from labkit.book.workbenches.bench import View, Workbench
from labkit.chapters.c11_context_parallelism import attention, pictures, triangle
from labkit.wire import Group
from labkit.wire.errors import RefusedError

Run = Callable[..., Any]
LAYOUTS = list(cost.CONTEXT_LAYOUTS)
TOKENS = 48  # of the small texts, whose pairs are drawn one by one


def who_computes(share: Run) -> Workbench:
    """How a text is shared out, and among how many ranks."""
    views: list[View] = [triangle.of_run("Who computes which pair"), pictures.pace]
    controls = {"layout": LAYOUTS, "ranks": [2, 3, 4, 6, 8]}
    return book.workbench(share, controls, views, title="Share out one text", ranks=8, clock="virtual")


def hide(layer: Run) -> Workbench:
    """How much text each rank has, how fast the link is, and whether blocks travel while a rank computes."""
    controls = {
        "per_rank": choice("tokens of a rank", [8, 16, 32, 64, 128, 256], 16), "link": list(attention.LINKS),
        "overlap": True, "ranks": [2, 4, 8],
    }  # fmt: skip
    views: list[View] = [pictures.hidden, pictures.timeline]
    return book.workbench(layer, controls, views, title="Hide the ring", ranks=4)


def tokens_needed() -> Any:
    """When a round of the ring is hidden on an H100: by its link, its grouped heads, and its share of the peak."""
    sliders = {
        "bandwidth": book.Slider("bandwidth of the link", 10, 900, 450, 10, "GB/s"),
        "grouped": book.Slider("query heads per KV head", 1, 16, 4, only=(1, 2, 4, 8, 16)),
        "peak": book.Slider("share of the GPU's peak", 10, 100, 100, 10, "%"),
    }
    return book.explorer("How many tokens hide the ring?", sliders, pictures.tokens_needed)


def ways(layer: Run) -> Workbench:
    """Ring, Ulysses or both; ranks; query heads and KV heads. Where a way is refused, the others stay in sight."""

    @wraps(layer)
    def tried(group: Group, **settings: Any) -> bool:
        try:
            layer(group, **settings)
        except RefusedError:
            return False
        return True

    controls = {"way": ["ring", "Ulysses", "both"], "ranks": [2, 4, 8], "heads": [4, 8], "kv_heads": [1, 2, 4]}
    views: list[View] = [pictures.sent]
    return book.workbench(tried, controls, views, title="Ring or Ulysses?", ranks=4, transport="local")


def who_reads(read: Run) -> Workbench:
    """A sliding window, packed texts, and what they leave of the ring."""
    windows = {"none": TOKENS, "6 tokens": 6, "12 tokens": 12, "24 tokens": 24}
    controls = {
        "window": choice("window", windows, TOKENS), "texts": (1, 4), "layout": LAYOUTS, "ranks": [2, 4, 8],
    }  # fmt: skip
    views: list[View] = [pictures.reads, triangle.of_run("Who reads what")]
    return book.workbench(read, controls, views, title="What may be read", ranks=8, transport="local")


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label)
