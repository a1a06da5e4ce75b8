"""What chapter 12 shows: parameters against work, bytes of a dispatch, capacity, gradients and slow links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.matrix import shade
from labkit.book.drawing.style import GREEN, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.chapters.c12_experts.capacity import (
    Paid as Paid,
    costs as costs,
    dropped as dropped,
    paid as paid,
    queue as queue,
    trade as trade,
    two_queues as two_queues,
    weight_lost as weight_lost,
)
from labkit.chapters.c12_experts.flying import flying as flying, rows_by_rank
from labkit.chapters.c12_experts.layers import Told
from labkit.chapters.c12_experts.same import length_of_a_row
from labkit.chapters.c12_experts.slow_links import (
    crossing as crossing,
    free as free,
    narrow as narrow,
    shared_expert as shared_expert,
)
from labkit.cost.units import format_bytes, format_seconds
from labkit.models import GPT
from labkit.models.moe import MoE


def flew(run: Any) -> str:
    """Load, drops and the slowest rank, in words."""
    told: list[Told] = run.results
    load, rows = told[0].load, rows_by_rank(told)
    dropped, chosen = sum(load) - sum(rows), sum(load)
    hot, slow = max(range(len(load)), key=load.__getitem__), max(range(len(rows)), key=rows.__getitem__)
    even = told[0].row * sum(rows) / len(rows)
    return (
        f"Expert {hot} was chosen {cost.expert_imbalance(load):.2g} times as often as the mean. "
        f"Rank {slow} computes longest, {format_seconds(told[0].row * rows[slow], 3)}; if this work were shared out "
        f"evenly, each rank would need {format_seconds(even, 3)}. "
        + (f"{dropped / chosen:.0%} of the choices are dropped. " if dropped else "No choice is dropped. ")
        + f"The whole layer takes {format_seconds(run.trace.duration, 3)} (emulated)."
    )


# 1: parameters and work ------------------------------------------------------------------------------------------


def conditional(named: Sequence[tuple[str, Sequence[int]]], experts: int, dense: int, each: int) -> book.Player:
    """A token at a time: a dense feed-forward part computes with all of its weights, a mixture with those of a few.

    named: tokens and the experts that each chose. dense, each: parameters of the dense part and of an expert.
    """
    frames = []
    for n, (token, chosen) in enumerate(named):
        some = " and ".join(map(str, sorted(chosen)))
        words = (
            f"Token {n}, “{token}”, uses experts {some}: {len(chosen) * each:,} of their {experts * each:,} parameters."
            f" The dense part uses all of its {dense:,}."
        )
        frames.append((_lit(words, token, chosen, experts, dense, each), words))
    rows = [{"token": token, "experts": ", ".join(map(str, chosen))} for token, chosen in named]
    return book.play(frames, title="Which weights a token uses", badge="measured", rows=rows, still=0)


def token_by_token(model: GPT, inputs_bt: Tensor, few: int = 8) -> book.Player:
    """The first tokens of what `model` has read last, with the experts that its router has chosen."""
    layer = next(m for m in model.modules() if isinstance(m, MoE))
    assert layer.routing is not None
    each = sum(p.numel() for p in layer.experts["0"].parameters())
    d = model.config.width
    dense = 2 * d * d * model.config.expansion + d * (model.config.expansion + 1)
    read = [chr(n).replace(" ", "␣") if 32 <= n < 127 else "·" for n in inputs_bt[0, :few].tolist()]
    named = list(zip(read, layer.routing.experts_nk[:few].tolist(), strict=True))
    return conditional(named, layer.config.experts, dense, each)


def _lit(words: str, token: str, chosen: Sequence[int], experts: int, dense: int, each: int) -> str:
    svg = Svg(WIDTH, "Which weights a token uses", words)
    top = max(heading(svg, "measured", words), 72.0) + 8
    unit = 150 * 130 / dense  # area of a parameter
    svg.text(8, top + 4, "dense feed-forward part", 11.5, bold=True)
    svg.rect(60, top + 16, 150, 130, ORANGE, "/", ON_COLOUR)
    svg.text(8, top + 84, f"“{token}” →", 12)
    svg.text(135, top + 164, "all weights at work", 10.5, "middle")
    left, columns = 330.0, min(8, -(-experts // 2))
    svg.text(left - 62, top + 4, f"mixture of {experts} experts", 11.5, bold=True)
    wide = min(92.0, (WIDTH - left - 10) / columns - 8)
    high = each * unit / wide
    svg.text(left - 62, top + 84, f"“{token}” →", 12)
    for e in range(experts):
        x, y = left + (e % columns) * (wide + 8), top + 16 + (e // columns) * (high + 24)
        lit = e in chosen
        svg.rect(x, y, wide, high, ORANGE if lit else "none", "/" if lit else "", ON_COLOUR if lit else None)
        svg.text(x + wide / 2, y + high + 13, f"{e}" + (" at work" if lit and wide > 40 else ""), 10, "middle", lit)
    bottom = top + 16 + -(-experts // columns) * (high + 24)
    svg.text(left - 62, bottom + 12, "equal areas are equally many weights; hatched ones are at work", 10.5)
    return svg.render(max(bottom, top + 164) + 22)


def growth(sizes: Callable[[int], tuple[int, float]]) -> book.Figure:
    """sizes(experts) -> (parameters, operations of a token): a block for each layer; two experts are at work."""
    counted = {n: sizes(n) for n in book.in_turn((2, 4, 8, 16, 32), "a layer of {} experts")}
    (fewest, first), (most, last) = min(counted.items()), max(counted.items())
    said = (
        f"A layer of {most} experts has {last[0] / first[0]:.3g} times the parameters of one with {fewest}. For a "
        f"token PyTorch counts {last[1] / first[1]:.3g} times the operations."
    )
    svg = Svg(WIDTH, "More experts, two choices", said)
    top, side, room = max(heading(svg, "measured", said), 56.0) + 8, 16.0, (WIDTH - 20) / len(counted)
    for k, (n, (held, done)) in enumerate(counted.items()):
        left = 10 + k * room
        for e in range(n):
            x, y = left + e % 8 * side, top + 26 + e // 8 * side
            used = e in (0, 3 % n)
            svg.rect(
                x, y, side - 2, side - 2, ORANGE if used else "none", "/" if used else "", ON_COLOUR if used else None
            )
        svg.text(left, top + 14, f"{n} experts", 12, bold=True)
        svg.text(left, top + 104, f"parameters ×{held / first[0]:.3g}", 11)
        svg.text(left, top + 120, f"operations ×{done / first[1]:.3g}", 11)
    svg.text(10, top + 144, "A box: the parameters of an expert. Hatched: the two experts that a token uses.", 10.5)
    rows: list[Row] = [
        {"experts": n, "parameters": held, "operations of a token": done} for n, (held, done) in counted.items()
    ]
    return book.Figure("More experts, two choices", "measured", said, rows, svg.render(top + 154))


# 3: bytes --------------------------------------------------------------------------------------------------------


def there_and_back(run: Any, width: int) -> book.Figure:
    """Bytes from rank to rank: on the way there, on the way back, and both; the busiest rank is framed."""
    title, there = "Bytes from rank to rank", way_there(run, width)
    both = [[int(n) for n in row] for row in run.trace.bytes_between()]
    back = [[n - m for n, m in zip(*rows, strict=True)] for rows in zip(both, there, strict=True)]
    rank, received, times = busiest(there)
    said = "A line shows what a rank sends, a column what it receives. " + (
        f"On the way there rank {rank} receives most, {format_bytes(received, 3)}, which is {times:.2g} times the mean."
        if times >= 1.05
        else "On the way there all ranks receive nearly equally much."
    )
    if times >= 1.05:
        said += f" There and back, the busiest rank receives {busiest(both)[2]:.2g} times the mean."
    svg = Svg(WIDTH, title, said)
    top, room = max(heading(svg, "measured", said), 56.0) + 8, WIDTH / 3
    size, most = len(both), max(max(map(max, table)) for table in (there, back, both))
    cell, tall = min(46.0, (room - 60) / size), min(34.0, 240 / size)
    named = {"there": there, "back": back, "both": both}
    for k, (name, table) in enumerate(named.items()):
        left, up = k * room + 50, top + 40
        svg.text(k * room + 8, top + 10, f"{name}, in kB", 11.5, bold=True)
        for r, row in enumerate(table):
            svg.text(left - 6, up + (r + 0.5) * tall + 4, f"rank {r}", 10.5, "end")
            svg.text(left + (r + 0.5) * cell, up - 6, f"to {r}" if cell > 30 else f"{r}", 10.5, "middle")
            for c, n in enumerate(row):
                at = left + c * cell, up + r * tall
                svg.rect(*at, cell - 2, tall - 2, shade(n, most) if r != c else "none", stroke_width=0.4)
                svg.text(at[0] + cell / 2 - 1, at[1] + tall / 2 + 4, f"{n / 1e3:.0f}" if r != c else "-",
                         11 if cell > 34 else 8, "middle", on_colour=r != c)  # fmt: skip
        sends = name == "back"  # there the busiest one is the rank that they leave
        who, got, more = busiest(list(zip(*table, strict=True)) if sends else table)
        if more >= 1.05 and sends:
            svg.rect(left - 2, up + who * tall - 2, size * cell + 2, tall + 2, stroke_width=2.4)
        elif more >= 1.05:
            svg.rect(left + who * cell - 2, up - 2, cell + 2, size * tall + 2, stroke_width=2.4)
        words = f"rank {who} {'sends' if sends else 'receives'} {format_bytes(got, 3)}, {more:.2g} x the mean"
        svg.text(k * room + 8, up + size * tall + 18, words, 10.5)
    rows: list[Row] = [
        {"way": name, "from": f"rank {r}", **{f"to {c}": n for c, n in enumerate(row)}}
        for name, table in named.items()
        for r, row in enumerate(table)
    ]
    return book.Figure(title, "measured", said, rows, svg.render(top + 40 + size * tall + 30))


def busiest(table: Sequence[Sequence[float]]) -> tuple[int, int, float]:
    """Of a matrix of bytes the rank that receives most, its bytes, and how many times the mean they are."""
    received = [sum(column) for column in zip(*table, strict=True)]
    rank = max(range(len(received)), key=received.__getitem__)
    return rank, int(received[rank]), received[rank] * len(received) / sum(received)


def rows_between(told: Sequence[Told]) -> list[list[int]]:
    """How many rows go from each rank (row) to each rank, those that stay included."""
    size, each = len(told), len(told[0].load) // len(told)
    rows = [[0] * size for _ in told]
    for r, one in enumerate(told):
        for chosen, kept in zip(one.experts, one.kept, strict=True):
            for e, yes in zip(chosen, kept, strict=True):
                rows[r][e // each] += yes
    return rows


def way_there(run: Any, width: int, itemsize: int = 4, number: int = cost.COUNT_BYTES) -> list[list[int]]:
    """From rank to rank the bytes of counts, rows and the numbers of their experts. Ranks returned `Told`."""
    row = width * itemsize + number
    return [
        [number + n * row if s != r else 0 for s, n in enumerate(own)]
        for r, own in enumerate(rows_between(run.results))
    ]


def bytes_of(run: Any, width: int, itemsize: int = 4, number: int = cost.COUNT_BYTES) -> list[int]:
    """By the formula: what each rank sends in a forward pass. Ranks returned `Told`.

    A count for each other rank (`number` bytes); a row and the number of its expert for each choice that leaves;
    results of others' rows.
    """
    told: list[Told] = run.results
    size, rows = len(told), rows_between(told)
    out = [sum(row) - row[r] for r, row in enumerate(rows)]
    into = [sum(row[r] for row in rows) - rows[r][r] for r in range(size)]
    row = width * itemsize
    return [(size - 1) * number + out[r] * (row + number) + into[r] * row for r in range(size)]


# 5: gradients ----------------------------------------------------------------------------------------------------


def grid(size: int, per_rank: int) -> book.Player:
    """Ranks as a grid: whose tokens are in a gradient, before it is summed, and after. per_rank: experts."""
    across = length_of_a_row(size)
    rows, every = size // across, _ranks(range(size))
    who = [
        ("Tokens travel inside a row of the grid, so an expert's gradient has the tokens of its whole row.", "row"),
        (f"Sum it over its column, the replicas of these experts: now it has the tokens of {every}."
         if rows > 1 else f"Nobody else has the same experts: its gradient has the tokens of {every} already.",
         "column"),
        ("The router and all else are on every rank, and their gradient has the tokens of this rank alone.", "own"),
        (f"Sum it over all ranks: both kinds now have the tokens of {every}.", "all"),
    ]  # fmt: skip
    frames = [(_grid(words, kind, rows, across, per_rank), words) for words, kind in who]
    table = [
        {
            "rank": r,
            "holds": _experts(r % across, per_rank),
            "replicas": ", ".join(map(str, range(r % across, size, across))),
        }
        for r in range(size)
    ]
    return book.play(frames, title="Whose tokens are in a gradient", badge="simulated", rows=table, still=1)


def _ranks(ranks: range) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranks[0]} {'and' if len(ranks) == 2 else 'to'} {ranks[-1]}"


def _experts(place: int, per_rank: int) -> str:
    first, last = place * per_rank, (place + 1) * per_rank - 1
    return f"expert {first}" if first == last else f"experts {first}{' and ' if last == first + 1 else ' to '}{last}"


def _grid(words: str, kind: str, rows: int, across: int, per_rank: int) -> str:
    svg = Svg(WIDTH, "Whose tokens are in a gradient", words)
    top = max(heading(svg, "simulated", words), 72.0) + 12
    wide, high, size = min(170.0, (WIDTH - 40) / across), 84.0, rows * across
    experts = kind in ("row", "column")
    for r in range(size):
        left, up = 20 + r % across * wide, top + r // across * high
        svg.rect(left + 6, up + 5, wide - 12, high - 12, radius=4)
        svg.text(left + wide / 2, up + 20, f"rank {r}", 11, "middle", bold=True)
        row = range(r // across * across, r // across * across + across)
        held = _experts(r % across, per_rank)
        held = held if wide > 90 else held.replace("experts ", "e ").replace("expert ", "e ").replace(" and ", ", ")
        inside = {"row": row, "column": range(size), "own": range(r, r + 1), "all": range(size)}[kind]
        colour = GREEN if experts else ORANGE
        svg.rect(left + 12, up + 27, wide - 24, 42, colour, stroke=ON_COLOUR, stroke_width=0.7)
        svg.text(left + wide / 2, up + 43, held if experts else "router", 10, "middle", on_colour=True)
        tokens = f"tokens of {_ranks(inside)}" if wide > 140 else _ranks(inside)
        svg.text(left + wide / 2, up + 59, tokens, 9.5 if wide > 90 else 8, "middle", on_colour=True)
    if kind == "row":
        for y in range(rows):
            svg.rect(18, top + y * high, across * wide + 4, high - 2, stroke_width=2.5, dash="7 4", radius=6)
    elif kind == "column":
        for x in range(across):
            svg.rect(20 + x * wide + 2, top - 2, wide - 4, rows * high, stroke_width=2.5, dash="7 4", radius=6)
    elif kind == "all":
        svg.rect(16, top - 2, across * wide + 8, rows * high, stroke_width=2.5, dash="7 4", radius=6)
    svg.text(
        20, top + rows * high + 14, "Each box: a parameter, and the ranks whose tokens its gradient has seen.", 10.5
    )
    return svg.render(top + rows * high + 24)


def compared(run: Any, optimizer: str, by: str = "") -> book.Figure:
    """Ranks returned (by step, how far experts' weights and all others are from one device's; gradient's factor)."""
    title, kinds = "Distance to one device's weights, over how far these moved", ("experts", "all other weights")
    steps, factor = len(run.results[0][0]), run.results[0][1]
    off = [max(told[-1][k] for told, _ in run.results) for k in (0, 1)]
    times = "" if factor == 1 else f"{factor:.3g} times "
    said = f"An expert's gradient is {times}that of one device. After {steps} steps of {optimizer}, "
    if max(off) < 1e-6:
        said += "all weights are those of one device, up to rounding."
    else:
        said += f"the experts' weights are off by {off[0]:.2g} times the distance that they should have moved."
    if by == "the replicas" and length_of_a_row(len(run.results)) == len(run.results):
        said += " A column is a single rank here, so an average over it divides by 1."
    svg = Svg(WIDTH, title, said)
    top, left = max(heading(svg, "measured", said), 56.0) + 24, 130.0
    unit = (WIDTH - left - 120) / max(1.0, *off)
    for k, (kind, far) in enumerate(zip(kinds, off, strict=True)):
        y = top + 40 * k
        svg.text(8, y + 19, kind, 11.5, bold=True)
        svg.rect(left, y + 4, max(1.5, far * unit), 22, (GREEN, ORANGE)[k], ("x", "/")[k], ON_COLOUR, stroke_width=0.7)
        words = f"{far:.2g}" if far >= 1e-6 else f"{far:.0e}: rounding"
        svg.text(left + max(1.5, far * unit) + 6, y + 19, words, 11.5)
    svg.line(left + unit, top - 8, left + unit, top + 76, dash="6 3", width=2)
    svg.text(left + unit, top - 12, "1: as far as they should have moved", 10.5, "end" if unit > 300 else "start")
    rows: list[Row] = [
        {"after step": n + 1, **{kind: max(told[n][k] for told, _ in run.results) for k, kind in enumerate(kinds)}}
        for n in range(steps)
    ]
    return book.Figure(title, "measured", said, rows, svg.render(top + 86))
