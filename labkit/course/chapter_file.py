"""Loads the predictions and the questions of a chapter from its room, `labkit/chapters/cNN_name/questions.toml`.

The file lies in the package and not beside the notebook, so that nobody reads the answers by accident.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course.errors import CourseError, did_you_mean
from labkit.course.file import ROOMS, read_toml
from labkit.course.predicting import Forecast, forecast
from labkit.course.questions import Question, ask
from labkit.course.rules import check_chapter
from labkit.course.wording import Words


@dataclass(frozen=True)
class ChapterFile:
    """Entries by id, in the order of the file, checked but not filled in. to_write: how many functions it asks for."""

    name: str
    predictions: Mapping[str, Mapping[str, Any]]
    questions: Mapping[str, Mapping[str, Any]]
    to_write: int = 0

    def forecast(self, id: str, values: Mapping[str, Any]) -> Forecast:
        """Prediction `id` with its numbers filled in. Raises CourseError: unknown id, missing value."""
        entry = self._entry(self.predictions, id, "prediction")
        return forecast(entry, self._words(entry, values))

    def question(self, id: str, values: Mapping[str, Any], seed: object = 0) -> Question:
        """Question `id` with its numbers filled in, shuffled by `seed`. Raises CourseError."""
        entry = self._entry(self.questions, id, "question")
        return ask(entry, self._words(entry, values), f"{self.name} {id} {seed}")

    def _words(self, entry: Mapping[str, Any], values: Mapping[str, Any]) -> Words:
        return Words(values, f"{self.name}, {entry['id']}").using(entry.get("with", {}))

    def _entry(self, entries: Mapping[str, Mapping[str, Any]], id: str, noun: str) -> Mapping[str, Any]:
        if id not in entries:
            known = ", ".join(entries) or "none"
            raise CourseError(f"{self.name} has no {noun} {id!r}{did_you_mean(id, entries)}. It has: {known}")
        return entries[id]


def load_chapter(name: str) -> ChapterFile:
    """The data file of chapter `name`, such as "03_collectives". Raises CourseError."""
    path = ROOMS / f"c{name}" / "questions.toml"
    if not path.is_file():
        known = sorted(room.parent.name[1:] for room in ROOMS.glob("c*/questions.toml"))
        raise CourseError(f"there is no chapter {name!r}{did_you_mean(name, known)}. There is: {', '.join(known)}")
    return read_chapter(path)


def read_chapter(path: Path) -> ChapterFile:
    """The questions in the room of a chapter. Raises CourseError that names room, entry and rule."""
    data, name = read_toml(path), path.parent.name.removeprefix("c")
    check_chapter(data, name)
    predictions, questions = ({e["id"]: e for e in data.get(table, [])} for table in ("prediction", "quiz"))
    tasks = path.with_name("you_write.py")
    written = re.findall(r"^@you_write\(", tasks.read_text(encoding="utf-8"), re.M) if tasks.is_file() else []
    return ChapterFile(name, predictions, questions, len(written))
