"""A prediction in a notebook: the form, the stop until it is answered, and the comparison with the run."""

from __future__ import annotations

import hashlib
from html import escape
from typing import Any

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.sketches import sketch_figure
from labkit.book.drawing.style import checked_badge
from labkit.book.drawing.tables import Table
from labkit.book.forms import Form, to_html
from labkit.book.frontend import await_run_all, live
from labkit.course.predicting import NOT_PREDICTED, Forecast, Sketch
from labkit.course.progress import Progress

BUTTONS = [{"id": "submit", "label": "Predict"}, {"id": "skip", "label": "Skip"}]


class PredictFirst(Exception):
    """A cell was run whose outcome the reader has not predicted yet. Shown as a few lines, without a traceback."""

    def __init__(self, id: str) -> None:
        super().__init__(
            "This cell waits for your prediction.\nAnswer the question above, or press Skip.\n"
            "Then go on here: menu Run, Run Selected Cell and All Below."
        )
        self.id = id

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows in place of a traceback: in short lines, as it breaks long ones inside words."""
        return ["Predict first.", str(self)]


class Prediction:
    """What `chapter.predict` returns. Shows its form; headless, the question in words, marked "not predicted"."""

    def __init__(self, forecast: Forecast, chapter: str, progress: Progress) -> None:
        self._forecast, self._chapter, self._progress = forecast, chapter, progress
        self.id = forecast.id
        self._given = self._earlier()
        self._form: Form | None = None
        self._compared = False  # what came out has been shown: it can be predicted no more

    @property
    def declared(self) -> tuple[Any, ...]:
        """The book's own answer: numbers in the units of the boxes, the position of a choice, a level a column."""
        return self._forecast.declared

    @property
    def predicted(self) -> bool:
        """Whether the reader has answered."""
        return self._given is not None

    @property
    def skipped(self) -> bool:
        """Whether the reader chose not to predict."""
        known = self._progress.prediction(self._chapter, self.id)
        return not self.predicted and (known.get("state") == "skipped" or known.get("skipped") == self._about)

    @property
    def values(self) -> tuple[Any, ...]:
        """What the reader answered; the declared answer where nobody did."""
        return self.declared if self._given is None else self._given

    def answer(self, *values: object) -> None:
        """Answer from Python, as the form does. Raises ValueError with what to type instead."""
        self._given = self._forecast.read(*values)
        self._progress.predicted(self._chapter, self.id, list(self._given), self._about)
        self._refresh()

    def skip(self) -> None:
        """Go on without a prediction. One that was made already stays."""
        self._progress.skipped(self._chapter, self.id, self._about)
        self._refresh()

    def require(self) -> None:
        """With a reader there, raise PredictFirst until the prediction is answered or skipped."""
        if live() and not self.predicted and not self.skipped:
            if self._form is not None:
                self._form.call(self.id)
            await_run_all()
            raise PredictFirst(self.id)

    def compare(self, *results: Any, mark: str = "measured") -> Table | Figure:
        """The prediction beside what the run gave; a sketch as a figure. mark: how the results came about.

        results: one number a box, in its unit; for a choice or a sketch, the answer as `answer` takes it, or nothing
        where the declared answer is the run's.
        """
        self._compared = self.predicted or self.skipped
        self._refresh()
        run = f"{'outcome' if mark == 'simulated' else 'the run'} ({checked_badge(mark)})"
        found = [_plain(r) for r in results]
        rows = self._forecast.compare(self._given, found, run)
        if isinstance(self._forecast, Sketch):
            return sketch_figure(self._forecast, self._given, rows, run, mark)
        return Table(rows, caption=self._forecast.why(self._given, found))

    @property
    def form(self) -> Form:
        """The form, made when first shown."""
        if self._form is None:
            spec = {"title": "Predict", "items": [self._item()], "buttons": BUTTONS}
            self._form = Form(spec, self._submitted)
        return self._form

    def _earlier(self) -> tuple[Any, ...] | None:
        """What was answered when the cell ran before, if it still fits the question."""
        known = self._progress.prediction(self._chapter, self.id)
        values = known.get("values") if known.get("about", "") in ("", self._about) else None
        try:
            return self._forecast.read(*values) if isinstance(values, list) and values else None
        except ValueError:
            return None

    @property
    def _about(self) -> str:
        """A digest of the question: with other numbers, or other columns to sketch, it is another one."""
        columns = self._forecast.shown().get("x", [])
        return hashlib.sha256("\n".join([self._forecast.prompt, *columns]).encode()).hexdigest()[:12]

    def _item(self) -> dict[str, Any]:
        """The form's item, as things stand."""
        shown = self._forecast.shown()
        if "choices" in shown:
            shown["choices"] = [to_html(choice, inline=True) for choice in shown["choices"]]
        state, said = "open", ""
        if self.predicted or self.skipped:
            state = "done"
            said = "Your prediction is kept. Go on to the next cell." if self.predicted else f"{NOT_PREDICTED}. Go on."
            said = f"{said.partition('.')[0]}, and the run has answered the question." if self._compared else said
        elif not live():
            said = f"[{NOT_PREDICTED}]"
        return {
            "id": self.id, "kind": self._forecast.kind, "html": to_html(self._forecast.prompt), **shown,
            "value": self._form_value(), "state": state, "locked": self._compared,
            "feedback": said and f"<p>{escape(said)}</p>",
            "state_text": "Predicted" if self.predicted else "Skipped" if self.skipped else "",
        }  # fmt: skip

    def _form_value(self) -> Any:
        if self._given is None:
            return None
        if self._forecast.kind == "choice":
            return self._given[0]
        if self._forecast.kind == "number":
            return [f"{value:g}" for value in self._given]
        return list(self._given)

    def _submitted(self, id: str, action: str, value: Any) -> dict[str, Any]:
        """A button of the form was pressed."""
        if action == "skip":
            self.skip()
            return self._item()
        try:
            self.answer(value)
        except ValueError as error:
            return {"state": "open", "feedback": f"<p>{escape(str(error))}</p>", "value": value}
        return self._item()

    def _refresh(self) -> None:
        if self._form is not None:
            self._form.update(self._item())

    def __repr__(self) -> str:
        return self.form.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self.form._repr_mimebundle_(include, exclude)


def _plain(result: Any) -> Any:
    """A scalar of torch or numpy as Python's own number."""
    return result.item() if hasattr(result, "item") and getattr(result, "ndim", 1) == 0 else result
