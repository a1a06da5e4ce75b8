"""Named results of a run, as a display that programs read: what `labkit sweep` collects from executed notebooks."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from labkit.book.drawing.tables import Table
from labkit.book.frontend import live

RECORD = "application/vnd.labkit.record+json"


def record_bundle(chapter: str, numbers: dict[str, Any]) -> dict[str, Any]:
    """The display: {"schema": 1, "chapter": name, "values": {...}}, and a table in words. Raises ValueError."""
    if not numbers:
        raise ValueError("record() has nothing to record: name a number, as in record(ring_ms=3.1)")
    values = {name: plain(name, value) for name, value in numbers.items()}
    text = Table([{"recorded": name, "value": value} for name, value in values.items()]).text()
    return {RECORD: {"schema": 1, "chapter": chapter, "values": values}, "text/plain": text}


def plain(name: str, value: Any, door: str = "record") -> Any:
    """`value` as JSON has it; scalars of torch and numpy become Python's numbers. door: who was asked, for errors."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{door}({name}={value}): a recorded number is finite; record None where there is none")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise ValueError(f"{door}({name}=...): a {kind} cannot be recorded: give a number, a text, or a list") from None
    return value


def show_record(chapter: str, numbers: dict[str, Any]) -> None:
    """Display the record; outside a notebook, print it. A reader sees nothing of it: it is for programs."""
    bundle = record_bundle(chapter, numbers)
    if live():
        del bundle["text/plain"]
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        print(bundle["text/plain"])
        return
    from IPython.display import display

    display(bundle, raw=True)
