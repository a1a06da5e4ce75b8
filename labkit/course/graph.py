"""The prerequisite graph: a picture as SVG, and the same in words.

The picture names and describes itself to assistive technology. Nothing is told by colour: core chapters have a solid
edge, optional ones a dashed edge, and each box says in words what it is. It reads on white and on dark pages.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from labkit.course.file import Chapter, Course
from labkit.course.headers import listed
from labkit.course.layers import Place, layered

BOX, HIGH, GAP, BETWEEN, MARGIN = 132, 66, 12, 44, 10  # pixels: width and height of a box, gaps beside and below
LETTERS = 19  # of the title in a line
INK, PAPER, LINE = "#111", "#fff", "#777"


def in_words(course: Course) -> list[str]:
    """A sentence for each chapter: what it builds on."""
    sentences = []
    for chapter in course.chapters:
        before = [f"{number} ({course.chapter(number).in_a_sentence})" for number in chapter.prerequisites]
        kind = "" if chapter.core else " (optional)"
        what = f"builds on {listed(before)}" if before else "builds on no other chapter"
        sentences.append(f"Chapter {chapter.number}, {chapter.in_a_sentence}{kind}, {what}.")
    return sentences


def svg(course: Course) -> str:
    """The picture: one file, no scripts, the same text for the same course."""
    drawing = layered({chapter.number: chapter.prerequisites for chapter in course.chapters})
    across = max(len(row) for row in drawing.rows)
    width = 2 * MARGIN + across * BOX + (across - 1) * GAP
    height = 2 * MARGIN + len(drawing.rows) * HIGH + (len(drawing.rows) - 1) * BETWEEN
    middle: dict[Place, tuple[float, float]] = {}
    for number, row in enumerate(drawing.rows):
        left = (width - len(row) * BOX - (len(row) - 1) * GAP) / 2
        for index, place in enumerate(row):
            middle[place] = (left + index * (BOX + GAP) + BOX / 2, MARGIN + number * (HIGH + BETWEEN) + HIGH / 2)
    lines = [_arrow([middle[place] for place in path]) for path in drawing.arrows.values()]
    boxes = [_box(chapter, *middle[chapter.number]) for chapter in course.chapters]
    words = escape(" ".join(in_words(course)))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc" '
            f'viewBox="0 0 {width} {height}" width="{width}" style="max-width:100%;height:auto" '
            f'font-family="Liberation Sans, Arial, Helvetica, sans-serif" font-size="12">',
            '<title id="title">Which chapter builds on which</title>',
            f'<desc id="desc">{words}</desc>',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 Z" fill="{LINE}"/></marker></defs>',
            f'<g fill="none" stroke="{LINE}" stroke-width="1.5">',
            *lines,
            "</g>",
            *boxes,
            "</svg>\n",
        ]
    )


def _arrow(points: list[tuple[float, float]]) -> str:
    """A line through `points`: from the lower edge of the first box, straight past the bends, to the upper edge."""
    (x, y), *bends, (to_x, to_y) = points
    y, to_y = y + HIGH / 2, to_y - HIGH / 2
    path = f"M{x:g} {y:g}"
    for bend_x, bend_y in bends:
        path += _curve(x, y, bend_x, bend_y - HIGH / 2) + f" L{bend_x:g} {bend_y + HIGH / 2:g}"
        x, y = bend_x, bend_y + HIGH / 2
    return f'<path d="{path}{_curve(x, y, to_x, to_y)}" marker-end="url(#head)"/>'


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    half = (y + to_y) / 2
    return f" C{x:g} {half:g} {to_x:g} {half:g} {to_x:g} {to_y:g}"


def _box(chapter: Chapter, x: float, y: float) -> str:
    title = _wrapped(f"{chapter.number} {chapter.title}")
    note = f"{chapter.minutes} min" + ("" if chapter.core else ", optional") + f", {chapter.state}"
    dash = "" if chapter.core else ' stroke-dasharray="5 3"'
    top = y - 7 * (len(title) - 1) - 4
    texts = [
        f'<text x="{x:g}" y="{top + 14 * index:g}" text-anchor="middle" font-weight="bold">{escape(line)}</text>'
        for index, line in enumerate(title)
    ]
    left, upper = x - BOX / 2, y - HIGH / 2
    return (
        f'<g fill="{INK}"><rect x="{left:g}" y="{upper:g}" width="{BOX}" height="{HIGH}" rx="5" fill="{PAPER}" '
        f'stroke="{INK}" stroke-width="1.5"{dash}/>{"".join(texts)}'
        f'<text x="{x:g}" y="{y + HIGH / 2 - 7:g}" text-anchor="middle" font-size="10.5">{note}</text></g>'
    )


def _wrapped(title: str) -> list[str]:
    """The title in lines of about LETTERS letters."""
    lines = [""]
    for word in title.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LETTERS:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines
