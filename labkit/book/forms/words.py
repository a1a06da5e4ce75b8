"""A form without its controls: in plain words, and as HTML for a page that nobody can answer."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from labkit.book.forms.items import Item, labels, value_text
from labkit.book.forms.markdown import to_words

STATE_WORDS = {"open": "", "right": "Right", "wrong": "Not right", "done": "Answered"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HOW = {"choice": "Choose one:", "several": "Choose all that apply:", "order": "Bring into order:"}


def options(item: Item) -> list[str]:
    """What there is to choose from, to order, to fill in or to draw: one line each."""
    kind = item["kind"]
    if kind in ("choice", "several", "order"):
        return [f"({LETTERS[i % 26]}) {text}" for i, text in enumerate(labels(item))]
    if kind == "number":
        return [f"{box.get('label', '')}: ... {box.get('unit', '')}".strip() for box in item.get("boxes") or ()]
    if kind == "sketch":
        x, y = item.get("x_label", "x"), item.get("y_label", "y")
        columns, levels = ", ".join(map(str, item["x"])), ", ".join(map(str, item["y"]))
        return [f"{x}: {columns}", f"{y}, one level for each: {levels}"]
    if kind == "slider":
        return [f"{item.get('label', 'value')}: from {item['min']} to {item['max']} {item.get('unit', '')}".rstrip()]
    return []


def status(item: Item) -> str:
    """State and feedback in words: what is announced after a submission."""
    state = str(item.get("state_text") or STATE_WORDS[item["state"]])
    feedback = to_words(item["feedback"])
    return f"{state}. {feedback}" if state and feedback else state or feedback


def text(title: str, items: Sequence[Item]) -> str:
    """The whole form in words."""
    blocks = [title] if title else []
    for item in items:
        lines = [to_words(item["html"])] if item["html"] else []
        if item["kind"] in HOW:
            lines.append(HOW[item["kind"]])
        lines += [f"  {line}" for line in options(item)]
        given = value_text(item)
        if given and item["kind"] != "slider":
            lines.append(f"Answered: {given}")
        if said := status(item):
            lines.append(said)
        blocks.append("\n".join(lines))
    return "\n\n".join(block for block in blocks if block)


def static_html(title: str, items: Sequence[Item]) -> str:
    """The form as a page shows it that has no kernel: the same things as `text`."""
    parts = [f"<p><strong>{escape(title)}</strong></p>"] if title else []
    for item in items:
        html = item["html"]
        parts.append(html if html.startswith("<p") or not html else f"<p>{html}</p>")
        if lines := options(item):
            how = f"<p>{HOW[item['kind']]}</p>" if item["kind"] in HOW else ""
            parts.append(how + "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>")
        given = value_text(item)
        if given and item["kind"] != "slider":
            parts.append(f"<p>Answered: {escape(given)}</p>")
        state = str(item.get("state_text") or STATE_WORDS[item["state"]])
        parts.append(f"<p><strong>{escape(state)}</strong></p>" if state else "")
        parts.append(f"<div>{item['feedback']}</div>" if item["feedback"] else "")
    return f'<div class="lk-form-static">{"".join(parts)}</div>'
