"""One moment of a replay as a picture: a row of chunks per rank, and arcs for what has just moved.

A cell says in text whose contributions are in it. A tick marks what is finished, a dashed outline what was sent, a
thick one what was received; "+" on an arc means added to what was there, "=" means written over it, and a square that
it was set aside, to be added at the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from labkit.book.drawing.figure import WIDTH
from labkit.book.drawing.style import ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg, number, text_width
from labkit.book.stepping.goals import REDUCTIONS, Held
from labkit.book.stepping.recording import Flaw, Frame, Move, Replay

EMPTY, PAPER, LEVEL, PARTIAL, DONE, WRONG = "none", "#ffffff", "#79bde6", "#cfe8f7", "#9fdcc5", ORANGE
ADDED, WRITTEN, ASIDE = "+", "=", "aside"


def label(held: Held, mark: str = "") -> str:
    """Whose contributions, in short: "0+1+3", and "0..7" for three or more in a row. "-" for none.

    What was added more than once is told so: "2×(0+1)+3". mark: before each number.
    """
    times = Counter(held)
    if len(times) < len(held):
        alike = {n: label(tuple(r for r in times if times[r] == n), mark) for n in sorted(times.values())[::-1]}
        alike |= {n: f"{n}×{ranks if ranks.isalnum() else f'({ranks})'}" for n, ranks in alike.items() if n > 1}
        return "+".join(alike.values())
    runs: list[list[int]] = []
    for rank in held:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    named = [[f"{mark}{rank}" for rank in run] for run in runs]
    return "+".join(f"{r[0]}..{r[-1]}" if len(r) > 2 else "+".join(r) for r in named) or "-"


def fitting(held: Held, width: float, size: float, world: int, mark: str = "") -> str:
    """The label of a cell in the longest form that fits `width` pixels; empty if none does."""
    forms = (label(held, mark), f"{len(held)} of {world}", f"{len(held)}/{world}")
    return next((form for form in forms if text_width(form, size) <= width), "")


@dataclass(frozen=True)
class Grid:
    """Where the cells are: the top left corner of the first one, their size, and the room to the right of each."""

    x: float
    y: float
    width: float
    height: float
    gap: float  # between columns: arcs run there
    space: float  # between rows
    font: float

    def place(self, row: int, chunk: int) -> tuple[float, float]:
        return self.x + chunk * (self.width + self.gap), self.y + row * (self.height + self.space)


def draw_cells(
    svg: Svg, grid: Grid, replay: Replay, frame: Frame, flaws: dict[tuple[int, int], Flaw], hover: bool,
    only: int | None = None,
) -> None:  # fmt: skip
    """The chunks of all ranks; or of the one with the index `only`, in the first row, each as full as it is finished;
    where nothing is added, a chunk is finished from the start.

    flaws: (rank index, chunk) -> what is wrong there, to be shown at the end.
    """
    row_of = {rank: i for i, rank in enumerate(replay.ranks)}
    received = {(row_of[m.dst], c) for m in frame.moves for c in m.chunks}
    sent = {(row_of[m.src], c) for m in frame.moves for c in m.chunks} - received
    for i, row in enumerate(frame.held):
        for c, held in enumerate(row if only in (None, i) else ()):
            x, y = grid.place(i if only is None else 0, c)
            done, flaw = replay.complete(i, c, held) or (only is not None and replay.whole(c, held)), flaws.get((i, c))
            fill = WRONG if flaw else DONE if done else PARTIAL if held else EMPTY
            if only is not None and fill == PARTIAL:
                level = grid.height * len(set(held)) / len(replay.ranks)
                svg.rect(x, y, grid.width, grid.height, fill=PAPER, stroke="none")
                svg.rect(x, y + grid.height - level, grid.width, level, fill=LEVEL, stroke="none")
            svg.rect(
                x, y, grid.width, grid.height, radius=2, hatch="\\" if flaw else "",
                fill=EMPTY if only is not None and fill == PARTIAL else fill,
                dash="4 2" if (i, c) in sent else "",
                stroke=ON_COLOUR if (i, c) in sent and fill != EMPTY else None,  # seen from inside on a dark page
                stroke_width=2.8 if (i, c) in received else 1.5 if (i, c) in sent else 0.7,
                hover=f"rank {replay.ranks[i]}, chunk {c}: {flaw or label(held, replay.mark)}" if hover else None,
            )  # fmt: skip
            roomy = only is None or grid.width >= 26
            text = fitting(held, grid.width - 4, grid.font, len(replay.ranks), replay.mark) if roomy else ""
            _cell_text(svg, grid, x, y, text, fill, flaw)
            if done and not flaw and grid.width > (text_width(text, grid.font) + 22 if text else 12):
                _tick(svg, x + grid.width - 4, y + 3)


def _cell_text(svg: Svg, grid: Grid, x: float, y: float, text: str, fill: str, flaw: Flaw | None) -> None:
    middle = y + grid.height / 2 + 0.36 * grid.font
    if flaw:  # a plate under the text, so that the hatch does not run through it
        width = text_width(text, grid.font) + 6
        svg.rect(x + (grid.width - width) / 2, y + 3, width, grid.height - 6, fill=WRONG, stroke="none")
    svg.text(x + grid.width / 2, middle, text, grid.font, "middle", on_colour=fill != EMPTY)


def _tick(svg: Svg, right: float, top: float) -> None:
    d = f"M{number(right - 6)} {number(top + 3)} l2 2.5 l4 -5.5"
    svg.path(d, colour=ON_COLOUR, width=1.3)


def draw_moves(svg: Svg, grid: Grid, replay: Replay, frame: Frame, flying: list[Move]) -> None:
    """Arcs from cell to cell in the room right of each column: solid with a sign where data has arrived, dotted
    where it is still on its way."""
    row_of = {rank: i for i, rank in enumerate(replay.ranks)}
    pairs: dict[int, list[tuple[int, int]]] = {}  # chunk -> pairs of ranks with an arc there; both ways look alike
    for move, here in [*((m, True) for m in frame.moves), *((m, False) for m in flying)]:
        for c in last_of_each_run(move.chunks):
            a, b = row_of[move.src], row_of[move.dst]
            x, y1 = grid.place(a, c)
            _, y2 = grid.place(b, c)
            x, y1, y2 = x + grid.width + 1, y1 + grid.height / 2, y2 + grid.height / 2
            down = 1 if b > a else -1
            y1, y2 = y1 + 3 * down, y2 - 3 * down  # what leaves a cell and what reaches it do not touch
            pair, known = (min(a, b), max(a, b)), pairs.setdefault(c, [])
            if pair not in known:
                known.append(pair)
            reach = grid.gap * min(1.2, 0.75 + 0.15 * abs(a - b) + 0.1 * known.index(pair))
            bend = f"C{number(x + reach)} {number(y1)} {number(x + reach)} {number(y2)}"
            d = f"M{number(x)} {number(y1)} {bend} {number(x)} {number(y2)}"
            svg.path(d, width=1.3 if here else 0.9, dash="" if here else "2 3")
            if here:
                svg.arrow_head(x, y2, -1, 0, size=6 if grid.gap > 16 else 4.5)
                sign(svg, x + 0.75 * reach, (y1 + y2) / 2, done_with(move), 5.5 if grid.gap > 16 else 4)


def last_of_each_run(chunks: tuple[int, ...]) -> list[int]:
    """Neighbouring chunks of one message share an arc, right of the last of them."""
    return [c for c in chunks if c + 1 not in chunks]


def done_with(move: Move) -> str:
    """What became of a message when it had arrived: ADDED, WRITTEN or ASIDE."""
    return ASIDE if move.aside else ADDED if move.combine else WRITTEN


def aside(replay: Replay) -> bool:
    """Whether some message is set aside, so that the legend has to name it."""
    return any(move.aside for frame in replay.rounds for move in frame.moves)


def sign(svg: Svg, x: float, y: float, what: str, radius: float) -> None:
    """A small disc with "+" (added), "=" (written over) or a square (set aside), drawn as strokes."""
    svg.add("circle", cx=x, cy=y, r=radius, fill="#ffffff", klass="lk-line", stroke_width=0.7)
    r = 0.55 * radius
    if what == ASIDE:
        side = 1.5 * r
        d = f"M{number(x - side / 2)} {number(y - side / 2)} h{number(side)} v{number(side)} h{number(-side)} z"
    elif what == ADDED:
        d = f"M{number(x - r)} {number(y)} h{number(2 * r)} M{number(x)} {number(y - r)} v{number(2 * r)}"
    else:
        d = " ".join(f"M{number(x - r)} {number(y + dy * r)} h{number(2 * r)}" for dy in (-0.45, 0.45))
    svg.path(d, colour=ON_COLOUR, width=1.2)


def key(svg: Svg, y: float, replay: Replay, flying: bool, levels: bool = False) -> float:
    """The legend of these pictures at `y`; return the y below it. levels: chunks are as full as they are finished."""
    wrong, waits, parts = bool(replay.flaws), aside(replay), not levels or replay.name in REDUCTIONS
    x = 8.0
    for text, kind in (
        ("finished", "done"), ("in part", "part"), ("sent", "sent"), ("received", "got"), ("added", ADDED),
        ("written over", WRITTEN), ("set aside", ASIDE), ("on its way", "fly"), ("wrong at the end", "wrong"),
    ):  # fmt: skip
        if not {"part": parts, "wrong": wrong, "fly": flying, ASIDE: waits}.get(kind, True):
            continue
        if x + 23 + text_width(text, 11.5) > WIDTH:
            x, y = 8.0, y + 18
        if kind in (ADDED, WRITTEN, ASIDE):
            sign(svg, x + 9, y + 6, kind, 5.5)
        elif kind == "fly":
            svg.line(x, y + 6, x + 18, y + 6, dash="2 3")
        else:
            fill = {"done": DONE, "part": PARTIAL, "wrong": WRONG}.get(kind, EMPTY)
            svg.rect(
                x, y, 18, 12, fill=fill, hatch="\\" if kind == "wrong" else "", radius=2,
                dash="4 2" if kind == "sent" else "", stroke_width={"got": 2.8, "sent": 1.5}.get(kind, 0.7),
            )  # fmt: skip
            if kind == "part" and levels:
                svg.rect(x, y, 18, 12, fill=PAPER, radius=2, stroke_width=0.7)
                svg.rect(x, y + 7, 18, 5, fill=LEVEL, stroke="none")
            if kind == "done":
                _tick(svg, x + 14, y + 3)
        svg.text(x + 23, y + 10, text, 11.5)
        x += 23 + text_width(text, 11.5) + 15
    return y + 24
