"""A figure is one display with three faces: plotly where it runs, a small SVG where it does not, and words.

A front end picks the richest form it knows; a static export shows the SVG; a terminal, a screen reader and
nbval read the words. No PNG (it would win over the plot), no network, nothing random.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.style import BADGES, CLEAR, FONT, GRID, INK, INK_ON_WHITE, ON_COLOUR, checked_badge
from labkit.book.drawing.svg import Svg, text_width, wrap
from labkit.book.drawing.tables import Row, Table

if TYPE_CHECKING:
    import plotly.graph_objects

PLOTLY = "application/vnd.plotly.v1+json"
WIDTH = 760  # of the SVG, in pixels: the text column of a notebook
LEAST_PART = 0.75  # of its width: smaller an image does not get, so that its letters stay readable
ROWS_IN_TEXT = 40
ROWS_IN_PAGE = 200
CONFIG = {"displaylogo": False, "modeBarButtons": [["zoom2d", "pan2d", "resetScale2d"]]}  # of every plot


@dataclass(frozen=True)
class Figure:
    """What a cell shows, and the data behind it.

    title: what is drawn. badge: a mark such as "measured" (see `marks`). sentence: what is seen, with
    numbers, as one would say it to a person who cannot see the picture. rows: the data, exact.
    spec: plotly's figure as plain JSON (`data`, `layout`), or None where words and SVG are enough. svg: the picture.
    """

    title: str
    badge: str
    sentence: str
    rows: list[Row]
    svg: str
    spec: dict[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checked_badge(self.badge)

    def table(self) -> Table:
        """The data of the figure: a list of rows that shows itself as a table."""
        return Table(self.rows, caption=f"{self.title} ({self.badge})")

    @property
    def text(self) -> str:
        """Title, badge, sentence and the numbers: the figure for a reader who does not see it."""
        return f"{self.title} ({self.badge})\n{self.sentence}\n\n{self.table().text(ROWS_IN_TEXT)}"

    def plotly(self) -> plotly.graph_objects.Figure:
        """The figure as plotly's own object, to change or to save."""
        import plotly.graph_objects as go

        if self.spec is None:
            raise ValueError(f"figure {self.title!r} has no plotly form: use .svg or .table()")
        return go.Figure(data=self.spec["data"], layout=self.spec["layout"])

    def __repr__(self) -> str:
        return self.text

    def bundle(self) -> dict[str, Any]:
        """What is displayed, by MIME type. Without a plot the picture is in HTML: JupyterLab gives an SVG no words."""
        bundle: dict[str, Any] = {"text/plain": self.text, "image/svg+xml": self.svg}
        if self.spec is None:
            bundle["text/html"] = self.image()
        else:
            bundle[PLOTLY] = json.loads(json.dumps(self.spec, sort_keys=True, allow_nan=False))
        return bundle

    def image(self) -> str:
        """The picture with its words, in HTML. Where there is little room it scrolls, and its letters stay readable.

        An image knows no theme of the page, so it is dark on white in all of them.
        """
        data = base64.b64encode(re.sub(rf"{INK}\b", INK_ON_WHITE, self.svg).encode()).decode()
        words = escape(self.alt()["image/svg+xml"]["alt"])
        width = re.search(r'viewBox="0 0 ([0-9]+)', self.svg)
        least = LEAST_PART * int(width[1]) if width else 0
        look = f"max-width: 100%; min-width: {least:.0f}px; background: white"
        image = f'<img alt="{words}" src="data:image/svg+xml;base64,{data}" style="{look}"/>'
        return f'<div style="overflow-x: auto" tabindex="0">{image}</div>'

    def alt(self) -> dict[str, Any]:
        """Metadata of the display: the words that an exported page gives to the picture."""
        return {"image/svg+xml": {"alt": f"{self.title} ({self.badge}). {self.sentence}"}}

    def data_html(self) -> str:
        """The numbers behind a native disclosure: what stands below the figure in a page."""
        return f"<details><summary>Data as a table</summary>{self.table().html(ROWS_IN_PAGE)}</details>"

    def _ipython_display_(self) -> None:
        """In a notebook: the figure, and below it its data on demand."""
        show_with_table(*self._repr_mimebundle_(), self)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.bundle(), self.alt()


def show_with_table(bundle: dict[str, Any], metadata: dict[str, Any], figure: Figure) -> None:
    """Display `bundle`, and below it the data of `figure`. In a terminal only the words: they end with the numbers."""
    from IPython.core.display_functions import publish_display_data

    publish_display_data(bundle, metadata)
    if "IPKernelApp" in getattr(_shell(), "config", {}):
        said = f'<p class="lk-said">{escape(figure.sentence)}</p>' if PLOTLY in bundle else ""
        if below := said + (figure.data_html() if figure.rows else ""):
            publish_display_data({"text/html": below})


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


def plotly_spec(
    title: str, badge: str, data: list[dict[str, Any]], height: int, *, above: int = 0, below: int = 84, **layout: Any
) -> dict[str, Any]:  # fmt: skip
    """Plotly's JSON for `data`, with the title, the badge and the look that all figures share.

    The sentence of a figure stands beside its plot: plotly does not wrap words.

    height: of the drawing alone, in pixels. above, below: room for axes and the legend.
    """
    head = 56 + above
    base = {
        "title": {
            "text": f"<b>{title}</b>  [{badge}]",
            "font": {"size": 15}, "x": 0, "xanchor": "left", "xref": "container", "pad": {"l": 8, "t": 12},
            "y": 1, "yanchor": "top", "yref": "container", "automargin": False,
        },
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR, "autosize": True, "height": height + head + below,
        "margin": {"l": 70, "r": 20, "t": head, "b": below},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom",
                   "traceorder": "normal"},
        "hoverlabel": {"align": "left", "bgcolor": "#ffffff", "font": {"color": ON_COLOUR, "family": FONT}},
        "modebar": {"bgcolor": CLEAR, "color": INK, "activecolor": INK},
        "transition": {"duration": 0},
    }  # fmt: skip
    return {
        "data": data,
        "layout": {**base, **layout},
        # Not "responsive": JupyterLab sees to the width, and with it a figure has no height after a change of theme.
        "config": CONFIG,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with a grid that is faint on any background."""
    return {
        "title": {"text": title}, "gridcolor": GRID, "linecolor": GRID, "zeroline": False, "automargin": True, **more,
    }  # fmt: skip


def heading(svg: Svg, badge: str, sentence: str) -> float:
    """Draw title, badge and sentence at the top of a picture; return the y where the drawing may begin."""
    svg.text(8, 22, svg.title, size=15, bold=True)
    svg.text(8 + 1.07 * text_width(svg.title, 15) + 8, 22, f"[{badge}]", size=15)
    y = 22.0
    for line in wrap(sentence, svg.width - 20, 12):
        y += 17
        svg.text(8, y, line, size=12)
    return y + 14


def legend(svg: Svg, y: float, items: Iterable[tuple[str, str, str, str]]) -> float:
    """A row of (name, colour, hatch, dash) boxes at `y`; return the y below it."""
    x = 8.0
    for name, colour, hatch, dash in items:
        width = 24 + text_width(name, 11.5) + 16
        if x + width > svg.width:
            x, y = 8.0, y + 18
        svg.rect(x, y, 18, 11, fill=colour, hatch=hatch, dash=dash, stroke_width=0.8)
        svg.text(x + 23, y + 10, name, size=11.5)
        x += width
    return y + 22


def explain_badge(kind: str) -> str:
    """What a badge means: measured is "seen here, in the run just made"."""
    return f"{checked_badge(kind)}: {BADGES[kind]}"
