"""Several runs in one cell: which of them is under way, in a line that goes when all are over."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from labkit.telling import live

T = TypeVar("T")


def in_turn(items: Collection[T], doing: str) -> Iterator[T]:
    """Each of `items`, with a line for the reader as long as it is its turn: "2 of 3: " and `doing`.format(item)."""
    line: Any = None
    if live():
        from IPython.display import display

        line = display({"text/plain": ""}, raw=True, display_id=True)
    try:
        for number, item in enumerate(items, 1):
            if line is not None:
                line.update({"text/plain": f"{number} of {len(items)}: {doing.format(item)} ..."}, raw=True)
            yield item
    finally:
        if line is not None:
            line.update({"text/plain": ""}, raw=True)
