"""A few helpers to write a small SVG picture: what a static export shows where plotly cannot run.

The picture has no background, scales to the width of its page, names itself to assistive technology
(role, title, description), and is the same text for the same input: identifiers come from the content.
Text takes the colour of the page where the picture is part of one, and a neutral grey where it is not.
"""

from __future__ import annotations

import hashlib
import math
from xml.sax.saxutils import escape, quoteattr

from labkit.book.drawing.style import FONT, INK, ON_COLOUR

# Two declarations each: a program that does not know var() keeps the first.
STYLE = "".join(
    f".lk-{name}{{{what}:{INK};{what}:var(--jp-content-font-color{level},{INK})}}"
    for name, what, level in (("ink", "fill", 1), ("line", "stroke", 2), ("head", "fill", 2))
)
# Widths of a character in units of the font size, roughly those of Arial.
NARROW, WIDE = frozenset("ijlt.,:;|!'()[]f r-/"), frozenset("mwMW%@")

SIZE = 12  # of text, in pixels

HATCHES = {  # strokes in a tile of 6 by 6
    "/": "M-1 1 L1 -1 M0 6 L6 0 M5 7 L7 5",
    "\\": "M-1 5 L1 7 M0 0 L6 6 M5 -1 L7 1",
    "x": "M0 6 L6 0 M0 0 L6 6",
    "-": "M0 3 L6 3",
    "|": "M3 0 L3 6",
    "+": "M0 3 L6 3 M3 0 L3 6",
    ".": "M3 3 L3 3.01",
}
DASHES = {"solid": "", "dot": "2 3", "dash": "6 4", "longdash": "11 4", "dashdot": "7 3 2 3", "longdashdot": "12 3 2 3"}


def number(value: float) -> str:
    """A coordinate with at most one decimal: a tenth of a pixel is finer than anyone sees."""
    return f"{round(float(value), 1):g}" if abs(value) < 1e5 else f"{value:.0f}"


def text_width(text: str, size: float) -> float:
    """About how wide `text` is, in pixels, at font size `size`. Enough to decide whether a label fits its box."""
    return size * sum(0.31 if c in NARROW else 0.88 if c in WIDE else 0.68 if c.isupper() else 0.545 for c in text)


def wrap(text: str, width: float, size: float) -> list[str]:
    """`text` in lines of at most `width` pixels."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def dash_array(dash: str) -> str:
    """SVG's dash array for one of plotly's line styles."""
    return DASHES[dash] if dash in DASHES else dash.replace("px", "").replace(",", " ")


class Svg:
    """A picture that grows downwards: draw, then `render(height)`.

    width: pixels at its natural size. title: its name. desc: what it says, in words.
    """

    def __init__(self, width: float, title: str, desc: str) -> None:
        self.width, self.title, self.desc = width, title, desc
        self._parts: list[str] = []
        self._hatches: dict[tuple[str, str], str] = {}

    def add(self, tag: str, text: str | None = None, hover: str | None = None, **attributes: object) -> None:
        """One element. Underscores in attribute names stand for hyphens (`klass` for class); None is left out."""
        written = "".join(
            f" {'class' if key == 'klass' else key.replace('_', '-')}="
            + quoteattr(number(value) if isinstance(value, (int, float)) else str(value))
            for key, value in attributes.items()
            if value is not None and value != ""
        )
        inside = (f"<title>{escape(hover)}</title>" if hover else "") + (escape(text) if text is not None else "")
        self._parts.append(f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>")

    def text(
        self, x: float, y: float, text: str, size: float = SIZE, anchor: str = "start", bold: bool = False,
        on_colour: bool = False,
    ) -> None:  # fmt: skip
        """A line of text with its baseline at `y`. `on_colour`: dark, for the inside of a filled box. Three spaces, as
        between the entries of a key, stay wide; a browser would make one of them."""
        self.add(
            "text", text.replace("   ", "\u2003"), x=x, y=y, font_size=None if size == SIZE else size,
            text_anchor=None if anchor == "start" else anchor, font_weight="bold" if bold else None,
            fill=ON_COLOUR if on_colour else None, klass=None if on_colour else "lk-ink",
        )  # fmt: skip

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none", hatch: str = "",
        stroke: str | None = None, dash: str = "", stroke_width: float | None = None, radius: float = 0,
        hover: str | None = None,
    ) -> None:  # fmt: skip
        """A box. `hatch` draws a pattern over `fill`; without `stroke` the outline is that of the page's lines."""
        self.add(
            "rect", hover=hover, x=x, y=y, width=max(width, 0.5), height=height, rx=radius or None,
            fill=self.hatched(fill, hatch) if hatch else fill, stroke=stroke,
            klass=None if stroke else "lk-line", stroke_width=stroke_width, stroke_dasharray=dash,
        )  # fmt: skip

    def line(
        self, x1: float, y1: float, x2: float, y2: float, dash: str = "", width: float = 1, colour: str | None = None,
        faint: bool = False,
    ) -> None:  # fmt: skip
        self.add(
            "line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, klass=None if colour else "lk-line",
            stroke_width=width, stroke_dasharray=dash, stroke_opacity="0.35" if faint else None,
        )  # fmt: skip

    def path(
        self, d: str, fill: str = "none", colour: str | None = None, width: float = 1, dash: str = "",
        hover: str | None = None,
    ) -> None:  # fmt: skip
        """A path; without `colour` its stroke is that of the page's lines."""
        self.add(
            "path", hover=hover, d=d, fill=fill, stroke=colour, klass=None if colour else "lk-line",
            stroke_width=width, stroke_dasharray=dash,
        )  # fmt: skip

    def arrow_head(self, x: float, y: float, dx: float, dy: float, size: float = 6) -> None:
        """A filled triangle with its tip at (x, y), pointing along (dx, dy)."""
        length = math.hypot(dx, dy) or 1.0
        ux, uy = dx / length, dy / length
        bx, by = x - size * ux, y - size * uy
        a, b = (bx - 0.45 * size * uy, by + 0.45 * size * ux), (bx + 0.45 * size * uy, by - 0.45 * size * ux)
        corners = f"M{number(x)} {number(y)} L{number(a[0])} {number(a[1])} L{number(b[0])} {number(b[1])} Z"
        self.add("path", d=corners, klass="lk-head")

    def marker(self, x: float, y: float, shape: str, fill: str, size: float = 5) -> None:
        """The shape plotly calls `shape`, centred at (x, y), about 2 * `size` wide, with a dark edge."""
        self.add("path", d=marker_path(x, y, shape, size), fill=fill, stroke=ON_COLOUR, stroke_width=0.8)

    def hatched(self, fill: str, hatch: str) -> str:
        """A fill of colour `fill` with the strokes of `hatch` over it."""
        name = self._hatches.setdefault((fill, hatch), f"h{len(self._hatches)}")
        return f"url(#@ID@{name})"

    def render(self, height: float) -> str:
        """The whole picture as one string of XML."""
        tiles = "".join(
            f'<pattern id="@ID@{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
            + (f'<rect width="6" height="6" fill="{fill}"/>' if fill != "none" else "")
            + f'<path d="{HATCHES[hatch]}" stroke="{ON_COLOUR if fill != "none" else INK}" stroke-opacity="0.7" '
            f'stroke-width="{1.6 if hatch == "." else 1}" stroke-linecap="{"round" if hatch == "." else "butt"}"/>'
            f"</pattern>"
            for (fill, hatch), name in self._hatches.items()
        )
        body = (
            f'<title id="@ID@t">{escape(self.title)}</title><desc id="@ID@d">{escape(self.desc)}</desc>'
            f"<style>{STYLE}</style>" + (f"<defs>{tiles}</defs>" if tiles else "") + "\n" + "\n".join(self._parts)
        )
        # Two pictures in one page must not share identifiers unless they are the same picture.
        name = "lk" + hashlib.sha256(body.encode()).hexdigest()[:8]
        size = f'viewBox="0 0 {number(self.width)} {number(height)}" width="{number(self.width)}"'
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="@ID@t @ID@d" {size} '
            f'style="max-width:100%;height:auto" font-family="{FONT}" font-size="{SIZE}">'
        )
        return f"{opening}{body}\n</svg>\n".replace("@ID@", name)


def marker_path(x: float, y: float, shape: str, r: float) -> str:
    """The outline of one of plotly's marker shapes as a path."""
    t = 0.4 * r  # half the thickness of a bar of the crosses
    if shape == "circle":
        return f"M{number(x - r)} {number(y)} a{r} {r} 0 1 0 {2 * r} 0 a{r} {r} 0 1 0 {-2 * r} 0 Z"
    corners = {
        "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "diamond": [(0, -1.2 * r), (1.2 * r, 0), (0, 1.2 * r), (-1.2 * r, 0)],
        "triangle-up": [(0, -1.1 * r), (1.1 * r, 0.9 * r), (-1.1 * r, 0.9 * r)],
        "triangle-down": [(0, 1.1 * r), (1.1 * r, -0.9 * r), (-1.1 * r, -0.9 * r)],
        "cross": [(-t, -r), (t, -r), (t, -t), (r, -t), (r, t), (t, t), (t, r), (-t, r), (-t, t), (-r, t), (-r, -t),
                  (-t, -t)],
    }  # fmt: skip
    if shape == "x":  # the cross, turned by 45 degrees
        s = math.sqrt(0.5)
        points = [((px - py) * s, (px + py) * s) for px, py in corners["cross"]]
    elif shape == "star":
        points = [
            ((1.3 if k % 2 == 0 else 0.55) * r * math.sin(k * math.pi / 5),
             -(1.3 if k % 2 == 0 else 0.55) * r * math.cos(k * math.pi / 5))
            for k in range(10)
        ]  # fmt: skip
    else:
        points = list(corners[shape])
    return "M" + " L".join(f"{number(x + px)} {number(y + py)}" for px, py in points) + " Z"
