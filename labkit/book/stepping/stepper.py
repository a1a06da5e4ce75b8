"""Step through a recorded collective, one arrival at a time, at the ranks' true times.

With a reader in front of it: a range and three buttons, all native and reachable from the keyboard; nothing moves
before Play is pressed.
Without one (nbval, papermill, a script): the rounds side by side, and in words.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.book.drawing.cells import Grid, draw_cells, draw_moves, key
from labkit.book.drawing.circle import circle_picture, circles
from labkit.book.drawing.figure import WIDTH, Figure, heading
from labkit.book.drawing.strip import MOST_SHOWN, describe, flaws_by_cell
from labkit.book.drawing.svg import Svg, number
from labkit.book.drawing.units import seconds_text
from labkit.book.stepping.player import Player
from labkit.book.stepping.recorder import record
from labkit.book.stepping.recording import Frame, Replay
from labkit.book.timelines.reads import Trace

STEPS = ("time", "round")
SHAPES = ("rows", "circle")


def replay(trace: Trace, collective: str | None = None, nth: int = 0, by: str = "time", shape: str = "rows") -> Stepper:
    """A stepper for the `nth` collective of the run (called `collective`, if given).

    by: "time" makes a step of each moment at which data arrived, in the true order; "round" puts messages together
    that do not depend on each other. shape: "rows" has a row of chunks for each rank, "circle" has the ranks around a
    circle. `.recording` is the data behind it: frames, flaws, a verdict.
    """
    if by not in STEPS:
        raise ValueError(f"by={by!r}: steps are made by {' or '.join(STEPS)}")
    if shape not in SHAPES:
        raise ValueError(f"shape={shape!r}: a replay is drawn as {' or '.join(SHAPES)}")
    return Stepper(record(trace, collective, nth), by, shape)


class Stepper(Player):
    """What `replay` returns. `step` is the number of the frame shown; set it, or call `next()` and `previous()`."""

    frames: tuple[Frame, ...]

    def __init__(self, recording: Replay, by: str = "time", shape: str = "rows") -> None:
        frames = recording.frames if by == "time" else recording.rounds
        begin = int(shape == "circle" and len(frames) > 1)  # an empty circle says nothing
        super().__init__(frames, f"{recording.name} {recording.algorithm}".strip(), begin)
        self.recording, self.shape = recording, shape

    @property
    def text(self) -> str:
        """The step shown, as a sentence."""
        return describe(self.recording, self.frames, self.step)

    @property
    def svg(self) -> str:
        """The step shown, as a picture."""
        draw = circle_picture if self.shape == "circle" else frame_picture
        return draw(self.recording, self.frames, self.step)

    @property
    def still(self) -> Figure:
        """The steps side by side: its form on a page that cannot be played."""
        if self.shape == "rows":
            return self.recording.strip()
        told = self.recording.strip(self.frames)
        return replace(told, svg=circles(self.recording, self.frames, told.title, told.sentence))


def frame_picture(recording: Replay, frames: tuple[Frame, ...], index: int) -> str:
    """One step as a large picture: the ranks' chunks, what has just arrived, and where on the time axis this is."""
    sentence = describe(recording, frames, index)
    if (cropped := recording.crop(MOST_SHOWN)) is not recording:
        frames = cropped.frames if frames == recording.frames else cropped.rounds
        recording = cropped
        sentence += f" Only the first {MOST_SHOWN} ranks and chunks are shown."
    frame = frames[index]
    title = f"{recording.name} {recording.algorithm}".strip()
    svg = Svg(WIDTH, title, sentence)
    top = heading(svg, recording.badge, sentence)
    top = max(top, 84) if len(recording.ranks) < 9 else max(top, 67)  # two lines of words do not shift the picture
    flying = [m for f in frames for m in f.moves if m.start <= frame.time < m.arrived and m not in frame.moves]
    y = key(svg, top, recording, True) + 18
    chunks, size = max(recording.chunks, 1), len(recording.ranks)
    pitch = (WIDTH - 66 - 14) / chunks
    gap = min(64, 0.34 * pitch)
    height, space = (28, 12) if size <= 8 else (18, 5)
    grid = Grid(66, y, min(150, pitch - gap), height, gap, space, 12 if pitch > 60 else 10)
    for c in range(recording.chunks):
        name = f"chunk {c}" if pitch > 62 else str(c)
        svg.text(grid.place(0, c)[0] + grid.width / 2, y - 6, name, 11, "middle")
    for i, rank in enumerate(recording.ranks):
        svg.text(58, grid.place(i, 0)[1] + height / 2 + 4, f"rank {rank}", anchor="end")
    draw_cells(svg, grid, recording, frame, flaws_by_cell(recording) if index == len(frames) - 1 else {}, hover=True)
    draw_moves(svg, grid, recording, frame, flying)
    return svg.render(_time_axis(svg, y + size * (height + space) + 12, recording, frames, index))


def _time_axis(svg: Svg, y: float, recording: Replay, frames: tuple[Frame, ...], index: int) -> float:
    """A line for the whole collective, a tick for each step, a pointer at this one; return the y below."""
    left, right = 66.0, WIDTH - 14.0
    seconds = max(recording.end, frames[-1].time) - recording.start or 1.0

    def place(frame: Frame) -> float:
        return left + (right - left) * (frame.time - recording.start) / seconds

    svg.line(left, y, right, y)
    for frame in frames:
        svg.line(place(frame), y - 4, place(frame), y + 4)
    x = place(frames[index])
    svg.add("path", d=f"M{number(x)} {number(y - 2)} l-6 -10 h12 Z", klass="lk-head")
    svg.text(58, y + 4, "time", 11, "end")
    svg.text(left, y + 18, "0", 11)
    svg.text(right, y + 18, seconds_text(seconds), 11, "end")
    return y + 28
