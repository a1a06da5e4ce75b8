"""From the Markdown of a question file to safe HTML, and from such HTML to plain words."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

from labkit.book.forms.mathtext import math_html

RAISED = str.maketrans("0123456789+−-()nij", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁽⁾ⁿⁱʲ")
LOWERED = str.maketrans("0123456789+−-()ijnkp", "₀₁₂₃₄₅₆₇₈₉₊₋₋₍₎ᵢⱼₙₖₚ")
BLOCKS = frozenset(("p", "div", "pre", "ul", "ol", "table", "blockquote", "h1", "h2", "h3", "h4"))


def to_html(text: str, inline: bool = False) -> str:
    """Markdown `text` as HTML: tags written in it are shown as text, $math$ becomes HTML of its own.

    inline: without the paragraph around it, for the text of one choice.
    """
    html = str(_renderer()(text)).strip()
    if inline and html.startswith("<p>") and html.count("<p>") == 1 and html.endswith("</p>"):
        return html[3:-4]
    return html


@cache
def _renderer() -> Any:
    import mistune

    class Renderer(mistune.HTMLRenderer):
        def inline_math(self, text: str) -> str:
            return f'<span class="lk-math">{math_html(text)}</span>'

        def block_math(self, text: str) -> str:
            return f'<p class="lk-math">{math_html(text)}</p>\n'

    renderer = Renderer(escape=True)
    markdown = mistune.create_markdown(renderer=renderer, plugins=["math", "table"])
    renderer.register("inline_math", lambda r, text: Renderer.inline_math(r, text))  # the plugin brought its own
    renderer.register("block_math", lambda r, text: Renderer.block_math(r, text))
    return markdown


def to_words(html: str) -> str:
    """HTML as plain text: paragraphs apart, list items with a dash, raised and lowered digits as Unicode has them."""
    reader = _Words()
    reader.feed(html)
    reader.close()
    text = re.sub(r"[ \t]+", " ", "".join(reader.parts))
    return re.sub(r" ?\n ?", "\n", re.sub(r"\s*\n\s*\n\s*", "\n\n", text)).strip()


class _Words(HTMLParser):
    """Collects the text of a document."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.shift: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self.parts.append("\n\n")
        elif tag == "li":
            self.parts.append("\n- ")
        elif tag in ("br", "tr"):
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append("  ")
        elif tag in ("sup", "sub"):
            self.shift.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("sup", "sub") and self.shift:
            inner = self.shift.pop()
            moved = inner.translate(RAISED if tag == "sup" else LOWERED)
            if any(a == b for a, b in zip(inner, moved, strict=True)):  # a letter that Unicode does not raise
                mark = "^" if tag == "sup" else "_"
                moved = mark + (inner if len(inner) == 1 else f"({inner})")
            self.handle_data(moved)
        elif tag in BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self.shift:
            self.shift[-1] += data
        elif data.strip() or "\n" not in data:  # line ends between tags are only there for the eye
            self.parts.append(data)
