"""The workbenches of chapter 0: which controls each of them has, and which pictures it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from labkit import book
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.c00_start_here import pictures


def adding_up(run: Callable[..., Any]) -> Workbench:
    """How many ranks add up their vectors, and which of them dies before."""

    from ipywidgets import Dropdown, IntSlider

    @wraps(run)
    def told(group: Any, kill: str | int = "nobody") -> Any:
        return run(group, kill), kill  # so that the words can say it when there is no such rank

    ranks, kill = IntSlider(4, 2, 8, description="ranks"), Dropdown(options=victims(4), description="kill")

    def follow(_: object) -> None:
        kill._initializing_traits_ = kill.value in victims(ranks.value)  # else it goes back to nobody: one more run
        kill.options = victims(ranks.value)
        kill._initializing_traits_ = False

    ranks.observe(follow, "value")
    controls = {"ranks": ranks, "kill": kill}
    return book.workbench(told, controls, [pictures.sums, pictures.circle], title="Adding up vectors", ranks=4)


def victims(ranks: int) -> list[str | int]:
    """Who can be killed."""
    return ["nobody", *range(ranks)]


def training(run: Callable[..., Any], world_size: int, batch: int, **options: Any) -> Workbench:
    """How many ranks train, on how many images each, and whether they share their gradients."""
    controls = {"ranks": (1, max(8, world_size)), "share_gradients": True, "batch": (1, max(32, batch))}
    views: list[Any] = [pictures.apart, pictures.curves]
    return book.workbench(run, controls, views, title="Train", ranks=world_size, **options)
