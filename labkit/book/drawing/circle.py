"""A moment of a collective on a circle: the ranks around it, each with its chunks, and the messages as arrows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.book.drawing.cells import Grid, done_with, draw_cells, key, sign
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.strip import describe, flaws_by_cell, spread
from labkit.book.drawing.svg import Svg, number
from labkit.book.drawing.units import seconds_text
from labkit.book.stepping.recording import Flaw, Frame, Move, Replay

MOST = 16  # ranks on a circle, and chunks beside a rank
PANELS = 6
NUMBERED = 12.0  # pixels: chunks that are narrower have no number
SMALLEST = 10.5  # pixels of text: on a narrow page the picture shrinks to two thirds


@dataclass(frozen=True)
class Round:
    """Where the ranks of a circle are: its middle, the halves of its axes, and the radius of a rank."""

    x: float
    y: float
    wide: float
    tall: float
    radius: float
    size: int

    def place(self, i: int) -> tuple[float, float]:
        """The middle of the i-th rank: clockwise from the top."""
        turn = 2 * math.pi * i / self.size
        return self.x + self.wide * math.sin(turn), self.y - self.tall * math.cos(turn)

    def bars(self, i: int, width: float, height: float) -> tuple[float, float]:
        """The top left corner of what stands beside the i-th rank, outside the circle."""
        turn = 2 * math.pi * i / self.size
        x, y = self.place(i)
        across, along = math.sin(turn), -math.cos(turn)
        away = self.radius + 6
        if abs(across) < 0.2:  # above or below
            return x - width / 2, y + along * away - (height if along < 0 else 0)
        return x + math.copysign(away, across) - (width if across < 0 else 0), y - height / 2 + along * 8


def circle_picture(recording: Replay, frames: Sequence[Frame], index: int) -> str:
    """One step: the ranks around the circle with their chunks, and what has just arrived."""
    sentence = describe(recording, frames, index)
    recording, frames = _cropped(recording, frames)
    title = f"{recording.name} {recording.algorithm}".strip()
    svg = Svg(WIDTH, title, sentence)
    top = key(svg, max(heading(svg, recording.badge, sentence), 84), recording, False, levels=True)
    size = len(recording.ranks)
    tall = 105 if size <= 4 else 150
    where = Round(WIDTH / 2, top + tall + 62, 190 if size <= 4 else 200, tall, 20, size)
    _draw(svg, where, recording, frames, index, min(34, 140 / max(recording.chunks, 1)), 24)
    return svg.render(top + 2 * tall + 126)


def circles(recording: Replay, frames: Sequence[Frame], title: str, sentence: str) -> str:
    """Up to six steps side by side, for a page that cannot be played."""
    recording, frames = _cropped(recording, frames)
    svg = Svg(WIDTH, title, sentence)
    top = key(svg, heading(svg, recording.badge, sentence), recording, False, levels=True)
    columns, tall = 2, 118 if len(recording.ranks) <= 4 else 148
    picked = spread(frames, PANELS)
    for place, index in enumerate(picked):
        left, y = (place % columns) * WIDTH / columns, top + (place // columns) * (2 * tall + 26)
        name = "before" if index == 0 else f"step {index}"
        svg.text(left + 8, y + 12, f"{name}, {seconds_text(frames[index].time - recording.start)}", 13, bold=True)
        where = Round(left + WIDTH / columns / 2, y + tall + 18, 84, tall - 48, 13, len(recording.ranks))
        _draw(svg, where, recording, frames, index, min(22, 76 / max(recording.chunks, 1)), 15)
    return svg.render(top + -(-len(picked) // columns) * (2 * tall + 26))


def _cropped(recording: Replay, frames: Sequence[Frame]) -> tuple[Replay, Sequence[Frame]]:
    cropped = recording.crop(MOST)
    if cropped is recording:
        return recording, frames
    return cropped, cropped.frames if tuple(frames) == recording.frames else cropped.rounds


def _draw(
    svg: Svg, where: Round, recording: Replay, frames: Sequence[Frame], index: int, width: float, height: float
) -> None:
    """The ranks, their chunks (each `width` by `height`), and the messages of a frame."""
    frame = frames[index]
    flaws: dict[tuple[int, int], Flaw] = flaws_by_cell(recording) if index == len(frames) - 1 else {}
    row_of = {rank: i for i, rank in enumerate(recording.ranks)}
    for move in frame.moves:
        _arrow(svg, where, row_of[move.src], row_of[move.dst], move, recording.chunks)
    for i, rank in enumerate(recording.ranks):
        x, y = where.place(i)
        svg.add("circle", cx=x, cy=y, r=where.radius, fill="#ffffff", klass="lk-line", stroke_width=1.4)
        svg.text(x, y + 4, str(rank), 14 if where.radius > 15 else 12, "middle", bold=True, on_colour=True)
        left, top = where.bars(i, width * recording.chunks, height)
        grid = Grid(left, top, width, height, 0, 0, 11 if width > 20 else SMALLEST)
        draw_cells(svg, grid, recording, frame, flaws, hover=True, only=i)
        if recording.chunks > 1 and width >= NUMBERED:
            y = top - 3 if top + height / 2 <= where.y else top + height + 11  # on the outer side
            for chunk in range(recording.chunks):
                svg.text(left + (chunk + 0.5) * width, y, str(chunk), SMALLEST, "middle")


def _arrow(svg: Svg, where: Round, start: int, end: int, move: Move, chunks: int) -> None:
    """From rank to rank, bent to the inside; near its beginning which chunks, and what becomes of them there."""
    (x1, y1), (x2, y2) = where.place(start), where.place(end)
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    bend = 0.14 * length
    cx, cy = (x1 + x2) / 2 - uy * bend, (y1 + y2) / 2 + ux * bend
    first, last = math.hypot(cx - x1, cy - y1), math.hypot(x2 - cx, y2 - cy)
    sx, sy = x1 + (cx - x1) / first * where.radius, y1 + (cy - y1) / first * where.radius
    ex, ey = x2 - (x2 - cx) / last * (where.radius + 2), y2 - (y2 - cy) / last * (where.radius + 2)
    svg.path(f"M{number(sx)} {number(sy)} Q{number(cx)} {number(cy)} {number(ex)} {number(ey)}", width=1.6)
    svg.arrow_head(ex, ey, x2 - cx, y2 - cy, 8)
    mx, my = (9 * sx + 6 * cx + ex) / 16, (9 * sy + 6 * cy + ey) / 16  # a quarter of the way: many cross in the middle
    if where.radius < 15:
        return
    sign(svg, mx, my, done_with(move), 7)
    if chunks == 1:
        return  # there is nothing to tell apart
    which = f"{move.chunks[0]}..{move.chunks[-1]}" if len(move.chunks) > 1 else str(move.chunks[0])
    away = 17 if len(which) < 3 else 21
    svg.text(mx - uy * away, my + ux * away + 4, which, 12, "middle")
