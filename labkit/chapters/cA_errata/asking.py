"""A line as a panel: a question, a field for the reader's number, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from labkit.chapters.cA_errata import apart as one_line
from labkit.course.errata import Erratum


class Question:
    """One line with a pencil's question. A wrong number gets a hint; a right one, or the button, gets the steps.

    agrees: the rule by which a number is right. ended: called with the id of the line once the steps are shown.
    """

    def __init__(
        self, entry: Erratum, agrees: Callable[[str, float], bool], ended: Callable[[str], None] = lambda id: None
    ) -> None:
        self.entry, self.agrees, self.ended = entry, agrees, ended
        self.over = False

    def compare(self, typed: str) -> str:
        """What is said of the reader's number, as HTML; with the arithmetic where it is right."""
        right, said = one_line.judged(self.entry, typed, self.agrees)
        verdict = f'<p role="status" aria-live="polite">{"✓" if right else "✗"} {escape(said)}</p>'
        if one_line.typed_number(self.entry, typed) is None:
            return verdict
        self.over = right
        return verdict + (self.worked() if right else "")

    def worked(self) -> str:
        """The arithmetic, and why the sentence cannot be, as HTML."""
        way, why = one_line.worked(self.entry)
        return f"<p><code>{escape(way)}</code></p><p>{escape(why)}</p>"

    def asked(self) -> str:
        """What the source says, and the question, as HTML."""
        said, ask = one_line.asked(self.entry).split("\n")
        return f"<p>{escape(said)}</p><p><b>{escape(ask)}</b></p>"

    def box(self) -> Any:
        """The widgets. A number is judged when it arrives, since a press of the button can arrive before it.

        A number arrives with Enter, or when the reader leaves the field. A press with the number that was judged last
        changes nothing, so neither Enter and a press nor two presses cost a hint.
        """
        from ipywidgets import HTML, Button, HBox, Layout, Text, VBox

        answer = HTML()
        field = Text(description="your number", continuous_update=False, style={"description_width": "initial"})
        compare, steps = Button(description="Compare"), Button(description="Show the steps")
        judged: list[str] = []  # the number that was judged last, once there is one

        def end() -> None:
            """Where the steps are shown, nothing can be typed any more that they would contradict."""
            field.disabled = compare.disabled = steps.disabled = self.over
            if self.over:
                self.ended(self.entry.id)

        def show() -> None:
            self.over, answer.value = True, self.worked()
            end()

        def judge(typed: str) -> None:
            if not self.over and judged != [typed]:
                judged[:] = [typed]
                answer.value = self.compare(typed)
                end()

        field.observe(lambda change: judge(change["new"]), "value")
        field.on_msg(lambda _, sent, __: judge(field.value) if sent.get("event") == "submit" else None)  # Enter
        compare.on_click(lambda _: judge(field.value))
        steps.on_click(lambda _: show())
        row = HBox([field, compare, steps], layout=Layout(flex_flow="row wrap"))
        return VBox([HTML(self.asked()), row, answer])
