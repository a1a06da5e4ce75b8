"""labkit: distributed training, really executed. `labkit.launch(fn, 4)` runs fn on four processes.

Importing labkit is cheap; PyTorch is imported with the first name that needs it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

# jsonschema, which comes with nbformat and so with plotly, compiles grammars of web addresses when it is imported,
# for more than a second, if it finds this package. Nothing here asks for them.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from . import pictures, wire  # noqa: E402 -- `wire` loads its names when they are used

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
