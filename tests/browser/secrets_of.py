"""What a page must not know before the reader asks: explanations, reasons, patterns, and keys of questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from browser.reader import content_of
from labkit.course.chapter_file import ChapterFile
from labkit.course.questions import Numeric, Question

SHORTEST = 18  # letters of a text that cannot be there by chance
TOLD = {"id", "kind", "html", "boxes", "choices", "items", "x", "y", "x_label", "y_label", "value", "state",
        "state_text", "feedback", "locked"}  # fmt: skip


def plain_run(text: str) -> str:
    """The longest part of `text` that Markdown, HTML, JSON and filled-in numbers leave as it is; "" if it is short."""
    longest = max(re.split(r"[^A-Za-z ,.:;()-]+|\.\s*$", text), key=len).strip()
    return longest if len(longest) >= SHORTEST else ""


def spoilers(file: ChapterFile, but: Iterable[str] = ()) -> dict[str, str]:
    """Plain parts of all explanations, reasons, hints and patterns of a chapter, with where they stand.

    but: ids of questions that were answered already. What the questions themselves say is no spoiler.
    """
    asked = " ".join(json.dumps(e, ensure_ascii=False) for e in map(visible, all_entries(file)))
    found = {}
    for id, entry in file.questions.items():
        texts = [entry["explanation"], *(c.get(k, "") for c in entry.get("choices", []) for k in ("why", "missed"))]
        texts += [slip["why"] for slip in entry.get("slips", [])] + list(entry.get("accept", []))
        texts.append(entry.get("otherwise", ""))
        for text in texts if id not in but else ():
            if (run := plain_run(text)) and run not in asked:
                found[run] = f"{file.name}, {id}"
    return found


def all_entries(file: ChapterFile) -> Iterator[Mapping[str, Any]]:
    yield from file.questions.values()
    yield from file.predictions.values()


def visible(entry: Mapping[str, Any]) -> list[Any]:
    """What a question shows, as it stands in the file."""
    choices = [c["text"] if isinstance(c, dict) else c for c in entry.get("choices", [])]
    boxes = [{name: box.get(name) for name in ("label", "unit")} for box in entry.get("boxes", [])]
    return [entry["prompt"], choices, entry.get("items", []), boxes]


def items_in(received: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Every item of a form that was sent to the page."""
    for message in received:
        if b'"items"' in message:
            state = content_of(message).get("data", {}).get("state", {})
            yield from (item for item in state.get("items", []) if isinstance(item, dict))


def told_too_early(item: dict[str, Any], question: Question | None) -> str:
    """What is wrong with an item that nobody has answered yet; "" if it tells nothing."""
    if extra := set(item) - TOLD:
        return f"{item['id']} tells {', '.join(sorted(extra))}"
    if item["state"] == "open" and item["value"] is not None:
        return f"{item['id']} comes with the value {item['value']!r}"
    if any(not isinstance(choice, str) for choice in item.get("choices", [])):
        return f"{item['id']} says more of a choice than its text: {item['choices']}"
    if any(set(box) > {"label", "unit"} for box in item.get("boxes") or []):
        return f"{item['id']} says more of a box than label and unit: {item['boxes']}"
    if isinstance(question, Numeric) and (number := shown_number(question)):
        if number in json.dumps([item, item.get("feedback")]) and number not in question.prompt:
            return f"{item['id']} holds its answer, {number}"
    return ""


def shown_number(question: Numeric) -> str:
    """The key of a numeric question as it would be printed; "" if it is too short to be told from other numbers."""
    number = f"{question.answer:.4g}"
    return number if len(number.replace(".", "")) >= 3 and "e" not in number else ""
