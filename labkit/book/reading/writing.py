"""You write it: a function of the reader's own is checked on real ranks, and used from there on where it is right.

    total = chapter.check("total")        # in the cell below the reader's

The room of the chapter registers its tasks here (`labkit/chapters/cNN_name/you_write.py`): the book's own version of
each function, and who judges the reader's. Where the reader's is not right, the chapter goes on with the book's.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from html import escape
from typing import Any, Protocol

from labkit.book.drawing.listing import source
from labkit.book.drawing.marks import inline
from labkit.book.reading.conclusions import whose
from labkit.course.errors import CourseError, did_you_mean


class Verdict(Protocol):
    """state: "right", "wrong", "error", or "unattempted" for a stub. sentence: what to tell. detail: a traceback."""

    @property
    def state(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def detail(self) -> str: ...


@dataclass(frozen=True)
class Task:
    """One thing to write. own: the book's version. judge: looks at the function of that name in a namespace."""

    own: Callable[..., Any]
    judge: Callable[[Mapping[str, Any]], Verdict]


class NotWritten(AssertionError):
    """What a cell of the chapter was to define is wrong, and nobody is there to repair it."""


_tasks: dict[str, dict[str, Task]] = {}
_right: list[object] = []  # readers' functions that a check has found right


def register(chapter: str, task: Task) -> None:
    """Chapter `chapter`, such as "03_collectives", asks for a function of the name of `task.own`."""
    _tasks.setdefault(chapter, {})[task.own.__name__] = task


def tasks(chapter: str) -> dict[str, Task]:
    """What the chapter asks its reader to write, by name. {} where it asks for nothing."""
    place = f"labkit.chapters.c{chapter}.you_write"
    try:
        importlib.import_module(place)
    except ModuleNotFoundError as missing:
        if missing.name not in (place, place.rpartition(".")[0]):
            raise
    return _tasks.get(chapter, {})


def find_task(chapter: str, name: str) -> Task:
    """Raises CourseError for a task that the chapter does not have."""
    found = tasks(chapter)
    if name not in found:
        known = ", ".join(found) or "nothing"
        raise CourseError(f"{chapter} asks nobody to write {name!r}{did_you_mean(name, found)}. It asks for: {known}")
    return found[name]


@dataclass(frozen=True)
class Answer:
    """What `chapter.check` shows."""

    task: Task
    verdict: Verdict
    notes: list[str]

    @property
    def right(self) -> bool:
        return self.verdict.state == "right"

    @property
    def tried(self) -> bool:
        return self.verdict.state != "unattempted"

    @property
    def head(self) -> str:
        sign = {"right": "✓ Right.", "wrong": "✗ Not right yet.", "error": "! It stopped."}
        return sign.get(self.verdict.state, "○ Not written yet.")

    @property
    def after(self) -> str:
        name = self.task.own.__name__
        if self.right:
            return f"From here on the chapter uses your {name}."
        return f"Until it is right, the chapter goes on with the book's {name}."

    def __repr__(self) -> str:
        said = [f"{self.head} {self.verdict.sentence}", *self.notes, self.verdict.detail, self.after]
        return "\n".join(part for part in said if part)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html()}

    def html(self) -> str:
        """The sentence in a frame; details, and after a try the book's version, to unfold."""
        frame = "border:1px solid currentColor;border-left-width:0.4em;padding:0.4em 0.8em;max-width:56em"
        said = f"<strong>{escape(self.head)}</strong> {inline(self.verdict.sentence)}"
        said += "".join(f"<br>{inline(note)}" for note in self.notes)
        if self.verdict.detail:
            lines = "margin:0;white-space:pre-wrap;overflow-wrap:anywhere"
            said += _folded("Details", f'<pre style="{lines}">{escape(self.verdict.detail)}</pre>')
        if self.tried:
            name = "The book's version, to compare with" if self.right else "Show a solution"
            said += _folded(name, source(self.task.own, docstring=False).html())
        return f'<div style="{frame}" role="status">{said}<br><small>{escape(self.after)}</small></div>'


def look_at(task: Task, names: Mapping[str, Any]) -> Answer:
    """Judge the function of that name in `names`."""
    name = task.own.__name__
    notes: list[str] = []
    if names.get(name) is task.own:
        return Answer(
            task,
            _Unwritten(
                f"This is the book's {name}: your cell above has not run, or it stopped with an error. "
                "Run it, then this one."
            ),
            notes,
        )
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and not shell.last_execution_succeeded:
        notes.append(
            f"The cell that ran before this one failed or was stopped. If it was yours, an older {name} is judged here."
        )
    if other := _almost(name, names.get("In", [])):
        notes.append(f"The cell before this one defines {other}, and not {name}: an older {name} is judged here.")
    if taken := _taken(names.get(name), name, names.get("In", [])):
        other = f"Your cell also sets {', '.join(taken)}, as another cell of this chapter does."
        notes.append(f"{other} Rename yours, and run that one again.")
    answer = Answer(task, task.judge(names), notes)
    if answer.right:
        _right.append(names[name])
    return answer


def checked(function: Callable[..., Any]) -> bool:
    """Whether it is the book's own, or a reader's that a check of this session has found right."""
    return whose(function) != "your" or any(function is one for one in _right)


@dataclass(frozen=True)
class _Unwritten:
    sentence: str
    state: str = "unattempted"
    detail: str = ""


def _almost(name: str, cells: list[str]) -> str:
    """The name that the cell before this one gives its function, where `name` was meant."""
    found = sets(cells[-2]) if len(cells) > 1 else set[str]()
    return "" if name in found else "".join(get_close_matches(name, found, 1, 0.8))


def _taken(fn: Any, name: str, cells: list[str]) -> list[str]:
    """Names besides `name` that the cell of `fn` sets and that other cells have set, too."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return []
    mine = sets("".join(linecache.getlines(code.co_filename)))
    others = set().union(*(sets(cell) for cell in cells if name not in sets(cell)))
    return sorted((mine - {name}) & others)


def sets(cell: str, imports: bool = False) -> set[str]:
    """The names that a cell binds at its top; those that it imports only where asked for."""
    try:
        statements = ast.parse(cell).body
    except SyntaxError:  # what IPython alone understands
        return set()
    found = set[str]()
    for one in statements:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(one.name)
        elif isinstance(one, ast.Import | ast.ImportFrom):  # what is imported twice is the same
            found |= {(a.asname or a.name).partition(".")[0] for a in one.names} if imports else set()
        else:
            found |= {n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


def _folded(name: str, inside: str) -> str:
    return f"<details><summary>{escape(name)}</summary>{inside}</details>"
