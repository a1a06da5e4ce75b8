"""Rows that are sorted, sent to their experts, computed, sent back and put in their places: one real dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import Link, Network, RankFailed, book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.chapters.c12_experts.you_write import through_experts as the_books
from labkit.wire import Group

Cell = tuple[int, int, int]  # rank of its home, number there, expert
Reasons = dict[tuple[int, int], str]  # (rank, position) of a row: what is wrong with it, in a few letters
FEW = 6  # rows of a rank
ON_NODE = 4  # ranks of each of two nodes


def named_rows(group: Group, per_rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A few rows of this rank, each (rank, its number), and the expert of each; low numbers are chosen more often."""
    draw = torch.Generator().manual_seed(100 * seed + group.rank)
    chosen = torch.randint(per_rank * group.size, (2, FEW), generator=draw).min(0).values
    rows = torch.stack((torch.full((FEW,), float(group.rank)), torch.arange(FEW).float()), 1)
    return rows, chosen


class Watched:
    """Experts that multiply rows by ten. `came`: ((rank, number), expert) of each row that came to them."""

    def __init__(self) -> None:
        self.came: list[Any] = []

    def __call__(self, rows_md: Tensor, expert_m: Tensor) -> Tensor:
        self.came.extend(zip(rows_md.int().tolist(), expert_m.tolist(), strict=True))
        return 10 * rows_md


def trip(group: Group, journey: Callable[..., Any], per_rank: int, seed: int) -> tuple[Tensor, list[Any], Any]:
    """A few rows of this rank on a journey to experts that multiply by ten: their experts, what came here, results."""
    rows, expert = named_rows(group, per_rank, seed)
    ten_times = Watched()
    result = journey(rows, expert, ten_times, group, per_rank)
    return expert, ten_times.came, result


def two_nodes(latency: float, gbs: float) -> Network:
    """Two nodes of four ranks: GB/s of links inside a node, µs of latency between them; else 1 GB/s and 5 µs."""
    inside, between = Link(gbs * 1e9, 5e-6), Link(1e9, latency * 1e-6)
    return Network(nodes=2, ranks_per_node=ON_NODE, intra=inside, inter=between)


def far_apart(ranks: int) -> Network:
    """Each rank on a node of its own: 1 GB/s and 50 µs between any two."""
    return Network(nodes=ranks, ranks_per_node=1, inter=Link(1e9, 50e-6))


def yours(launch: Callable[..., Any], ranks: int, journey: Any, per_rank: int, seed: int = 0) -> Any:
    """Runs `trip` with the reader's journey, right or wrong, and draws what it really did; where a rank fails, what
    failed."""
    try:
        run = launch(trip, ranks, journey, per_rank, seed)
    except RankFailed as error:
        return book.wait_for(error)
    home = [[(r, n, int(e)) for n, e in enumerate(chosen)] for r, (chosen, _, _) in enumerate(run.results)]
    own = {(r, n): e for row in home for r, n, e in row}
    arrived = [[(*cell, own.get(tuple(cell), e)) for cell, e in came] for _, came, _ in run.results]
    back = [[_cell(row, own) for row in _rows(y)[:FEW]] for _, _, y in run.results]
    strangers: Reasons = {}
    for r, (_, came, _) in enumerate(run.results):
        for i, (cell, e) in enumerate(came):
            expert = own.get(tuple(cell), e)
            if expert // per_rank != r:
                strangers[r, i] = f"not {r}"
            elif e != expert:
                strangers[r, i] = f"as e{e}"
    astray = {
        arrived[r][i][:2]: f"on {r}" if why.startswith("not") else f"by e{run.results[r][1][i][1]}"
        for (r, i), why in strangers.items()
    }
    came_somewhere = {cell[:2] for row in arrived for cell in row}
    wrong: Reasons = {}
    for r, (_, _, y) in enumerate(run.results):
        for i, (row, cell) in enumerate(zip(_rows(y), back[r], strict=False)):
            if cell[:2] not in came_somewhere or any(x % 10 for x in row):
                wrong[r, i] = "raw"
            elif cell[:2] != (r, i):
                wrong[r, i] = f"≠ {r}.{i}"
            elif cell[:2] in astray:
                wrong[r, i] = astray[cell[:2]]
    lost = sum(max(0, FEW - len(row)) for row in back)
    if not (strangers or wrong or lost):
        return travelling(run, per_rank, journey)
    far = sum(why.startswith("not") for why in strangers.values())
    came = "What came to the experts of each rank"
    if not came_somewhere:
        came = "What came to the experts: nothing at any rank. No expert has computed a row."
    elif strangers:
        came += f". {far} rows are at a rank without their expert (framed)." * bool(far) or "."
        if len(strangers) > far:
            came += f" {len(strangers) - far} rows came with the number of another expert (framed)."
    else:
        came += ": every row is at the rank of its expert."
    moments: list[tuple[str, Sequence[Sequence[Cell]], Reasons, int]] = [
        ("At home: each rank's rows, in the order of its tokens. Below each row is its expert.", home, {}, 0),
        (came, arrived, strangers, 4),
        ("What your function returned." + f" {len(wrong)} results are wrong (framed)." * bool(wrong)
         + f" {lost} results are missing." * bool(lost), back, wrong, 6),
    ]  # fmt: skip
    counts = [[sum(e // per_rank == s for _, _, e in row) for s in range(len(home))] for row in home]
    wide = min(34.0, (WIDTH - 84) / max(1, *(len(row) for row in [*arrived, *home])))
    frames = [
        (_moment(words, rows, n > 0, n, counts, per_rank, wide, run.trace.badge, off), words)
        for words, rows, off, n in moments
    ]
    table = [
        {"rank": r, "came to its experts": len(arrived[r]), "wrong results": sum(at == r for at, _ in wrong)}
        for r in range(len(home))
    ]
    return book.play(frames, title="Your journey, as it really went", badge=run.trace.badge, rows=table, begin=2)


def _rows(y: Any) -> list[list[float]]:
    """The rows of what a journey returned; none where it returned something else."""
    return y.tolist() if isinstance(y, Tensor) and y.dim() == 2 and y.shape[1] == 2 else []


def _cell(row: Sequence[float], own: Mapping[tuple[int, int], int]) -> Cell:
    """What stands somewhere: the row, and its own expert."""
    name = _named(row)
    return (*name, own.get(name, -1))


def _named(row: Sequence[float]) -> tuple[int, int]:
    """(rank, number) of a row, computed or not; (-1, -1) for numbers that are no row's."""
    home, number = row if any(x % 10 for x in row) else [x / 10 for x in row]
    known = home in range(len(SERIES)) and number in range(FEW)
    return (int(home), int(number)) if known else (-1, -1)


def _key(reasons: Iterable[str]) -> str:
    """What the letters in the frames mean."""
    known = {"not": "not 1: its expert is not on rank 1.", "as": "as e1: it came as a row of e1.",
             "on": "on 1: computed on rank 1, which does not hold its expert.",
             "by": "by e1: computed as a row of e1.", "≠": "≠ 0.2: row 0.2 belongs here.",
             "raw": "raw: no expert has computed it."}  # fmt: skip
    return " ".join(known[kind] for kind in known if kind in {why.split()[0] for why in reasons})


def travelling(run: Any, per_rank: int, journey: Any = the_books) -> book.Player:
    """Ranks returned (the experts of their rows, what arrived, and the results). journey: whose it was."""
    whose = book.whose(journey)
    chosen: list[list[int]] = [experts.tolist() for experts, _, _ in run.results]
    arrived: list[list[Cell]] = [[(r, n, e) for (r, n), e in came] for _, came, _ in run.results]
    home = [[(r, n, e) for n, e in enumerate(one)] for r, one in enumerate(chosen)]
    ordered = [sorted(row, key=lambda cell: cell[2]) for row in home]
    counts = [[sum(e // per_rank == s for _, _, e in row) for s in range(len(home))] for row in home]
    few = len(home[0])
    ahead = ", ".join(f"{n} to rank {s}" for s, n in enumerate(counts[0]))
    busy = max(range(len(arrived)), key=lambda r: len(arrived[r]))
    moments: list[tuple[str, list[list[Cell]], bool]] = [
        (f"At home: each rank has {few} rows in the order of its tokens. Below each row is its expert.", home, False),
        ("Sorted by expert: what goes to the same rank lies side by side.", ordered, False),
        (f"Counts go ahead, one number to each rank. Rank 0 says: {ahead}.", ordered, False),
        (f"All-to-all: the rows are there. Rank {busy} got {len(arrived[busy])}, so an all-to-all of equal parts "
         "would not do.", arrived, False),
        ("Computed: every row has gone through its expert.", arrived, True),
        ("All-to-all: each rank sends back as many as it got. The results are home, still sorted.", ordered, True),
        ("Put in place: the sorting is undone, and each result is where its token is.", home, True),
    ]  # fmt: skip
    wide = min(34.0, (WIDTH - 84) / max(1, *(len(row) for row in [*arrived, *home])))
    frames = [
        (_moment(words, rows, done, n, counts, per_rank, wide, run.trace.badge), words)
        for n, (words, rows, done) in enumerate(moments)
    ]
    table = [
        {"from": f"rank {r}", **{f"rows to rank {s}": n for s, n in enumerate(row)}} for r, row in enumerate(counts)
    ]
    return book.play(
        frames, title=f"{whose.capitalize()} journey to the experts", badge=run.trace.badge, rows=table, still=3
    )


def _moment(
    words: str, rows: Sequence[Sequence[Cell]], done: bool, n: int, counts: Sequence[Sequence[int]], per_rank: int,
    wide: float, badge: str, off: Mapping[tuple[int, int], str] | None = None,
) -> str:  # fmt: skip
    """off: (rank, position) of rows with which something is wrong, and what."""
    svg = Svg(WIDTH, "Rows travel to their experts", words)
    y = max(heading(svg, badge, words), 72.0) + 4
    for r, row in enumerate(rows):
        svg.text(8, y + 18, f"rank {r}", 12, bold=True)
        svg.text(8, y + 33, f"experts {r * per_rank}" + (f" to {(r + 1) * per_rank - 1}" if per_rank > 1 else ""), 9)
        x, before = 84.0, None
        for i, (home, number, expert) in enumerate(row):
            there = expert // per_rank
            if n in (1, 2, 5) and before is not None and there != before:
                svg.line(x - 1, y, x - 1, y + 38, width=2.5)
            if n in (3, 4) and before is not None and home != before:
                svg.line(x - 1, y, x - 1, y + 38, width=2.5)
            before = there if n in (1, 2, 5) else home
            look = SERIES[max(home, 0)]
            svg.rect(x + 2, y + 2, wide - 5, 22, look.colour, look.hatch, ON_COLOUR,
                     stroke_width=2.4 if done and not off else 0.7)  # fmt: skip
            size = 10.5 if wide > 26 else 8
            svg.rect(x + wide / 2 - 0.29 * wide, y + 6, 0.55 * wide, 14, look.colour)
            name = f"{home}.{number}" if home >= 0 else "?"
            svg.text(x + wide / 2, y + 17, name, size, "middle", on_colour=True)
            if off and (r, i) in off:
                svg.rect(x, y, wide - 1, 54, stroke_width=2.4, dash="4 2")
                svg.text(x + wide / 2, y + 49, off[r, i], min(size, 9.5), "middle", bold=True)
            svg.text(x + wide / 2, y + 36, f"e{expert}" if expert >= 0 else "?", size, "middle")
            x += wide
        if n == 2:
            told = [f"{c} to rank {s}" if len(counts) <= 4 else f"{c}" for s, c in enumerate(counts[r])]
            svg.text(min(x + 14, 440), y + 18, "counts: " + ", ".join(told), 10.5)
        y += 46 if off is None else 60
    note = "1.5: row 5 of rank 1. e3: its expert is number 3. " + (
        "A dashed frame: wrong." if off else "A thick frame: computed." if off is None else ""
    )
    if off:
        note += "   " + _key(off.values())
    svg.text(8, y + 10, note, 10.5)
    return svg.render(y + 20)
