"""What is touched in appendix A: a sentence that real ranks try, lines for a pencil, the sliders of the case."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from labkit import book
from labkit.book.frontend import VIEW
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.cA_errata import apart as one_line, pictures, suspects
from labkit.course import errata
from labkit.course.errata import Erratum, erratum, groups
from labkit.course.errors import CourseError, did_you_mean


def three_ways(run: Callable[..., Any]) -> Workbench:
    """How the ranks share a gradient and their new weights, and how many they are."""
    ways = ["plain data parallelism", "ZeRO-1, as the table has it", "ZeRO-1, as the text has it"]
    return book.workbench(
        run, {"way": ways, "ranks": (2, 8)}, [pictures.sent], title="What does a step of ZeRO-1 send?", ranks=4
    )


class Panel:
    """A widget, made when first shown; without a reader, its words."""

    def __init__(self) -> None:
        self._box: Any = None

    def _made(self) -> Any:
        raise NotImplementedError

    @property
    def box(self) -> Any:
        if self._box is None:
            self._box = self._made()
        return self._box

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        told: dict[str, Any] = {"text/plain": repr(self)}
        return told | {VIEW: self.box._repr_mimebundle_()[VIEW]} if book.live() else told


class Case(Panel):
    """The size of the message, the speed of the uplinks, and how NVLink is counted: which facts are explained?"""

    ways = ("both directions (300 GB/s)", "one direction (150 GB/s)")

    def __init__(self) -> None:
        super().__init__()
        self.story = suspects.story(3, 100, False)

    def set(self, gigabytes: float, uplinks: float, one_direction: bool = False) -> Case:
        """Other settings."""
        self.story = suspects.story(gigabytes, uplinks, one_direction)
        return self

    def __repr__(self) -> str:
        facts = [
            f"  {'fits' if fits else 'does not fit':12}  {what}: {n}" for what, (fits, n) in self.story.facts.items()
        ]
        return "\n".join([pictures.times(self.story).text, *facts])

    def _html(self) -> str:
        rows = "".join(
            f"<li>{'✓ fits' if fits else '✗ does not fit'}: {escape(what)} ({escape(n)})</li>"
            for what, (fits, n) in self.story.facts.items()
        )
        return f'{pictures.times(self.story).svg}<ul role="status" aria-live="polite">{rows}</ul>'

    def _made(self) -> Any:
        from ipywidgets import HTML, FloatSlider, Layout, RadioButtons, VBox

        look = {"style": {"description_width": "130px"}, "layout": Layout(width="480px")}
        size = FloatSlider(3, min=1, max=8, step=0.05, description="message (GB)", **look)
        speed = FloatSlider(
            100, min=20, max=100, step=1, description="uplinks run at (%)", readout_format=".0f", **look
        )
        nvlink = RadioButtons(options=self.ways, description="NVLink counted in", **look)
        shown = HTML(self._html())

        def moved(_: object) -> None:
            self.set(size.value, speed.value, nvlink.value == self.ways[1])
            shown.value = self._html()

        for control in (size, speed, nvlink):
            control.observe(moved, "value")
        return VBox([size, speed, nvlink, shown])


def slow_sync() -> Case:
    """What explains the time that was seen, and the counter?"""
    return Case()


class Apart(Panel):
    """Questions for a pencil, a box for the reader's number, and then ours. Without a reader all of it, as words."""

    def __init__(self, entries: list[Erratum]) -> None:
        super().__init__()
        self.entries, self.entry = entries, entries[0]

    def __repr__(self) -> str:
        return "\n\n".join(
            "\n".join([one_line.asked(e), *(f"  {s}" for s in one_line.worked(e))]) for e in self.entries
        )

    def choose(self, id: str) -> None:
        """Another line."""
        self.entry = erratum(id)
        if self._box is not None:
            self._question.value, self._typed.value, self._answer.value = self._asked(), "", ""

    def compare(self, typed: str) -> str:
        """What is said of the reader's number, as HTML; the arithmetic too, once there is a number."""
        said = f'<p role="status" aria-live="polite">{escape(one_line.judged(self.entry, typed))}</p>'
        return said + self.worked() if one_line.number(self.entry, typed) is not None else said

    def worked(self) -> str:
        """The arithmetic, and why the sentence cannot be, as HTML."""
        way, but = one_line.worked(self.entry)
        return f"<p><code>{escape(way)}</code></p><p>{escape(but)}</p>"

    def _asked(self) -> str:
        said, ask = one_line.asked(self.entry).split("\n")
        return f"<p>{escape(said)}</p><p><b>{escape(ask)}</b></p>"

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, HBox, Layout, Text, VBox

        wide, style = Layout(width="480px"), {"description_width": "initial"}
        names = [(one_line.pencils()[e.id].label, e.id) for e in self.entries]
        chosen = Dropdown(options=names, value=self.entry.id, description="question", style=style, layout=wide)
        self._question, self._answer = HTML(self._asked()), HTML()
        self._typed = Text(description="your number", continuous_update=False, style=style)
        button, give_up = Button(description="Compare"), Button(description="Show the steps")
        chosen.observe(lambda change: self.choose(change["new"]), "value")

        def compare(_: object = None) -> None:
            self._answer.value = self.compare(self._typed.value)

        button.on_click(compare)
        give_up.on_click(lambda _: setattr(self._answer, "value", self.worked()))
        self._typed.observe(lambda change: compare() if change["new"] else None, "value")  # Enter
        row = HBox([self._typed, button, give_up])
        return VBox([*[chosen] * (len(self.entries) > 1), self._question, row, self._answer])


def apart(kind: object) -> Apart | pictures.Said:
    """The lines of a group that need a pencil and nothing else, or a sentence where there is no such group."""
    name = str(kind).strip().lower()
    if name not in groups():
        return pictures.Said(f"There is no group {kind!r}{did_you_mean(name, groups())}.")
    return Apart([errata()[id] for id in one_line.pencils() if errata()[id].kind == name])


def factors() -> book.Figure:
    """How far off the lines with a question are."""
    return pictures.factors({id: one.label for id, one in one_line.pencils().items()})


def computed(id: object) -> pictures.Said:
    """A line with the cell that computes it, or a sentence where there is none of that id."""
    try:
        entry = erratum(id)
    except CourseError as wrong:
        return pictures.Said(str(wrong))
    ours = f"{pictures.COMES[entry.comes]}: {pictures.found(entry)}"
    said = f"{entry.source}, {entry.place}. {entry.what}\nIt says: {entry.stated}."
    return pictures.Said(f"{said}\n\n{one_line.pasted(entry)}\n\n{ours}")
