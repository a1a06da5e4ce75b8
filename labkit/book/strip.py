"""A replay as pictures side by side, and in words: its form on a page that cannot be stepped through."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.book.cells import Grid, draw_cells, draw_moves, key, label
from labkit.book.figure import WIDTH, Figure, heading
from labkit.book.recording import Flaw, Frame, Move, Replay
from labkit.book.svg import Svg
from labkit.book.tables import Row
from labkit.book.units import listing, plural, seconds_text


def strip(replay: Replay, frames: Sequence[Frame] | None = None) -> Figure:
    """The rounds of `replay` (or the given frames) as small pictures, one table row per round and rank below."""
    shown = list(replay.rounds if frames is None else frames)
    cells = len(replay.ranks) * max(replay.chunks, 1)  # pictures of many cells are few: a notebook should stay small
    title = f"{replay.name} {replay.algorithm}".strip() + ", round by round"
    picked = spread(shown, max(3, min(9, 400 // cells))) if frames is None else list(range(len(shown)))
    sentence = replay.sentence
    if len(picked) < len(shown):
        sentence += f" The pictures show rounds {listing([str(i) for i in picked])}."
    return Figure(
        title, replay.badge, sentence, rows(replay, shown), svg=picture(replay, shown, picked, title, sentence)
    )


def spread(items: Sequence[Frame], most: int) -> list[int]:
    """At most `most` positions of `items`, the first and the last among them, evenly spread."""
    if len(items) <= most:
        return list(range(len(items)))
    return sorted({round(k * (len(items) - 1) / (most - 1)) for k in range(most)})


def words(move: Move) -> str:
    """A message in words: rank 0 adds chunk 2 from rank 3."""
    what = ("chunk " if len(move.chunks) == 1 else "chunks ") + listing([str(c) for c in move.chunks])
    verb = "sets aside" if move.aside else "adds" if move.combine else "takes"
    return f"rank {move.dst} {verb} {what} from rank {move.src}"


def describe(replay: Replay, frames: Sequence[Frame], index: int) -> str:
    """Frame `index` as a sentence: what arrived, and what is there now."""
    frame = frames[index]
    at = f"Step {index} of {len(frames) - 1}, at {seconds_text(frame.time - replay.start)}: "
    if not frame.moves:
        return at + ("nothing has arrived yet." if index == 0 else f"what was set aside is added. {replay.verdict}")
    told = []
    for move in frame.moves[:4]:
        row = frame.held[replay.ranks.index(move.dst)]
        now = listing([label(row[c]) for c in move.chunks[:4]])
        told.append(f"{words(move)} (now {now})")
    more = f"; and {plural(len(frame.moves) - 4, 'message')} more" if len(frame.moves) > 4 else ""
    end = f" {replay.verdict}" if index == len(frames) - 1 else ""
    return at + "; ".join(told) + more + "." + end


def rows(replay: Replay, frames: Sequence[Frame]) -> list[Row]:
    """A row per frame and rank: what it received and what its chunks hold."""
    table: list[Row] = []
    for index, frame in enumerate(frames):
        for i, rank in enumerate(replay.ranks):
            got = [
                f"{'aside ' if m.aside else '+' if m.combine else '='}{','.join(map(str, m.chunks))} from {m.src}"
                for m in frame.moves
                if m.dst == rank
            ]
            table.append({
                "step": index, "time (ms)": 1e3 * (frame.time - replay.start), "rank": rank,
                "received": "; ".join(got) or "-", **{f"chunk {c}": label(h) for c, h in enumerate(frame.held[i])},
            })  # fmt: skip
    return table


def flaws_by_cell(replay: Replay) -> dict[tuple[int, int], Flaw]:
    return {(replay.ranks.index(f.rank), f.chunk): f for f in replay.flaws}


def picture(replay: Replay, frames: Sequence[Frame], picked: Sequence[int], title: str, sentence: str) -> str:
    """Small multiples, 760 pixels wide."""
    svg = Svg(WIDTH, title, sentence)
    y = key(svg, heading(svg, replay.badge, sentence), bool(replay.flaws), False) + 6
    chunks, size = max(replay.chunks, 1), len(replay.ranks)
    columns = 1 if chunks > 10 else 2 if chunks > 5 else 3
    pitch = (WIDTH / columns - 34 - 10) / chunks
    gap = min(50, max(6, 0.3 * pitch))
    cell = min(90, pitch - gap)
    height, space = (20, 6) if size <= 8 else (14, 3)
    tall = size * (height + space) + 40
    flaws = flaws_by_cell(replay)
    for place, index in enumerate(picked):
        frame = frames[index]
        left, top = (place % columns) * WIDTH / columns, y + (place // columns) * tall
        name = "before" if index == 0 else f"round {index}" if frame.moves else "then"
        svg.text(left + 8, top + 10, name, 12, bold=True)
        svg.text(left + 70, top + 10, seconds_text(frame.time - replay.start), 11)
        grid = Grid(left + 34, top + 18, cell, height, gap, space, 10.5 if cell > 24 else 9)
        for i, rank in enumerate(replay.ranks):
            svg.text(grid.x - 6, grid.place(i, 0)[1] + height / 2 + 4, str(rank), 11, "end")
        draw_cells(svg, grid, replay, frame, flaws if index == len(frames) - 1 else {}, hover=False)
        draw_moves(svg, grid, replay, frame, [])
    panels = -(-len(picked) // columns)
    return svg.render(y + panels * tall)
