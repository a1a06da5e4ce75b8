"""Pictures that stay readable in a narrow window: narrower than elsewhere, with larger and darker text."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.book.drawing.svg import SIZE, STYLE, Svg, text_width, wrap

WIDTH = 600  # pixels: a window of 900 hardly shrinks it
SMALL = 13.5  # of all text but the title
DARK = {'class="lk-ink"': 'fill="#1a1a1a"', 'class="lk-line"': 'stroke="#555"', 'class="lk-head"': 'fill="#555"'}


class Page(Svg):
    """An Svg on white, so that its text can be dark on any page. No text is smaller than SMALL."""

    def __init__(self, title: str, desc: str) -> None:
        super().__init__(WIDTH, title, desc)
        self.add("rect", x=0, y=0, width="100%", height="100%", rx=4, fill="#fff")

    def text(
        self, x: float, y: float, text: str, size: float = SIZE, anchor: str = "start", bold: bool = False,
        on_colour: bool = False,
    ) -> None:  # fmt: skip
        super().text(x, y, text, max(size, SMALL), anchor, bold, on_colour)

    def render(self, height: float) -> str:
        drawn = super().render(height).replace(f"<style>{STYLE}</style>", "")
        for name, colour in DARK.items():
            drawn = drawn.replace(name, colour)
        return drawn


def heading(svg: Svg, badge: str, sentence: str) -> float:
    """Draw title, badge and sentence at the top of a picture; return the y where the drawing may begin."""
    svg.text(8, 24, svg.title, 16, bold=True)
    svg.text(8 + 1.07 * text_width(svg.title, 16) + 8, 24, f"[{badge}]", 14)
    y = 26.0
    for line in wrap(sentence, svg.width - 16, SMALL):
        y += 18
        svg.text(8, y, line)
    return y + 14


def legend(svg: Svg, y: float, items: Iterable[tuple[str, str, str]]) -> float:
    """Rows of (name, colour, hatch) boxes at `y`; return the y below them."""
    x = 8.0
    for name, colour, hatch in items:
        width = 24 + text_width(name, SMALL) + 16
        if x + width > svg.width and x > 8:
            x, y = 8.0, y + 20
        svg.rect(x, y, 18, 12, fill=colour, hatch=hatch, stroke_width=0.8)
        svg.text(x + 23, y + 11, name)
        x += width
    return y + 24
