"""The rules of a chapter file. A broken one is refused with the file, the entry and the rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from labkit.course.errors import CourseError, did_you_mean
from labkit.course.wording import checked, pieces

MOST_PREDICTIONS = 3
Entry = Mapping[str, Any]
Shape = Mapping[str, type | tuple[type, ...]]

# What an entry of each kind must have beside id and kind, and what it may have.
_QUIZ: Shape = {"prompt": str, "explanation": str, "objective": str, "source": str}
QUIZ_KINDS: dict[str, tuple[Shape, Shape]] = {
    "choice": ({"choices": list}, {"keep_order": bool}),
    "several": ({"choices": list}, {"keep_order": bool}),
    "numeric": ({"answer": str}, {"unit": str, "tolerance": (int, float), "slips": list, "otherwise": str}),
    "order": ({"items": list}, {"slips": list}),
    "text": ({"accept": list}, {"answer": str, "slips": list, "otherwise": str}),
}
_PREDICTION: Shape = {"prompt": str}
PREDICTION_KINDS: dict[str, tuple[Shape, Shape]] = {
    "number": ({"boxes": list}, {}),
    "choice": ({"choices": list, "answer": str}, {"otherwise": str}),
    "sketch": ({"x": str, "y": str, "answer": str}, {"x_label": str, "y_label": str}),
}
# What the tables inside an entry must have, and what they may have.
PARTS: dict[str, tuple[Shape, Shape]] = {
    "boxes": (
        {"label": str, "answer": str},
        {"unit": str, "slips": list, "otherwise": str, "most": str, "whole": bool},
    ),
    "choices": ({"text": str}, {"right": bool, "why": str, "missed": str}),
    "numeric slips": ({"value": str, "why": str}, {}),
    "order slips": ({"before": str, "after": str, "why": str}, {}),
    "text slips": ({"match": str, "why": str}, {}),
}
_EXPRESSIONS = {"x", "y", "value"}  # and every `answer` but that of a text question
_PLAIN = {"with", "id", "kind", "objective", "source", "unit", "accept", "match"}
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def check_chapter(data: Mapping[str, Any], file: str) -> None:
    """Raises CourseError, naming `file`, the id and the rule, unless `data` is a chapter file in order."""
    _keys(data, {}, {"prediction": list, "quiz": list}, f"{file}")
    seen: set[str] = set()
    for table, kinds, shared in (("prediction", PREDICTION_KINDS, _PREDICTION), ("quiz", QUIZ_KINDS, _QUIZ)):
        for nth, entry in enumerate(data.get(table, []), start=1):
            where = f"{file}, [[{table}]] number {nth}"
            if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
                raise CourseError(f'{where}: has no id = "..."')
            if not _SLUG.fullmatch(entry["id"]):
                raise CourseError(f"{where}: id {entry['id']!r} must be lower-case words joined by '-'")
            if entry["id"] in seen:
                raise CourseError(f"{where}: id {entry['id']!r} stands in the file twice")
            seen.add(entry["id"])
            _check_entry(entry, kinds, shared, f"{file}, {entry['id']}")
    if len(data.get("prediction", [])) > MOST_PREDICTIONS:
        fourth = data["prediction"][MOST_PREDICTIONS]["id"]
        raise CourseError(f"{file}, {fourth}: a chapter has at most {MOST_PREDICTIONS} predictions")


def _check_entry(entry: Entry, kinds: Mapping[str, tuple[Shape, Shape]], shared: Shape, where: str) -> None:
    kind = str(entry.get("kind"))
    if kind not in kinds:
        raise CourseError(f"{where}: kind {kind!r} does not exist{did_you_mean(kind, kinds)}: {', '.join(kinds)}")
    must, may = kinds[kind]
    _keys(entry, {"id": str, "kind": str, **shared, **must}, {"with": dict, **may}, where)
    for name, expression in entry.get("with", {}).items():
        if not name.isidentifier() or not isinstance(expression, str):
            raise CourseError(f'{where}: with has {name} = {expression!r}; it gives names to expressions, n = "12"')
        checked(expression, f"{where}, with {name}")
    for name in ("boxes", "choices", "slips"):
        listed = f"{kind} slips" if name == "slips" else name
        for part in entry.get(name, []):
            if isinstance(part, Mapping) and shared is _QUIZ or name == "boxes":
                _keys(part, *PARTS[listed], f"{where}, {name}")
    _check_texts(entry, where, kind)
    check = {"choice": _check_choices, "several": _check_choices, "numeric": _check_numeric, "order": _check_order,
             "text": _check_text, "number": _check_boxes, "sketch": lambda entry, where: None}[kind]  # fmt: skip
    check(entry, where)


def _keys(entry: Any, must: Shape, may: Shape, where: str) -> None:
    """All of `must`, nothing beyond `must` and `may`, each of its type, none empty."""
    if not isinstance(entry, Mapping):
        raise CourseError(f"{where}: {entry!r} must be a table with {', '.join(must)}")
    for name in must:
        if name not in entry:
            raise CourseError(f"{where}: {name} is missing")
    known = {**must, **may}
    for name, value in entry.items():
        if name not in known:
            raise CourseError(f"{where}: {name!r} means nothing here{did_you_mean(name, known)}: {', '.join(known)}")
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            raise CourseError(f"{where}: {name} = {value!r} is of the wrong type")
        if value in ("", []) or (isinstance(value, str) and not value.strip()):
            if name != "unit":
                raise CourseError(f"{where}: {name} is empty")


def _check_texts(entry: Any, where: str, kind: str, name: str = "") -> None:
    """Every place in every text, and every expression, can be read."""
    if isinstance(entry, Mapping):
        for key, value in entry.items():
            if key != "with":
                _check_texts(value, where, kind, key)
    elif isinstance(entry, list):
        for value in entry:
            _check_texts(value, where, kind, name)
    elif isinstance(entry, str) and name not in _PLAIN:
        if name in _EXPRESSIONS or (name == "answer" and kind != "text"):
            checked(entry.strip(), f"{where}, {name}")
        else:
            list(pieces(entry, f"{where}, {name}"))


def _check_choices(entry: Entry, where: str) -> None:
    choices = entry["choices"]
    if len(choices) < 2:
        raise CourseError(f"{where}: needs at least two choices")
    if "answer" in entry:  # a prediction
        if not all(isinstance(c, str) and c.strip() for c in choices):
            raise CourseError(f"{where}: the choices of a prediction are plain texts")
        texts = choices
    else:
        for choice in choices:
            if not isinstance(choice, Mapping):
                raise CourseError(f"{where}: {choice!r} must be a table: {{ text = ..., right = true or why = ... }}")
            if bool(choice.get("right")) == ("why" in choice):
                rule = "is right, and needs no why" if choice.get("right") else "is wrong, and has no why"
                raise CourseError(f"{where}: choice {choice['text']!r} {rule}")
            if "missed" in choice and not choice.get("right"):
                raise CourseError(f"{where}: choice {choice['text']!r} is wrong: nobody can miss it")
        right = sum(bool(c.get("right")) for c in choices)
        if right == 0 or (right > 1 and entry["kind"] == "choice"):
            raise CourseError(
                f"{where}: {right} choices are right; kind {entry['kind']!r} needs "
                f"{'exactly' if entry['kind'] == 'choice' else 'at least'} one"
            )
        texts = [c["text"] for c in choices]
    if len(set(texts)) < len(texts):
        raise CourseError(f"{where}: two choices are the same")


def _check_numeric(entry: Entry, where: str) -> None:
    if not 0 <= entry.get("tolerance", 0) < 1:
        raise CourseError(f"{where}: tolerance {entry['tolerance']} is a part of the answer, from 0 to below 1")


def _check_order(entry: Entry, where: str) -> None:
    items = entry["items"]
    if len(items) < 2 or len(set(map(str, items))) < len(items) or not all(isinstance(i, str) for i in items):
        raise CourseError(f"{where}: needs at least two items, all different, all texts")
    for slip in entry.get("slips", []):
        for end in ("before", "after"):
            if slip[end] not in items:
                raise CourseError(f"{where}: slip {end} = {slip[end]!r} is none of the items")
        if items.index(slip["before"]) <= items.index(slip["after"]):
            raise CourseError(f"{where}: {slip['before']!r} does come before {slip['after']!r}: that is no slip")


def _check_text(entry: Entry, where: str) -> None:
    for pattern in [*entry["accept"], *(slip["match"] for slip in entry.get("slips", []))]:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise CourseError(f"{where}: {pattern!r} is no pattern: {error}") from None


def _check_boxes(entry: Entry, where: str) -> None:
    labels = [box["label"] for box in entry["boxes"]]
    for slip in (slip for box in entry["boxes"] for slip in box.get("slips", [])):
        _keys(slip, *PARTS["numeric slips"], f"{where}, slips")
    if len(set(labels)) < len(labels):
        raise CourseError(f"{where}: two boxes have the same label")
