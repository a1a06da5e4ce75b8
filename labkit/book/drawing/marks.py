"""Small marks in a chapter: where a number comes from, and where a cluster of GPUs behaves differently."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from labkit.book.drawing.style import BADGES, checked_badge

PILL = "display:inline-block;border:1px solid currentColor;border-radius:0.8em;padding:0 0.6em;font-size:0.85em"


@dataclass(frozen=True)
class Badge:
    """One of "measured", "emulated", "simulated", "quoted", "recorded", as a small label."""

    kind: str

    def __post_init__(self) -> None:
        checked_badge(self.kind)

    def __str__(self) -> str:
        return f"[{self.kind}]"

    def __repr__(self) -> str:
        return f"[{self.kind}: {BADGES[self.kind]}]"

    def _repr_html_(self) -> str:
        return f'<span style="{PILL}" title="{escape(BADGES[self.kind])}">{self.kind}</span>'


def badge(kind: str) -> Badge:
    """The mark that says how the number beside it came about. Raises ValueError for an unknown kind."""
    return Badge(kind)


@dataclass(frozen=True)
class Quoted:
    """A number that somebody else states. `value` is the number itself, to compute with."""

    value: float
    source: str
    unit: str = ""

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"{self._number} [quoted: {self.source}]"

    @property
    def _number(self) -> str:
        return f"{self.value:,g} {self.unit}".strip()

    def _repr_html_(self) -> str:
        return f"{escape(self._number)} {Badge('quoted')._repr_html_()} <small>{escape(self.source)}</small>"


def quoted(value: float, source: str, unit: str = "") -> Quoted:
    """`value` as stated in `source` (who, where), with the mark "quoted"."""
    if not source.strip():
        raise ValueError(f"quoted({value!r}): say where the number stands")
    return Quoted(value, source, unit)


@dataclass(frozen=True)
class Box:
    """A remark set apart. It shows itself as Markdown, which every front end and every export renders safely."""

    title: str
    markdown: str

    def __repr__(self) -> str:
        return f"{self.title}\n{self.markdown.strip()}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        lines = [f"**{self.title}**", "", *self.markdown.strip().splitlines()]
        return {"text/plain": repr(self), "text/markdown": "\n".join(f"> {line}".rstrip() for line in lines)}


def inline(text: str) -> str:
    """A sentence as HTML: between backticks is code, between stars on either side stressed, between two stars bold.

    No formulas, unlike in the texts of questions: a dollar is a dollar.
    """
    parts = re.split("`([^`]+)`", escape(text))  # in turn words and code
    for place in range(0, len(parts), 2):
        bold = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", parts[place])
        parts[place] = re.sub(r"(?<![\w*])\*(?![\s*])([^*]+?)(?<!\s)\*(?![\w*])", r"<em>\1</em>", bold)
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))
