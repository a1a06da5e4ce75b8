"""A replay as pictures side by side, and in words: its form on a page that cannot be stepped through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labkit.book.drawing.cells import Grid, draw_cells, draw_moves, key, label
from labkit.book.drawing.figure import WIDTH, Figure, heading
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing, plural, seconds_text
from labkit.book.stepping.recording import Flaw, Frame, Move, Replay

MOST_SHOWN = 16  # ranks, and chunks


def strip(recording: Replay, frames: Sequence[Frame] | None = None) -> Figure:
    """The rounds of `recording` (or the given frames of it) as small pictures, one table row per round and rank."""
    chosen = recording.rounds if frames is None else tuple(frames)
    numbers = [_number(recording, frame) for frame in chosen]
    replay = replace(recording, rounds=chosen).crop(MOST_SHOWN)
    cells = len(replay.ranks) * max(replay.chunks, 1)  # pictures of many cells are few: a notebook should stay small
    picked = spread(chosen, max(3, min(9, 400 // cells))) if frames is None else list(range(len(chosen)))
    title = f"{replay.name} {replay.algorithm}".strip() + ", round by round"
    sentence = recording.sentence
    if len(replay.ranks) < len(recording.ranks) or replay.chunks < recording.chunks:
        sentence += f" Only the first {MOST_SHOWN} ranks and chunks are shown."
    if len(picked) < len(chosen):
        sentence += f" The pictures show rounds {listing([str(numbers[i]) for i in picked])}."
    panels = [(numbers[i], replay.rounds[i]) for i in picked]
    return Figure(
        title, replay.badge, sentence, rows(replay, list(zip(numbers, replay.rounds, strict=True))),
        svg=picture(replay, panels, len(recording.rounds) - 1, title, sentence),
    )  # fmt: skip


def _number(recording: Replay, frame: Frame) -> int:
    """Which round, or which frame, of the recording this is."""
    return recording.rounds.index(frame) if frame in recording.rounds else recording.frames.index(frame)


def spread(items: Sequence[Frame], most: int) -> list[int]:
    """At most `most` positions of `items`, the first and the last among them, evenly spread."""
    if len(items) <= most:
        return list(range(len(items)))
    return sorted({round(k * (len(items) - 1) / (most - 1)) for k in range(most)})


def _round(replay: Replay, frames: Sequence[Frame], index: int) -> str:
    """Which round of the algorithm a step is, counted from 0 as its loop does; "" where steps are no rounds."""
    return f" (round {index - 1})" if tuple(frames) == replay.rounds and frames[index].moves else ""


def words(move: Move, chunks: int) -> str:
    """A message in words: rank 0 adds chunk 2 from rank 3; or the whole tensor, where it is not cut into chunks."""
    what = ("chunk " if len(move.chunks) == 1 else "chunks ") + listing([str(c) for c in move.chunks])
    what = what if chunks > 1 else "the tensor"
    verb = "sets aside" if move.aside else "adds" if move.combine else "takes"
    return f"rank {move.dst} {verb} {what} from rank {move.src}"


def describe(replay: Replay, frames: Sequence[Frame], index: int) -> str:
    """Frame `index` as a sentence: what arrived, and what is there now."""
    frame = frames[index]
    which = f"Step {index} of {len(frames) - 1}{_round(replay, frames, index)}"
    apart = len({seconds_text(move.arrived - replay.start) for move in frame.moves}) > 1  # some came earlier
    at = f"{which}, {'by' if apart else 'at'} {seconds_text(frame.time - replay.start)}: "
    if not frame.moves:
        return at + ("nothing has arrived yet." if index == 0 else f"what was set aside is added. {replay.verdict}")
    told = []
    for move in sorted(frame.moves, key=lambda move: move.dst)[:4]:
        row = frame.held[replay.ranks.index(move.dst)]
        now = listing(list(dict.fromkeys(label(row[c], replay.mark) for c in move.chunks[:4])))
        told.append(words(move, replay.chunks) + (f" (now {now})" if not move.aside else ""))
    more = f"; and {plural(len(frame.moves) - 4, 'message')} more" if len(frame.moves) > 4 else ""
    end = f" {replay.verdict}" if index == len(frames) - 1 else ""
    return at + "; ".join(told) + more + "." + end


def rows(replay: Replay, frames: Sequence[tuple[int, Frame]]) -> list[Row]:
    """A row per (numbered) frame and rank: what it received and what its chunks hold."""
    table: list[Row] = []
    for index, frame in frames:
        for i, rank in enumerate(replay.ranks):
            got = [
                f"{'aside ' if m.aside else '+' if m.combine else '='}{','.join(map(str, m.chunks))} from {m.src}"
                for m in frame.moves
                if m.dst == rank
            ]
            names = [f"chunk {c}" for c in range(replay.chunks)] if replay.chunks > 1 else ["tensor"]
            told = [label(held, replay.mark) for held in frame.held[i]]
            table.append({
                "step": index, "time (ms)": 1e3 * (frame.time - replay.start), "rank": rank,
                "received": "; ".join(got) or "-", **dict(zip(names, told, strict=True)),
            })  # fmt: skip
    return table


def flaws_by_cell(replay: Replay) -> dict[tuple[int, int], Flaw]:
    return {(replay.ranks.index(f.rank), f.chunk): f for f in replay.flaws}


def picture(replay: Replay, panels: Sequence[tuple[int, Frame]], last: int, title: str, sentence: str) -> str:
    """Small multiples of numbered frames, 760 pixels wide. last: the number of the frame at which flaws count."""
    svg = Svg(WIDTH, title, sentence)
    y = key(svg, heading(svg, replay.badge, sentence), replay, False) + 6
    chunks, size = max(replay.chunks, 1), len(replay.ranks)
    columns = 1 if chunks > 10 else 2 if chunks > 5 else 3
    pitch = (WIDTH / columns - 34 - 10) / chunks
    gap = min(50, max(6, 0.3 * pitch))
    cell = min(90, pitch - gap)
    height, space = (20, 6) if size <= 8 else (14, 3)
    tall = size * (height + space) + 40
    flaws = flaws_by_cell(replay)
    for place, (index, frame) in enumerate(panels):
        left, top = (place % columns) * WIDTH / columns, y + (place // columns) * tall
        name = "before" if index == 0 else f"round {index - 1}" if frame.moves else "then"
        svg.text(left + 8, top + 10, name, 12, bold=True)
        svg.text(left + 70, top + 10, seconds_text(frame.time - replay.start), 11)
        grid = Grid(left + 34, top + 18, cell, height, gap, space, 10.5 if cell > 24 else 9)
        for i, rank in enumerate(replay.ranks):
            svg.text(grid.x - 6, grid.place(i, 0)[1] + height / 2 + 4, str(rank), 11, "end")
        draw_cells(svg, grid, replay, frame, flaws if index == last else {}, hover=False)
        draw_moves(svg, grid, replay, frame, [])
    return svg.render(y + -(-len(panels) // columns) * tall)
