"""Live plots of plotly, all of which share one copy of its module.

`plotly.graph_objects.FigureWidget` brings the module with every widget: five million characters that the browser reads
and runs again, for half a second each, in which the page stands still.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from labkit.book.drawing.figure import CONFIG
from labkit.book.forms.view import PlotlyModule, read


@cache
def load() -> PlotlyModule:
    """Have the page load the module, once a kernel: to be called before the first plot is needed."""
    import plotly

    bundle = Path(plotly.__file__).parent / "package_data" / "widgetbundle.js"
    return PlotlyModule(source=bundle.read_text(encoding="utf-8"))


def live_plot(data: list[dict[str, Any]], layout: dict[str, Any]) -> Any:
    """A FigureWidget."""
    load()
    plot = _kind()(data=data, layout=layout)
    plot._config = plot._config | CONFIG | {"responsive": True}
    return plot


@cache
def _kind() -> Any:
    import plotly.graph_objects as go

    return type("Plot", (go.FigureWidget,), {"_esm": read("plot.js")})
