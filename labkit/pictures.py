"""Who draws what: `trace.timeline()` and `mesh.draw()` come here, and `labkit.book` says here what it can draw.

So nothing that has a picture knows of the book above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_drawn_by: dict[type, Callable[..., Any]] = {}
_asked_first: list[Callable[[], Any]] = []


def drawn_by(kind: type, draw: Callable[..., Any]) -> None:
    """A `kind`, or a subclass of it, is drawn by `draw(thing, ...)`."""
    _drawn_by[kind] = draw


def ask_first(load: Callable[[], Any]) -> None:
    """Call `load()` before the first picture: it registers what can be drawn, and takes too long for an import."""
    _asked_first.append(load)


def draw(thing: Any, *args: Any, **options: Any) -> Any:
    """The picture of `thing`: a `labkit.book.Figure`."""
    while _asked_first:
        _asked_first.pop()()
    for kind in type(thing).__mro__:
        if kind in _drawn_by:
            return _drawn_by[kind](thing, *args, **options)
    raise TypeError(f"nothing draws a {type(thing).__name__}")
