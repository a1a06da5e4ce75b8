"""Elements of a page, from texts that are escaped unless they are elements already.

    el("td", student, class_="name")     <td class="name">&lt;script&gt;</td>

There is no other way from a text to a page in this folder, so that nothing a student wrote becomes markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from labkit.grading.gradebook.text import clean

_EMPTY = {"br", "meta", "col"}


class Html(str):
    """Markup, made by `el` or `join`."""


def html(content: str) -> Html:
    """A text as markup; markup as it is."""
    return content if isinstance(content, Html) else Html(escape(clean(content)))


def join(parts: Iterable[str]) -> Html:
    return Html("".join(html(part) for part in parts))


def el(name: str, /, *content: str, **attributes: str | None) -> Html:
    """An element. class_ and aria_label are written class and aria-label; an attribute that is None is left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(clean(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{said}>" if name in _EMPTY else f"<{name}{said}>{join(content)}</{name}>")


def table(caption: str, head: Iterable[str], rows: Iterable[Iterable[str]], label: str = "") -> Html:
    """A table that scrolls by itself; the first cell of a row names it. label: for who cannot see that it scrolls."""
    heads = join(el("th", each, scope="col") for each in head)
    body = []
    for row in rows:
        first, *rest = row
        body.append(el("tr", el("th", first, scope="row"), *(el("td", each) for each in rest)))
    inner = el("table", el("caption", caption), el("thead", el("tr", heads)), el("tbody", *body))
    return el(
        "div", inner, class_="wide", tabindex="0", role="group", aria_label=f"{label or caption}, scrolls sideways"
    )


def printed(text: str, label: str) -> Html:
    """Printed text. Its lines wrap, so that it needs no scrolling."""
    return el("pre", text, class_="printed", role="group", aria_label=label)
