"""What is touched in appendix A: a sentence for real ranks, lines for a pencil and to sort, the sliders of the case."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from labkit import book
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.cA_errata import apart as one_line, pictures, suspects
from labkit.chapters.cA_errata.agreeing import by_its_digits
from labkit.chapters.cA_errata.computing import FIXED as FIXED, changeable as changeable, computed as computed
from labkit.chapters.cA_errata.judging import Agrees, judge as judge
from labkit.chapters.cA_errata.panel import Panel
from labkit.chapters.cA_errata.sorting import FINDS as FINDS, found_by as found_by, lines as lines
from labkit.course import errata
from labkit.course.errata import Erratum, erratum, groups
from labkit.course.errors import did_you_mean


def three_ways(run: Callable[..., Any]) -> Workbench:
    """How the ranks share a gradient and their new weights, and how many they are."""
    ways = ["plain data parallelism", "ZeRO-1, as the table has it", "ZeRO-1, as the text has it"]
    return book.workbench(
        run, {"way": ways, "ranks": (2, 8)}, [pictures.sent], title="What does a step of ZeRO-1 send?", ranks=4
    )


class Case(Panel):
    """The size of the message, the speed of the uplinks, and the recipe: which facts are explained?"""

    recipes = tuple(suspects.RECIPES)

    def __init__(self, two_level: suspects.TwoLevel) -> None:
        super().__init__()
        self.two_level = two_level
        self.set(3, 100)

    def set(self, gigabytes: float, uplinks: float, recipe: str = recipes[0]) -> Case:
        """Other settings."""
        self.story = suspects.story(self.two_level, gigabytes, uplinks, recipe)
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

        look = {"style": {"description_width": "130px"}, "layout": Layout(width="480px", max_width="100%")}
        size = FloatSlider(3, min=1, max=8, step=0.05, description="message (GB)", **look)
        speed = FloatSlider(
            100, min=20, max=100, step=1, description="uplinks run at (%)", readout_format=".0f", **look
        )
        recipe = RadioButtons(options=self.recipes, description="recipe", **look)
        shown = HTML(self._html())

        def moved(_: object) -> None:
            self.set(size.value, speed.value, recipe.value)
            shown.value = self._html()

        for control in (size, speed, recipe):
            control.observe(moved, "value")
        return VBox([size, speed, recipe, shown])


def slow_sync(two_level: suspects.TwoLevel) -> Case:
    """What explains the time that was seen, and the counter? By the function that the reader wrote."""
    return Case(two_level)


class Apart(Panel):
    """Questions for a pencil, a box for the reader's number, and then ours. Without a reader all of it, as words.

    A first wrong number gets a hint, a second one the steps. agrees: the rule by which a number is right.
    """

    def __init__(self, entries: list[Erratum], agrees: Agrees) -> None:
        super().__init__()
        self.entries, self.entry, self.agrees = entries, entries[0], agrees
        self._wrong, self._verdict = dict.fromkeys((e.id for e in entries), 0), ""

    def __repr__(self) -> str:
        return "\n\n".join(
            "\n".join([one_line.asked(e), *(f"  {s}" for s in one_line.worked(e))]) for e in self.entries
        )

    def choose(self, id: str) -> None:
        """Another line."""
        self.entry, self._verdict = erratum(id), ""
        if self._box is not None:
            self._question.value, self._answer.value = self._asked(), ""

    def compare(self, typed: str) -> str:
        """What is said of the reader's number, as HTML; with the arithmetic where it is right, or wrong again."""
        right, said = one_line.judged(self.entry, typed, self.agrees)
        self._verdict = f'<p role="status" aria-live="polite">{"✓" if right else "✗"} {escape(said)}</p>'
        if one_line.typed_number(self.entry, typed) is None:
            return self._verdict
        self._wrong[self.entry.id] += not right
        return self._verdict + (self.worked() if right or self._wrong[self.entry.id] > 1 else "")

    def worked(self) -> str:
        """The arithmetic, and why the sentence cannot be, as HTML."""
        way, why = one_line.worked(self.entry)
        return f"<p><code>{escape(way)}</code></p><p>{escape(why)}</p>"

    def _asked(self) -> str:
        said, ask = one_line.asked(self.entry).split("\n")
        return f"<p>{escape(said)}</p><p><b>{escape(ask)}</b></p>"

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, HBox, Layout, Text, VBox

        wide, style = Layout(width="480px", max_width="100%"), {"description_width": "initial"}
        names = [(one_line.pencils()[e.id].label, e.id) for e in self.entries]
        chosen = Dropdown(options=names, value=self.entry.id, description="question", style=style, layout=wide)
        self._question, self._answer = HTML(self._asked()), HTML()
        self._typed = Text(description="your number", continuous_update=False, style=style)
        button, give_up = Button(description="Compare"), Button(description="Show the steps")
        chosen.observe(lambda change: self.choose(change["new"]), "value")

        def compare(_: object = None) -> None:
            self._answer.value = self.compare(self._typed.value)
            if "✓" in self._answer.value:
                self._typed.value = ""  # here and not with the next question, when a number may be under way

        button.on_click(compare)
        give_up.on_click(lambda _: setattr(self._answer, "value", self._verdict + self.worked()))
        row = HBox([self._typed, button, give_up], layout=Layout(flex_flow="row wrap"))
        return VBox([*[chosen] * (len(self.entries) > 1), self._question, row, self._answer])


def apart(kind: object, agrees: Agrees = by_its_digits) -> Apart | pictures.Said:
    """The lines of a group that need a pencil and nothing else, or a sentence where there is no such group."""
    name = str(kind).strip().lower()
    if name not in groups():
        return pictures.Said(f"There is no group {kind!r}{did_you_mean(name, groups())}.")
    return Apart([errata()[id] for id in one_line.pencils() if errata()[id].kind == name], agrees)


def factors() -> book.Figure:
    """How far off the lines with a question are, where both numbers are of the same thing."""
    return pictures.factors({id: (one.label, one.against) for id, one in one_line.pencils().items()})
