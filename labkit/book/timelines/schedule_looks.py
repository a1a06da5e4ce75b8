"""How the kinds of instructions look: a colour each, and a hatch that says the same; later chunks are lighter."""

from __future__ import annotations

from labkit.book.drawing.style import BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW
from labkit.book.timelines.schedule_runs import MIXED

LOOKS = {
    "F": (BLUE, ""), "B": (ORANGE, "/"), "I": (GREEN, "x"), "W": (PURPLE, "."), "U": (YELLOW, "\\"), MIXED: (GREY, "-"),
}  # fmt: skip


def colour(kind: str, chunk: int = 0, chunks: int = 1) -> str:
    """The filling of a box: towards white for later chunks."""
    share = 0.6 * chunk / max(1, chunks - 1)
    red, green, blue = (int(LOOKS[kind][0][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * share):02x}" for c in (red, green, blue))


def hatch(kind: str) -> str:
    """The strokes that say the same where there is no room for the letter."""
    return LOOKS[kind][1]
