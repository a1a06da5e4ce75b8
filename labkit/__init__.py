"""labkit: distributed training, really executed. `labkit.launch(fn, 4)` runs fn on four processes.

Importing labkit is cheap; PyTorch is imported with the first name that needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import pictures, wire  # `wire` loads its names when they are used

__version__ = "0.1.0"

_HOMES = {"world": ["Failure", "Job", "RankFailed", "Run", "launch", "start", "warm"], "wire": dir(wire)}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = [*_HOME, "__version__", "world"]


def __getattr__(name: str) -> Any:
    if name == "world":  # a room that can be called
        return importlib.import_module("labkit.world")
    if name in _HOME:
        return getattr(importlib.import_module(f"labkit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


# What lies below the book, and has a picture, does not know where pictures are made: this file does.
pictures.ask_first(lambda: importlib.import_module("labkit.book.pictures"))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
