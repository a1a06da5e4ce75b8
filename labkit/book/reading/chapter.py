"""The door of a notebook to its chapter: predictions, quizzes, records, and the end.

    chapter = book.open_chapter("03_collectives", world_size=world_size, seed=seed)
    ring_bytes = chapter.predict("ring-bytes", nbytes=nbytes)   # shown as the last expression of its cell
    ring_bytes.require()                                        # first line of the cell that runs the thing
    ring_bytes.compare(sent[0] / 1e6)
    ring_sum = chapter.check("ring_sum")                        # the reader's own function, or the book's
    chapter.quiz()
    chapter.record(ring_ms=3.1)
    chapter.finish()

What is asked stands in the chapter's room, `labkit/chapters/cNN_name/`. No answer is in an output or a widget before
the reader asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from labkit.book.drawing.marks import Box
from labkit.book.frontend import live, namespace, show
from labkit.book.reading.ending import ending
from labkit.book.reading.predicting import Prediction
from labkit.book.reading.quizzes import Quiz
from labkit.book.reading.records import show_record
from labkit.book.reading.writing import NotWritten, find_task, look_at
from labkit.course.chapter_file import load_chapter
from labkit.course.progress import Progress


class ParameterError(ValueError):
    """A value of the `parameters` cell with which a chapter makes no sense. Shown as its sentence alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def allow(rules: Mapping[str, bool]) -> None:
    """Raises ParameterError with all sentences of `rules` that are false, such as "world_size is 2 to 8"."""
    if wrong := [said for said, holds in rules.items() if not holds]:
        raise ParameterError("; and ".join(wrong))


def open_chapter(name: str, **values: object) -> Chapter:
    """Chapter `name`, such as "03_collectives". All its questions know `values`; `seed` among them shuffles.

    With a reader there, progress is read and kept; without one, nothing is. Raises CourseError.
    """
    return Chapter(name, values)


class Chapter:
    """One chapter as its notebook sees it. Made by `open_chapter`."""

    def __init__(self, name: str, values: dict[str, Any], progress: Progress | None = None) -> None:
        self.name, self.values = name, dict(values)
        self.progress = progress or (Progress.of_reader() if live() else Progress(None))
        self._file = load_chapter(name)
        self._named: dict[str, None] = {}  # questions asked for by id
        self._prompts: dict[str, str] = {}  # of the questions that were shown
        self._tried: dict[str, Any] = {}  # the reader's functions as they were last judged
        self.progress.opened(name)

    def predict(self, id: str, **values: object) -> Prediction:
        """Prediction `id`, to show as the last expression of a cell. `values`: what its texts need besides."""
        return Prediction(self._file.forecast(id, self.values | values), self.name, self.progress)

    def quiz(self, *ids: str, **values: object) -> Quiz:
        """The questions with these ids; without ids, all those that no other cell has asked for by id."""
        known = self._file.questions
        chosen = list(ids) or [id for id in known if id not in self._named]
        seed = self.values.get("seed", 0)
        questions = [self._file.question(id, self.values | values, seed) for id in chosen]
        self._named |= dict.fromkeys(ids)
        self._prompts |= {question.id: question.prompt for question in questions}
        return Quiz(questions, self.name, self.progress)

    def check(self, name: str) -> Callable[..., Any]:
        """Judge the reader's function `name` on real ranks, and say what the evidence says.

        Returns it where it is right, and else the book's own. Without a reader a stub is passed over, and a wrong one
        raises NotWritten. Raises CourseError for what the chapter does not ask for.
        """
        task, names = find_task(self.name, name), namespace()
        if names.get(name) is task.own and name in self._tried:  # the cell is run again: judge what it judged before
            names = {**names, name: self._tried[name]}
        answer = look_at(task, names)
        if answer.tried:
            self._tried[name] = names[name]
            self.progress.wrote(self.name, name, answer.right)
        show(answer)
        if answer.tried and not answer.right and not live():
            raise NotWritten(repr(answer))
        own: Callable[..., Any] = names[name] if answer.right else task.own
        return own

    def tried(self, name: str) -> Callable[..., Any]:
        """The reader's own function `name`, right or wrong, as `check` judged it last; the book's if there is none."""
        return self._tried.get(name, find_task(self.name, name).own)

    def record(self, **numbers: object) -> None:
        """Named results of this run, for `labkit sweep` to collect: numbers, texts, True or False, None."""
        show_record(self.name, numbers)

    def finish(self) -> Box:
        """Mark the chapter as read, and say what to read next."""
        self.progress.read(self.name)
        done = self.progress.chapters().get(self.name, {}) if live() else None
        return ending(self._file, done, self._prompts)

    def __repr__(self) -> str:
        p, q = len(self._file.predictions), len(self._file.questions)
        return f"chapter {self.name}: {p} predictions, {q} questions"
