"""Pictures one after the other: a range and three buttons, all native; nothing moves before Play is pressed.

    frames = [(svg of a moment, what it shows in words), ...]
    book.play(frames, title="A bucket fills", badge="emulated", rows=rows)

Without a reader (nbval, papermill, a script) it is one of the pictures, and words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.book.drawing.figure import Figure, show_with_table
from labkit.book.drawing.tables import Row
from labkit.book.frontend import VIEW, live


class Player:
    """What `play` returns. `step` is the number of the picture shown; set it, or call `next()` and `previous()`."""

    def __init__(self, frames: Sequence[Any], title: str, begin: int = 0, label: str = "Step") -> None:
        if not frames:
            raise ValueError("there is nothing to play: give it a picture or more")
        self.frames, self.title, self.begin, self.label = tuple(frames), title, begin, label
        self._step = begin
        self.placed = False  # whether it has been opened at a step of its own
        self._view: Any = None

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        if not 0 <= step < len(self.frames):
            raise ValueError(f"step={step}: this replay has steps 0 to {len(self.frames) - 1}")
        self._step = step
        if self._view is not None:
            self._view.step = step  # which shows it

    def open_at(self, step: int) -> None:
        """Begin at `step`, wherever the reader had moved the picture of the run before."""
        self.begin = self.step = step
        self.placed = True

    def next(self) -> None:
        """One step on; stays at the last."""
        self.step = min(self._step + 1, len(self.frames) - 1)

    def previous(self) -> None:
        """One step back; stays at the first."""
        self.step = max(self._step - 1, 0)

    @property
    def text(self) -> str:
        """The step shown, as a sentence."""
        raise NotImplementedError

    @property
    def svg(self) -> str:
        """The step shown, as a picture."""
        raise NotImplementedError

    @property
    def still(self) -> Figure:
        """Its form on a page that cannot be played."""
        raise NotImplementedError

    @property
    def widget(self) -> Any:
        """The interactive form (an anywidget), made when first asked for."""
        if self._view is None:
            from labkit.book.forms.view import StepperView

            last = len(self.frames) - 1
            self._view = StepperView(title=self.title, label=self.label, last=last, step=self._step, svg=self.svg)
            self._view.observe(self._moved, names="step")
        return self._view

    def _moved(self, change: Any) -> None:
        """The page, or `step`, moved the view."""
        self._step = min(max(change["new"], 0), len(self.frames) - 1)
        self._show()

    def _show(self) -> None:
        with self._view.hold_sync():
            self._view.svg, self._view.words = self.svg, self.text

    def __repr__(self) -> str:
        return self.still.text

    def _ipython_display_(self) -> None:
        """In a notebook: the pictures, and below them the data as a table."""
        show_with_table(*self._repr_mimebundle_(), self.still)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle, alt = self.still._repr_mimebundle_()
        if live():
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return bundle, alt


class _Drawn(Player):
    """Pictures that are drawn already, each with its words."""

    def __init__(self, frames: Sequence[tuple[str, str]], still: Figure, begin: int, label: str) -> None:
        super().__init__(frames, still.title, begin, label)
        self._still = still

    @property
    def text(self) -> str:
        return str(self.frames[self.step][1])

    @property
    def svg(self) -> str:
        return str(self.frames[self.step][0])

    @property
    def still(self) -> Figure:
        return self._still


def play(
    frames: Sequence[tuple[str, str]], *, title: str, badge: str, rows: Sequence[Row] = (), sentence: str = "",
    still: int = -1, begin: int = 0, label: str = "Step",
) -> Player:  # fmt: skip
    """Pictures to step through or to play: (svg, words) for each moment, all of one size.

    rows: the data behind them. still: the picture that stands for all where nothing can be played, described by
    `sentence`, or by its own words. begin: the one that a reader sees first. label: what is
    counted beside the slider. Raises ValueError if there is none.
    """
    svg, words = frames[still] if frames else ("", "")
    return _Drawn(frames, Figure(title, badge, sentence or words, list(rows), svg), begin, label)
