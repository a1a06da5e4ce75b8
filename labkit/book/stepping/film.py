"""A process that is no collective, picture by picture: played, paused and stepped like a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.tables import Row
from labkit.book.stepping.recording import Frame
from labkit.book.stepping.stepper import Stepper


class Film(Stepper):
    """Pictures with words. draw: the SVG of a picture, by its number, drawn when it is looked at. words: one sentence
    for each picture. sentence, rows: all of it in words and in numbers. still: which picture a page without a reader
    shows; begin: which one is seen first."""

    def __init__(
        self, title: str, badge: str, draw: Callable[[int], str], words: Sequence[str], sentence: str,
        rows: list[Row], *, still: int = -1, begin: int = 0,
    ) -> None:  # fmt: skip
        self.title, self.badge, self.words, self.rows = title, badge, list(words), rows
        self.frames = tuple(Frame(float(k), (), ()) for k in range(len(self.words)))
        self._draw, self._sentence, self._still = draw, sentence, range(len(self.words))[still]
        self._step, self._view = begin, None

    @property
    def text(self) -> str:
        return self.words[self._step]

    @property
    def svg(self) -> str:
        return self._draw(self._step)

    @property
    def still(self) -> Figure:
        return Figure(self.title, self.badge, self._sentence, self.rows, svg=self._draw(self._still))

    @property
    def widget(self) -> Any:
        if self._view is None:
            from labkit.book.forms.view import StepperView

            self._view = StepperView(title=self.title, last=len(self.frames) - 1, step=self._step, svg=self.svg)
            self._view.observe(self._moved, names="step")
        return self._view
