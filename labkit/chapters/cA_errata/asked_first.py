"""A choice before a panel: the reader commits to an answer, and then the panel shows what is so."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from labkit import book
from labkit.book.explorers import Explorer
from labkit.book.forms import to_html
from labkit.book.frontend import Panel
from labkit.book.workbenches.bench import Workbench
from labkit.course.progress import Progress

ROOM = "A_errata"


class First(Panel):
    """A question with buttons; below it the panel, once the reader has chosen, and a fold with what is found there.

    The first choice counts, and is kept with the reader's progress under `id`. Without a reader: the question, and the
    panel as it begins. found: Markdown. right: the choice that is so, and so: a sentence for those who chose another.
    """

    def __init__(
        self, id: str, ask: str, choices: Mapping[str, str], shown: Explorer | Workbench, found: str = "",
        right: str = "", so: str = "",
    ) -> None:  # fmt: skip
        super().__init__()
        self.id, self.ask, self.choices, self.shown, self.found = id, ask, dict(choices), shown, found
        self.right, self.so = right, so
        self._progress = Progress.of_reader() if book.live() else Progress(None)
        known = self._progress.choice(ROOM, id).get("value")
        self.chosen: str | None = known if known in self.choices else None

    def __repr__(self) -> str:
        told = f"{self.ask} {' / '.join(self.choices.values())}\n\n{self.shown.text}"
        return f"{told}\n\nWhat you will have found: {self.found}" if self.found else told

    @property
    def verdict(self) -> str:
        """What is said of the reader's choice, in one sentence or two, where the panel knows which one is right."""
        if not self.right or self.chosen is None:
            return ""
        said = self.choices[self.chosen]
        return f"✓ {said}: that is right." if self.chosen == self.right else f"✗ Your answer was: {said}. {self.so}"

    @property
    def fold(self) -> str:
        """What is found, as HTML that a reader opens."""
        opened = f"<details><summary>What you will have found</summary>{to_html(self.found)}</details>"
        return opened if self.found else ""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if book.live():
            return super()._repr_mimebundle_()
        bundle = self.shown._repr_mimebundle_() | {"text/plain": repr(self)}
        if "text/html" in bundle:
            asked = f"<p><b>{escape(self.ask)}</b> {escape(' / '.join(self.choices.values()))}</p>"
            bundle["text/html"] = f"{asked}{bundle['text/html']}{self.fold}"
        return bundle

    def _made(self) -> Any:
        from ipywidgets import HTML, ToggleButtons, VBox

        choice = ToggleButtons(options=[(name, id) for id, name in self.choices.items()], value=None)
        choice.style.button_width = "auto"
        box = VBox([HTML(f"<b>{escape(self.ask)}</b>"), choice])

        def show() -> None:
            choice.disabled = True  # the first one counts
            panel = self.shown.form.widget if isinstance(self.shown, Explorer) else self.shown.panel.box
            told = [HTML(f'<p role="status">{escape(self.verdict)}</p>')] if self.verdict else []
            box.children = (*box.children, *told, panel, *([HTML(self.fold)] if self.found else []))

        def chose(change: dict[str, Any]) -> None:
            if self.chosen is None:
                self.chosen = change["new"]
                self._progress.chose(ROOM, self.id, change["new"])
                show()

        if self.chosen is not None:
            choice.value = self.chosen
            show()
        choice.observe(chose, "value")
        return box
