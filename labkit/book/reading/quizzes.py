"""A quiz in a notebook: questions as a form, marked here, where the keys are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.book.forms import Form, to_html
from labkit.course.errors import CourseError, did_you_mean
from labkit.course.progress import Progress
from labkit.course.questions import Feedback, Question

KINDS = {"choice": "choice", "several": "several", "numeric": "number", "order": "order", "text": "text"}
BUTTONS = [{"id": "submit", "label": "Check"}, {"id": "reveal", "label": "Show the answer"}]


class Quiz:
    """What `chapter.quiz` returns. Shows a form; headless, the questions in words."""

    def __init__(self, questions: Sequence[Question], chapter: str, progress: Progress) -> None:
        self._questions = {question.id: question for question in questions}
        self._chapter, self._progress = chapter, progress
        self._said: dict[str, tuple[str, str]] = {}  # id: (state, Markdown) of what was answered in this display
        self._values = {q.id: self._earlier(q) for q in questions}
        self._form: Form | None = None

    @property
    def ids(self) -> list[str]:
        """The questions' ids, in order."""
        return list(self._questions)

    @property
    def answered(self) -> bool:
        """Whether each question has had an answer, right or wrong, or was shown its own."""
        known = [self._progress.question(self._chapter, id) for id in self._questions]
        return all(one.get("tries") or one.get("revealed") for one in known)

    @property
    def chosen(self) -> str:
        """The texts of the choices that the reader has made last, or nothing."""
        given = [self._progress.question(self._chapter, id).get("value") for id in self._questions]
        return "; ".join(text for value in given if isinstance(value, list) for text in value)

    @property
    def text(self) -> str:
        """The questions in words, and nothing else."""
        return "\n\n".join(f"{n}. ({q.id}) {q!r}" for n, q in enumerate(self._questions.values(), start=1))

    def answer(self, id: str, value: Any) -> Feedback:
        """Mark an answer: letters as in `.text` for choices and orders, a number or a text as typed."""
        question = self._question(id)
        feedback = question.mark(value)
        if feedback.counted:
            self._progress.answered(self._chapter, id, question.stored(value), feedback.right)
            self._values[id] = question.restored(question.stored(value))
        state = "right" if feedback.right else "wrong" if feedback.counted else "open"
        self._said[id] = (state, feedback._repr_markdown_() if not feedback.right else feedback.explanation)
        self._refresh(id)
        return feedback

    def reveal(self, id: str) -> Feedback:
        """The answer and its explanation, for a reader who asked for it; the question then counts as shown."""
        question = self._question(id)
        self._progress.revealed(self._chapter, id)
        told = f"The answer:\n\n{question.key()}" if question.key() else "The answer:"
        self._said[id] = ("done", f"{told}\n\n{question.explanation}")
        self._refresh(id)
        return Feedback(False, told, question.explanation)

    @property
    def form(self) -> Form:
        """The form, made when first shown."""
        if self._form is None:
            items = [self._item(id) for id in self._questions]
            self._form = Form({"title": "Check yourself", "items": items, "buttons": BUTTONS}, self._submitted)
        return self._form

    def _question(self, id: str) -> Question:
        if id not in self._questions:
            raise CourseError(f"no question {id!r} here{did_you_mean(id, self.ids)}: {', '.join(self.ids)}")
        return self._questions[id]

    def _earlier(self, question: Question) -> Any:
        """What was answered when the cell ran before, marked anew.

        What was right, and is wrong with the numbers of other parameters, is forgotten: the question is another one.
        """
        known = self._progress.question(self._chapter, question.id)
        if known.get("revealed"):
            return None
        value = question.restored(known.get("value"))
        if value is not None:
            feedback = question.mark(value)
            if known.get("right") and not feedback.right:
                return None
            if feedback.counted:
                self._said[question.id] = ("right" if feedback.right else "wrong", feedback.explanation or feedback.why)
        return value

    def _item(self, id: str) -> dict[str, Any]:
        """The form's item, as things stand."""
        question = self._questions[id]
        shown = question.shown()
        for name in ("choices", "items"):
            if name in shown:
                shown[name] = [to_html(text, inline=True) for text in shown[name]]
        state, said = self._said.get(id, ("open", ""))
        return {
            "id": id, "kind": KINDS[question.kind], "html": to_html(question.prompt), **shown,
            "value": self._values[id], "state": state, "feedback": said and to_html(said),
        }  # fmt: skip

    def _submitted(self, id: str, action: str, value: Any) -> dict[str, Any]:
        """A button of the form was pressed."""
        if action == "reveal":
            self.reveal(id)
            return self._item(id)
        feedback = self.answer(id, value)
        return self._item(id) if feedback.counted else self._item(id) | {"value": value}

    def _refresh(self, id: str) -> None:
        if self._form is not None:
            self._form.update(self._item(id))

    def __repr__(self) -> str:
        return self.form.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self.form._repr_mimebundle_(include, exclude)
