"""The code that computes a line, to change and to run."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

from labkit.chapters.cA_errata import apart as one_line, pictures
from labkit.chapters.cA_errata.panel import Panel
from labkit.course import errata
from labkit.course.errata import Erratum, erratum, groups
from labkit.course.errors import CourseError

FIXED = {"hierarchical-both", "no-infinity", "one-of-678", "power-of-the-failed"}  # no input stands in their arithmetic


def changeable() -> list[tuple[str, str]]:
    """The lines whose arithmetic has an input to change, group by group: what each is called, and its id."""
    return [
        (f"{name}: {e.id.replace('-', ' ')}", e.id)
        for kind, name in groups().items()
        for e in errata().values()
        if e.kind == kind and e.id not in FIXED
    ]


class Computed(Panel):
    """Any line, with the code that computes it: to change and to run, without a cell."""

    def __init__(self, entry: Erratum) -> None:
        super().__init__()
        self.entry = entry

    def words(self) -> str:
        """What the line says, and why that cannot be."""
        e = self.entry
        return f"{e.source}, {e.place}. {e.what}\nIt says: {e.stated}."

    def ours(self) -> str:
        return f"{pictures.COMES[self.entry.comes]}: {pictures.told(self.entry)}"

    def __repr__(self) -> str:
        return f"{self.words()}\n\n{one_line.pasted(self.entry)}\n\n{self.ours()}"

    def run(self, code: str) -> str:
        """What a reader's version of the code comes to, and whether the source would be right, or what is wrong."""
        if not code.strip():
            return "The box is empty. Press Reset to have the arithmetic back."
        try:
            number = one_line.value(code)
        except TypeError as wrong:
            return f"The last line must be a number. (TypeError: {wrong})"
        except Exception as wrong:
            return f"{type(wrong).__name__}: {wrong}"
        e, right = self.entry, replace(self.entry.claim(), found=number).agrees
        verdict = f"With that the source {'would be right' if right else 'is not right'}: it says {e.stated}"
        needs = f", which needs {e.says} {e.unit}".replace(" {}", "").rstrip() if e.quote else ""
        return f"It comes to this: {pictures.told(e, number)}. {verdict}{needs}."

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, HBox, Layout, Textarea, VBox

        wide = Layout(width="100%", max_width="740px")
        chosen = Dropdown(options=changeable(), value=self.entry.id, description="line", layout=Layout(width="420px"))
        words, code, came = HTML(), Textarea(layout=wide, rows=6), HTML()
        button, reset = Button(description="Run"), Button(description="Reset")

        def show(id: str) -> None:
            self.entry = erratum(id)
            words.value = f"<p>{escape(self.words())}</p>"
            code.value, came.value = one_line.pasted(self.entry), f"<p>{escape(self.ours())}</p>"

        def run(_: object) -> None:
            came.value = f'<p role="status" aria-live="polite">{escape(self.run(code.value))}</p>'

        chosen.observe(lambda change: show(change["new"]), "value")
        button.on_click(run)
        reset.on_click(lambda _: show(self.entry.id))
        show(self.entry.id)
        return VBox([chosen, words, code, HBox([button, reset]), came])


def computed(id: object) -> Computed | pictures.Said:
    """A line with the code that computes it, or a sentence where there is none of that id."""
    try:
        return Computed(erratum(id))
    except CourseError as wrong:
        return pictures.Said(str(wrong))
