"""A workbench in JupyterLab: native controls, plotly's live figures, and words for those who do not see them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.marks import inline
from labkit.book.drawing.tables import Table
from labkit.book.drawing.units import SECONDS
from labkit.book.stepping.player import Player
from labkit.book.workbenches.plot import live_plot, load

if TYPE_CHECKING:
    from labkit.book.workbenches.bench import Face, Workbench

GHOST = {"opacity": 0.35, "legendgroup": "pinned"}  # how the lines of what is pinned look
BAND = 9  # pixels: they lie behind the others, which may run along them
LEAST = "320px"  # height of the pictures
LARGE = 40_000  # characters of a picture, on a page with a dozen of them


class Panel:
    """box: the whole widget. status: how the last run went."""

    def __init__(self, bench: Workbench) -> None:
        from ipywidgets import HTML, Button, HBox, Layout, VBox

        from labkit.book.forms.view import LabelsView

        load()
        self._bench = bench
        self.status, self.code = HTML(), HTML()
        self.panes: list[Pane] = []
        self._pictures = VBox(
            _dom_classes=("lk-pictures",), layout=Layout(min_height=LEAST)
        )  # the page does not jump while a picture is replaced
        pin, code = (Button(description=name, layout=Layout(width="auto")) for name in ("Pin", "As code"))
        self.unpin = Button(description="Unpin", layout=Layout(display="none", width="auto"),
                            tooltip="Let go what is pinned")  # fmt: skip
        self.unpin.on_click(lambda _: bench.unpin())
        pin.tooltip, code.tooltip = (
            "Keep this result, to compare the next ones with",
            "The cell that makes the same run",
        )
        stop = Button(description="Stop", tooltip="End the run that is under way")
        stop.add_class("lk-stop")
        stop.on_click(lambda _: bench.stop())
        pin.on_click(lambda _: bench.pin())
        code.on_click(lambda _: self._show_code(bench.code))
        wrap = Layout(flex_flow="row wrap")
        row = HBox([*bench.controls.values(), pin, self.unpin, code, stop], layout=wrap)
        heading = HTML(f'<p class="lk-title">{escape(bench.title)}</p>')
        self.kept = VBox(_dom_classes=("lk-before",), layout=Layout(display="none"))
        below = [self.code, self.status, self._pictures, self.kept, LabelsView()]
        self.box = VBox([heading, row, *below])
        self.box.add_class("lk-bench")

    def draw(self, faces: Sequence[Face], pinned: tuple[dict[str, Any], list[Face]] | None) -> None:
        """Show what the views made, and what is pinned: in one plot where both are curves, else below all of it."""
        if len(self.panes) != len(faces):
            self.panes = [Pane() for _ in faces]
            self._pictures.children = [pane.box for pane in self.panes]
        from ipywidgets import HTML

        settings, ghosts = pinned or ({}, [])
        heading = f"Pinned ({self._bench.told(settings)})"
        for pane, face, ghost in zip_longest(self.panes, faces, ghosts[: len(faces)]):
            pane.put(face, ghost or None, heading)
        kept = [one for pane in self.panes for one in pane.kept]
        self.kept.children = [HTML(f'<p class="lk-title">{escape(heading)}</p>'), *kept] if kept else []
        self.kept.layout.display = "" if kept else "none"
        if self.code.value:
            self.code.value = _listing(self._bench.code)
        self.unpin.layout.display = "none" if pinned is None else ""

    def tell(self, words: str, details: str, busy: bool, old: bool) -> None:
        """How it goes. old: the pictures are of settings that are no longer so."""
        folded = f"<details><summary>Details</summary><pre>{escape(details)}</pre></details>" if details else ""
        self.status.value = f'<div role="status" aria-live="polite"><pre>{escape(words)}</pre></div>{folded}'
        for name, so in (("lk-busy", busy), ("lk-old", old)):
            (self.box.add_class if so else self.box.remove_class)(name)

    def _show_code(self, code: str) -> None:
        """Show the code, or take it away."""
        self.code.value = "" if self.code.value else _listing(code)


def _listing(code: str) -> str:
    return f'<pre aria-label="The same run as a cell" tabindex="0">{escape(code)}</pre>'


class Pane:
    """One view: a live plot where the face has one, else its picture, its table or its words.

    box: what it shows. kept: what it shows of the run that is pinned.
    """

    def __init__(self) -> None:
        from ipywidgets import HTML, VBox

        self.kept: list[Any] = []
        self.said, self.words, self.before = HTML(), HTML(), HTML()
        self.box = VBox([self.words])
        self._plot: Any = None

    def put(self, face: Face, ghost: Face | None, heading: str = "Pinned") -> None:
        """Show `face`, and keep what was pinned, to be compared with it. heading: stands before words that are."""
        self.kept = []
        if isinstance(face, str) and isinstance(ghost, str):  # words are compared where they stand
            self.words.value = f'{_html(face)}<p class="lk-pinned">{escape(heading)}: {inline(ghost)}</p>'
            self._show(None)
            return
        kept = _in_unit_of(face, ghost)
        axis = _shared_axis(face, kept)
        if ghost is not None:
            same = _is_curves(face) and _is_curves(ghost)  # then its lines are in the plot
            told = same or axis is not None
            self.before.value = f"<p>{escape(_sentence(ghost))}</p>" if told else _html(ghost)
            self.kept.append(self.before)
        if isinstance(face, Player):
            self.words.value = face.still.data_html()
            self._show(face.widget)
            return
        if not isinstance(face, Figure) or face.spec is None:
            self.words.value = _html(face)
            self._show(None)
            return
        data = list(face.spec["data"])
        if isinstance(ghost, Figure) and ghost.spec is not None and _is_curves(face) and _is_curves(ghost):
            data = _as_pinned(ghost.spec["data"], data) + data
        layout = face.spec["layout"]
        if axis is not None and kept is not None:
            layout = _on_axis(layout, axis)
            self.kept.append(live_plot(kept["data"], _on_axis(kept["layout"], axis)))
        if self._plot is not None and self._plot not in self.box.children:
            self._plot.close()  # while it was off the page it has missed what was sent to it
            self._plot = None
        if self._plot is None:
            self._plot = live_plot(data, layout)
        else:
            with self._plot.batch_update():
                if [trace.type for trace in self._plot.data] != [trace["type"] for trace in data]:
                    self._plot.data = []
                    self._plot.add_traces(data)
                else:
                    for old, new in zip(self._plot.data, data, strict=True):
                        old.update(new, overwrite=True)
                self._plot.update_layout(layout, overwrite=True)
        self.said.value, self.words.value = f"<p>{escape(face.sentence)}</p>", face.data_html()
        self._show(self._plot)

    def _show(self, plot: Any) -> None:
        words = self.words if self.words.value else None  # a view may have nothing to say
        children = [self.said, plot, words] if plot is self._plot is not None else [plot, words]
        children = [child for child in children if child is not None]
        if list(self.box.children) != children:
            self.box.children = children


def _as_pinned(kept: Sequence[dict[str, Any]], live: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines that are kept, as wide pale bands behind the live ones.

    A band has the colour of the live line of its name, and all such bands are one entry of the legend. Where there is
    no such line, the band has an entry of its own.
    """
    looks = {trace.get("name"): trace.get("line", {}).get("color") for trace in live}
    bands: list[dict[str, Any]] = []
    for trace in kept:
        name, line = trace.get("name", ""), trace.get("line", {}) | {"width": BAND}
        known = name in looks
        if known and looks[name]:
            line["color"] = looks[name]
        told = "pinned" if known else f"pinned: {name}"
        new = all(band["name"] != told for band in bands)
        drawn = {"mode": "lines"} if "lines" in trace.get("mode", "lines") and len(trace.get("x", "  ")) > 1 else {}
        bands.append(trace | GHOST | drawn | {"line": line, "name": told, "showlegend": new})
    return bands


def _time_axis(face: Face | None) -> tuple[str, list[float]] | None:
    """The title of a figure's horizontal axis and its two ends, where it has them."""
    axis = face.spec["layout"].get("xaxis", {}) if isinstance(face, Figure) and face.spec is not None else {}
    title, ends = axis.get("title", {}).get("text"), axis.get("range")
    return (title, ends) if title and ends is not None else None


def _in_unit_of(face: Face, ghost: Face | None) -> dict[str, Any] | None:
    """The spec of `ghost`, its times in the unit of `face`'s: what took 9 ms is compared with what takes 900 µs."""
    if not isinstance(ghost, Figure) or ghost.spec is None:
        return None
    mine, theirs = _time_axis(face), _time_axis(ghost)
    units = {f"time ({name})": unit for unit, name in SECONDS}
    if mine is None or theirs is None or mine[0] == theirs[0] or not {mine[0], theirs[0]} <= set(units):
        return ghost.spec
    factor = units[theirs[0]] / units[mine[0]]

    def scaled(times: Sequence[float | None]) -> list[float | None]:
        return [None if t is None else t * factor for t in times]

    xaxis = ghost.spec["layout"]["xaxis"] | {"title": {"text": mine[0]}, "range": scaled(theirs[1])}
    data = [trace | {key: scaled(trace[key]) for key in ("x", "base") if key in trace} for trace in ghost.spec["data"]]
    return ghost.spec | {"data": data, "layout": ghost.spec["layout"] | {"xaxis": xaxis}}


def _shared_axis(face: Face, kept: dict[str, Any] | None) -> list[float] | None:
    """From where to where a time axis goes that shows both; None where they have none, or one in other units."""
    mine, xaxis = _time_axis(face), {} if kept is None else kept["layout"].get("xaxis", {})
    theirs = xaxis.get("range")
    if mine is None or theirs is None or xaxis.get("title", {}).get("text") != mine[0]:
        return None
    return [min(mine[1][0], theirs[0]), max(mine[1][1], theirs[1])]


def _on_axis(layout: dict[str, Any], axis: list[float]) -> dict[str, Any]:
    return layout | {"xaxis": layout["xaxis"] | {"range": axis}}


def _is_curves(face: Face) -> bool:
    """Whether it is a chart of lines, which another can be laid over."""
    traces = face.spec["data"] if isinstance(face, Figure) and face.spec is not None else [{}]
    return all(trace.get("type") == "scatter" and trace.get("mode") != "text" for trace in traces)


def _html(face: Face) -> str:
    if isinstance(face, Player):  # at the step where the reader has left it
        return f'<div class="lk-scroll" tabindex="0" role="img" aria-label="{escape(face.text)}">{face.svg}</div>'
    if isinstance(face, Figure):
        words = escape(face.sentence)
        return f'<div class="lk-scroll" tabindex="0" role="img" aria-label="{words}">{face.svg}</div>{face.data_html()}'
    return face.html() if isinstance(face, Table) else f"<p>{inline(face)}</p>" if face else ""


def still(face: Face) -> str:
    """A view on a page that has many: a picture without the data below it and the words of its boxes, and of one that
    is very large only the sentence."""
    face = face.still if isinstance(face, Player) else face
    if not isinstance(face, Figure):
        return _html(face)
    name, end, rest = face.svg.partition("</title>")
    svg = name + end + re.sub("<title>[^<]*</title>", "", rest)
    return svg if len(svg) < LARGE else f"<p>{escape(face.title)} ({escape(face.badge)}): {escape(face.sentence)}</p>"


def _sentence(face: Face) -> str:
    face = face.still if isinstance(face, Player) else face
    return f"{face.title}: {face.sentence}" if isinstance(face, Figure) else ""
