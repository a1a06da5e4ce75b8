"""What is touched in appendix A: a sentence that real ranks try, the suspects of the case, a line taken apart."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from labkit import book
from labkit.book.explorers import Explorer
from labkit.book.frontend import VIEW
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.cA_errata import apart as one_line, pictures, suspects
from labkit.course import errata
from labkit.course.errata import Erratum, erratum
from labkit.course.errors import CourseError


def three_ways(run: Callable[..., Any]) -> Workbench:
    """How the ranks share a gradient and their new weights, and how many they are."""
    ways = ["plain data parallelism", "ZeRO-1, as the table has it", "ZeRO-1, as the text has it"]
    return book.workbench(
        run, {"way": ways, "ranks": (2, 8)}, [pictures.sent], title="What does a step of ZeRO-1 send?", ranks=4
    )


def slow_sync() -> Explorer:
    """The size of the message, the speed of the uplinks, and how NVLink is counted."""
    sliders = {
        "gigabytes": book.Slider("message", 1, 8, 3, 0.05, "GB"),
        "uplinks": book.Slider("uplinks run at", 20, 100, 100, 1, "%"),
        "nvlink": book.Slider("NVLink counted in", 1, 2, 2, 1, "directions"),
    }
    return book.explorer("What explains the time that was seen?", sliders, suspects.explained)


class Apart:
    """A list of lines, a box for the reader's number, and ours step by step. Without a reader all of it, as words."""

    def __init__(self, entry: Erratum) -> None:
        self.entry = entry
        self._box: Any = None

    def __repr__(self) -> str:
        steps = [f"  {step}" for step in one_line.steps(self.entry)]
        told = [one_line.asked(self.entry), "", *steps, "", one_line.pasted(self.entry), ""]
        return "\n".join([*told, f"{pictures.COMES[self.entry.comes]}: {pictures.found(self.entry)}"])

    def choose(self, id: str) -> None:
        """Another line."""
        self.entry = erratum(id)
        if self._box is not None:
            self._question.value, self._typed.value, self._answer.value = self._asked(), "", ""

    def compare(self, typed: str) -> str:
        """What is said of the reader's number, and the steps, as HTML."""
        steps = "".join(
            f"<li><code>{escape(step.written)}</code> = <b>{escape(step.comes_to)}</b>"
            + f"<br><small>{escape(step.what)}</small>" * bool(step.what)
            + "</li>"
            for step in one_line.steps(self.entry)
        )
        ours = f"{escape(pictures.COMES[self.entry.comes])}: <b>{escape(pictures.found(self.entry))}</b>"
        folded = f"<details><summary>As a cell</summary><pre>{escape(one_line.pasted(self.entry))}</pre></details>"
        said = escape(one_line.judged(self.entry, typed))
        return f'<div role="status" aria-live="polite"><p>{said}</p></div><ol>{steps}</ol><p>{ours}</p>{folded}'

    def _asked(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in one_line.asked(self.entry).split("\n"))

    @property
    def box(self) -> Any:
        """The widget, made when first shown."""
        if self._box is None:
            from ipywidgets import HTML, Button, Dropdown, HBox, Text, VBox

            lines = [(f"{e.source}  {e.id}", e.id) for e in errata().values()]
            style = {"description_width": "initial"}
            chosen = Dropdown(options=lines, value=self.entry.id, description="line", style=style)
            self._question, self._answer = HTML(self._asked()), HTML()
            self._typed = Text(description="your number", continuous_update=False, style=style)
            button = Button(description="Compare", tooltip="Show our number, step by step")
            chosen.observe(lambda change: self.choose(change["new"]), "value")

            def compare(_: object = None) -> None:
                self._answer.value = self.compare(self._typed.value)

            button.on_click(compare)
            self._typed.observe(lambda change: compare() if change["new"] else None, "value")  # Enter
            self._box = VBox([chosen, self._question, HBox([self._typed, button]), self._answer])
        return self._box

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        told: dict[str, Any] = {"text/plain": repr(self)}
        return told | {VIEW: self.box._repr_mimebundle_()[VIEW]} if book.live() else told


def apart(id: object) -> Apart | pictures.Said:
    """One line to take apart, or a sentence where there is none of that id."""
    try:
        return Apart(erratum(id))
    except CourseError as wrong:
        return pictures.Said(str(wrong))
