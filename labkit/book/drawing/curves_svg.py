"""Cost curves as a small SVG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import series
from labkit.book.drawing.svg import Svg, dash_array, number, text_width
from labkit.book.drawing.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from labkit.book.drawing.curves import Plot

LEFT, RIGHT, HIGH = 64.0, 196.0, 320.0  # left and right margins, height of the drawing


def picture(plot: Plot, title: str, badge: str, sentence: str) -> str:
    """Lines with dashes, points with markers, a dotted line where another algorithm takes over, a legend."""
    svg = Svg(WIDTH, title, sentence)
    top = heading(svg, badge, sentence) + 10
    bottom, right = top + HIGH, WIDTH - RIGHT
    low, high = (math.log10(t) for t in plot.times)
    low, high = low - 0.1, high + 0.15
    first, last = (math.log10(n) for n in plot.sizes)
    first, last = first - 0.02 * (last - first), last + 0.02 * (last - first)

    def x(n: float) -> float:
        return LEFT + (math.log10(n) - first) / (last - first) * (right - LEFT)

    def y(t: float) -> float:
        return bottom - (math.log10(t) - low) / (high - low) * HIGH

    for k in range(math.ceil(first), math.floor(last) + 1):
        svg.line(x(10.0**k), top, x(10.0**k), bottom, faint=True)
        svg.text(x(10.0**k), bottom + 16, bytes_text(10.0**k), 11, "middle")
    steps = [(10.0**k) for k in range(math.ceil(low), math.floor(high) + 1)]
    if len(steps) < 2 or (any(plot.axes) and high - low < 2):
        steps = [m * 10.0**k for k in range(math.floor(low), math.ceil(high)) for m in (1, 2, 5)]
    for t in (t for t in steps if low <= math.log10(t) <= high):
        svg.line(LEFT, y(t), right, y(t), faint=True)
        svg.text(LEFT - 6, y(t) + 4, seconds_text(t), 11, "end")
    svg.line(LEFT, bottom, right, bottom)
    svg.line(LEFT, top, LEFT, bottom)
    if any(plot.axes):
        svg.text((LEFT + right) / 2, bottom + 34, plot.axes[0], 11.5, "middle")
        svg.text(8, top - 6, plot.axes[1], 11.5)
    for (name, part), dash in zip(plot.thin.items(), ("6 4", "2 3", "6 3 2 3"), strict=False):
        if part:
            svg.path("M" + " L".join(f"{number(x(n))} {number(y(t))}" for n, t in part), width=1, dash=dash)
            end = part[-1]
            svg.text(right + 8, y(end[1]) + 4, name, 11)
    changes = [(start, f"{name} from {bytes_text(start)}") for start, _, name in plot.fastest[1:]]
    changes += [(n, name) for name, n in plot.at.items() if plot.sizes[0] <= n <= plot.sizes[1]]
    for k, (start, label) in enumerate(changes):
        svg.line(x(start), top, x(start), bottom, dash="2 3")
        room = x(start) + 4 + text_width(label, 10.5) < right
        svg.text(x(start) + (4 if room else -4), top + 11 + 14 * (k % 3), label, 10.5, "start" if room else "end")
    for k, name in enumerate(plot.names):
        look = series(k)
        if line := [(n, t) for n, t in plot.lines.get(name, ()) if t > 0]:
            d = "M" + " L".join(f"{number(x(n))} {number(y(t))}" for n, t in line)
            svg.path(d, colour=look.colour, width=2.4, dash=dash_array(look.dash))
        for n, middle, least, most in plot.points.get(name, ()):
            if n > 0 and least > 0:
                svg.line(x(n), y(least), x(n), y(most))
                svg.marker(x(n), y(middle), look.marker, look.colour)
        row = top + 12 + 22 * k
        if name in plot.lines:
            svg.line(right + 14, row, right + 52, row, dash=dash_array(look.dash), width=2.4, colour=look.colour)
        if name in plot.points:
            svg.marker(right + 33, row, look.marker, look.colour)
        svg.text(right + 60, row + 4, name, 11.5)
    ends = "and range" if plot.ends[0] == "least" else "and 10 to 90 %"
    if plot.points and plot.lines:
        row = top + 22 * len(plot.names) + 18
        for line_of_text in (
            "lines: the model",
            f"marks: {badge}{', median' * plot.repeated}",
            *[ends] * plot.repeated,
        ):
            svg.text(right + 14, row, line_of_text, 10.5)
            row += 15
    return svg.render(bottom + (44 if any(plot.axes) else 26))
