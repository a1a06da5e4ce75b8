"""An explorer: sliders for the assumptions of a model, and what the model says: words and a table, or a picture.

With a reader in front of it: native ranges of a `Form`, reachable from the keyboard. Without one: the assumptions as
they stand, and the same words and numbers. `set` moves the sliders from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.style import checked_badge
from labkit.book.drawing.tables import Row, Table
from labkit.book.forms import Form

SEEN = "seen"


@dataclass(frozen=True)
class Slider:
    """One assumption. low, high, step: what it may be. start: what it is at first. unit: behind the number.

    only: the values between low and high that it may have; it moves on to the nearest of them.
    """

    label: str
    low: float
    high: float
    start: float
    step: float = 1
    unit: str = ""
    only: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (self.low < self.high and self.step > 0):
            raise ValueError(f"slider {self.label!r} needs low < high and a step above 0")
        self.check(self.start)

    def check(self, value: float) -> None:
        """Raise ValueError for a value that the slider cannot have."""
        steps = (value - self.low) / self.step
        if self.only and value not in self.only:
            raise ValueError(f"{self.label}: one of {', '.join(f'{one:g}' for one in self.only)}, not {value!r}")
        if not (self.low <= value <= self.high) or abs(steps - round(steps)) > 1e-6:
            raise ValueError(f"{self.label}: {self.low:g} to {self.high:g} in steps of {self.step:g}, not {value!r}")

    def nearest(self, value: float) -> float:
        """The value that the slider may have where it was moved to `value`."""
        if self.only:
            return min(self.only, key=lambda one: abs(one - value))
        return min(self.high, max(self.low, self.low + round((value - self.low) / self.step) * self.step))

    def whole(self, value: float) -> float | int:
        """A whole number as one."""
        return int(value) if value == int(value) else value


Answer = Callable[..., "tuple[str, Iterable[Row]] | Figure"]


class Explorer:
    """What `explorer` returns. `.table()`: the answer as data. `.settings`: where the sliders are."""

    def __init__(self, title: str, sliders: Mapping[str, Slider], answer: Answer, badge: str) -> None:
        if not sliders or SEEN in sliders:
            raise ValueError(f"an explorer needs a slider or more, and none may be called {SEEN!r}")
        checked_badge(badge)
        self.title, self.sliders, self.badge = title, dict(sliders), badge
        self._answer = answer
        self.settings = {name: slider.whole(slider.start) for name, slider in self.sliders.items()}
        self._form: Form | None = None
        self._update()

    def set(self, **values: float) -> Explorer:
        """Move sliders, by name. Raises ValueError for one that is not there, or a value that it cannot have."""
        for name, value in values.items():
            if name not in self.sliders:
                raise ValueError(f"there is no slider {name!r}: they are {', '.join(self.sliders)}")
            self.sliders[name].check(value)
        self.settings |= {name: self.sliders[name].whole(value) for name, value in values.items()}
        self._update()
        if self._form is not None:
            for name, value in self.settings.items():
                self._form.update({"id": name, "value": value})
            self._form.update({"id": SEEN, "feedback": self._html()})
        return self

    def table(self) -> Table:
        """What the model says of these settings."""
        return Table(self._rows, caption=f"{self.title} ({self.badge})")

    @property
    def form(self) -> Form:
        """The sliders and the answer, made when first shown."""
        if self._form is None:
            items: list[dict[str, Any]] = [
                {"id": name, "kind": "slider", "min": s.low, "max": s.high, "step": s.step, "label": s.label,
                 "unit": s.unit, "value": self.settings[name]}
                for name, s in self.sliders.items()
            ]  # fmt: skip
            items.append({"id": SEEN, "kind": "button", "buttons": [], "feedback": self._html()})
            self._form = Form({"title": self.title, "items": items, "buttons": []}, self._moved)
        return self._form

    @property
    def text(self) -> str:
        """Settings, the answer in words, and its numbers."""
        where = [f"  {s.label}: {self.settings[n]:g} {s.unit}".rstrip() for n, s in self.sliders.items()]
        return "\n".join([f"{self.title} ({self.badge})", *where, self._said, "", self.table().text()])

    def _moved(self, id: str, action: str, value: Any) -> dict[str, Any] | None:
        self.set(**{id: self.sliders[id].nearest(float(value))})
        return None

    def _update(self) -> None:
        answer = self._answer(**self.settings)
        self._figure = answer if isinstance(answer, Figure) else None
        said, rows = (answer.sentence, answer.rows) if isinstance(answer, Figure) else answer
        self._said, self._rows = said, list(rows)

    def _html(self) -> str:
        if self._figure is None:
            return f"<p>{escape(self._said)}</p>{self.table().html()}"
        return f"<p>{escape(self._said)} ({self.badge})</p>{self._figure.image()}"

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self.form._repr_mimebundle_(include, exclude) | {"text/plain": self.text}


def explorer(title: str, sliders: Mapping[str, Slider], answer: Answer, badge: str = "simulated") -> Explorer:
    """Sliders, and below them what `answer` says of where they are.

    answer(name=value, ...) -> (a sentence, rows of a table), or a Figure; it is called at each move, so it should take
    less than a second.
    """
    return Explorer(title, sliders, answer, badge)
