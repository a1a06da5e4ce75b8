"""A workbench where nothing runs: real runs over a small grid of its settings, kept with the notebook.

`make outputs` asks for it by LABKIT_RECORD=1; `labkit html` makes controls of it that need no script.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.book.workbenches.bench import Workbench

GRID = "application/vnd.labkit.grid+json"
MOST = 16  # runs of one workbench: a page has several, and a picture some ten thousand characters


def wanted() -> bool:
    """Whether this run is to be kept for pages on which nothing runs."""
    return os.environ.get("LABKIT_RECORD") == "1"


def record(bench: Workbench) -> dict[str, Any]:
    """{"title", "controls": [[name, [values as text]]], "start": [indices], "runs": [{"at": [indices], "html"}]}."""
    values = grid(bench)
    start, widgets = bench.settings, bench.controls
    runs: list[dict[str, Any]] = []
    for at in itertools.product(*(range(len(some)) for some in values.values())):
        settings = {name: some[k] for (name, some), k in zip(values.items(), at, strict=True)}
        bench.show(settings)
        runs.append({"at": list(at), "html": bench.still})
    bench.show(start)
    return {
        "title": bench.title,
        "controls": [[widgets[name].description, [_text(widgets[name], v) for v in some]]
                     for name, some in values.items()],
        "start": [some.index(start[name]) for name, some in values.items()], "runs": runs,
    }  # fmt: skip


def grid(bench: Workbench) -> dict[str, list[Any]]:
    """Of each control the values to run, in order, its own among them: `most_recorded` runs together, or
    fewer."""
    found = {name: _some(widget) for name, widget in bench.controls.items()}
    while math.prod(map(len, found.values())) > bench.most_recorded:
        most = max(map(len, found.values()))
        longest = [name for name in reversed(found) if len(found[name]) == most]
        name = min(longest, key=lambda name: hasattr(bench.controls[name], "options"))  # a range rather than a list
        now = bench.settings[name]
        spare = [value for value in found[name] if value != now]
        found[name].remove(spare[len(spare) // 2 - 1] if len(spare) > 1 else spare[0])
    return found


def _some(widget: Any) -> list[Any]:
    """Up to four values of a list, or the ends of a range with where it stands between them."""
    if isinstance(widget.value, bool):
        return [False, True]
    if hasattr(widget, "options"):
        options = [value for _, value in widget._options_full]
        places = {round(k * (len(options) - 1) / 3) for k in range(4)} | {options.index(widget.value)}
        return [options[k] for k in sorted(places)]
    return sorted({widget.min, widget.value, widget.max})


def _text(widget: Any, value: Any) -> str:
    """What the control calls this value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return next((str(label) for label, v in getattr(widget, "_options_full", ()) if v == value), str(value))
