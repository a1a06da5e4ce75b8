"""The models that browsers see. Imported only when something is shown to a reader: anywidget is not needed before."""

from __future__ import annotations

from importlib.resources import files

import anywidget
import traitlets


def read(name: str) -> str:
    """A file that lies beside this one."""
    return (files(__package__) / name).read_text(encoding="utf-8")


class FormView(anywidget.AnyWidget):
    """The controls of a `Form`. The page sends {"id", "action", "value"} and follows what `items` says.

    called: the id of an item that is to come into view; the page clears it when that is done.
    """

    _esm = read("make.js") + read("form.js")
    _css = read("controls.css")
    title = traitlets.Unicode().tag(sync=True)
    buttons: traitlets.List = traitlets.List().tag(sync=True)
    items: traitlets.List = traitlets.List().tag(sync=True)
    called = traitlets.Unicode().tag(sync=True)


class StepperView(anywidget.AnyWidget):
    """Which step is shown, as a picture and in words. The page moves `step`; Python answers with `svg` and `words`."""

    _esm = read("make.js") + read("stepper.js")
    _css = read("controls.css")
    title = traitlets.Unicode().tag(sync=True)
    label = traitlets.Unicode("Step").tag(sync=True)
    last = traitlets.Int().tag(sync=True)
    step = traitlets.Int().tag(sync=True)
    svg = traitlets.Unicode().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)


class DashboardView(anywidget.AnyWidget):
    """The state of a job. The page sends {"action": "stop" | "kill" | "hang" | "slow", "rank"}."""

    _esm = read("make.js") + read("dashboard.js")
    _css = read("controls.css")
    headline = traitlets.Unicode().tag(sync=True)
    rows: traitlets.List = traitlets.List().tag(sync=True)
    events: traitlets.List = traitlets.List().tag(sync=True)
    over = traitlets.Bool().tag(sync=True)
    controls = traitlets.Bool().tag(sync=True)
    slower = traitlets.Float().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)


class ReplicasView(anywidget.AnyWidget):
    """A fault-tolerant run. The page sends {"action": "stop" | "kill" | "hang" | "slow" | "flip", "rank"}.

    svg, words, members: the run so far as a picture, in a sentence, and as who trained which steps. ranks: their names.
    """

    _esm = read("make.js") + read("replicas.js")
    _css = read("controls.css")
    headline = traitlets.Unicode().tag(sync=True)
    svg = traitlets.Unicode().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)
    members: traitlets.List = traitlets.List().tag(sync=True)
    ranks: traitlets.List = traitlets.List().tag(sync=True)
    rows: traitlets.List = traitlets.List().tag(sync=True)
    events: traitlets.List = traitlets.List().tag(sync=True)
    over = traitlets.Bool().tag(sync=True)
    controls = traitlets.Bool().tag(sync=True)
    slower = traitlets.Float().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)


class LabelsView(anywidget.AnyWidget):
    """Nothing to see: what ipywidgets leave out around it (names of handles, Shift-Enter), and the style of a panel."""

    _esm = read("make.js") + read("labels.js")
    _css = read("controls.css")


class PlotlyModule(anywidget.AnyWidget):
    """Nothing to see: plotly's module, which all plots of a page share."""

    _esm = read("plotly_module.js")
    source = traitlets.Unicode().tag(sync=True)
