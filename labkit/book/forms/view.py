"""The models that browsers see. Imported only when something is shown to a reader: anywidget is not needed before."""

from __future__ import annotations

from importlib.resources import files

import anywidget
import traitlets


def read(name: str) -> str:
    """A file that lies beside this one."""
    return (files(__package__) / name).read_text(encoding="utf-8")


class FormView(anywidget.AnyWidget):
    """The controls of a `Form`. The page sends {"id", "action", "value"} and follows what `items` says."""

    _esm = read("form.js")
    _css = read("controls.css")
    title = traitlets.Unicode().tag(sync=True)
    buttons: traitlets.List = traitlets.List().tag(sync=True)
    items: traitlets.List = traitlets.List().tag(sync=True)
