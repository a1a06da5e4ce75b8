"""Who is at fault when a job stands still, slows down, or computes nonsense.

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Report": "report", "Pages": "reading", "Waits": "waits", "Clue": "waits", "Verdict": "verdict",
    "diagnose": "verdict",
}  # fmt: skip

__all__ = ["Clue", "Pages", "Report", "Verdict", "Waits", "diagnose"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
