"""What chapter 12 shows: parameters against work, bytes of a dispatch, capacity, gradients and slow links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.matrix import shade
from labkit.book.drawing.style import BLUE, GREEN, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.chapters.c12_experts.flying import flying as flying, rows_by_rank
from labkit.chapters.c12_experts.layers import Told
from labkit.chapters.c12_experts.same import length_of_a_row
from labkit.chapters.c12_experts.travel import ON_NODE
from labkit.cost.units import US, format_bytes, format_seconds
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
            f"Token {n}, “{token}”, uses experts {some}: {len(chosen) * each:,} of {experts * each:,} parameters. "
            f"The dense part uses all of its {dense:,}."
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


# 4: capacity -----------------------------------------------------------------------------------------------------


def queue(line: Tensor, slots: int) -> book.Player:
    """Choices come one after the other, and each takes the next place of its expert, or finds it full."""
    expert_m: list[int] = line.tolist()
    experts = max(expert_m) + 1
    frames, moments = [], sorted({0, 1, 2, 3, *range(8, len(expert_m), 8), len(expert_m)})
    for seen in moments:
        counts = [sum(e == x for x in expert_m[:seen]) for e in range(experts)]
        over = sum(max(0, n - slots) for n in counts)
        if 0 < seen <= 3:
            e = expert_m[seen - 1]
            words = f"Choice {seen - 1} wants expert {e} and gets place {counts[e] - 1} there, because "
            words += f"{counts[e] - 1 or 'no'} earlier one{'s' * (counts[e] != 2)} wanted the same."
        else:
            words = f"After {seen} of {len(expert_m)} choices: {over} have come to a full expert, and are dropped."
        frames.append((_queues(words, counts, slots), words))
    counts = [sum(e == x for x in expert_m) for e in range(experts)]
    rows = [{"expert": e, "chosen": n, "dropped": max(0, n - slots)} for e, n in enumerate(counts)]
    return book.play(frames, title="A place in the queue", badge="simulated", rows=rows)


def _queues(words: str, counts: Sequence[int], slots: int) -> str:
    svg = Svg(WIDTH, "A place in the queue", words)
    top, left = max(heading(svg, "simulated", words), 72.0) + 6, 84.0
    step = min(17.0, (WIDTH - left - 10) / 42)
    for e, n in enumerate(counts):
        y = top + 24 * e
        svg.text(8, y + 14, f"expert {e}", 11)
        for place in range(max(n, slots)):
            inside = place < slots
            if place < n:
                svg.rect(left + place * step, y + 2, step - 2, 16, BLUE if inside else "#ffffff", "" if inside else "x",
                         ON_COLOUR, stroke_width=0.7)  # fmt: skip
            else:
                svg.rect(left + place * step, y + 2, step - 2, 16, stroke_width=0.6, dash="2 2")
    high = top + 24 * len(counts)
    x = left + slots * step - 1
    svg.line(x, top - 2, x, high, width=2.2, dash="6 3")
    svg.text(x + 5, high + 12, f"capacity: places 0 to {slots - 1}", 10.5)
    svg.text(8, high + 28, "filled: computed. Crossed: dropped. Dotted: a free slot.", 10.5)
    return svg.render(high + 38)


def two_queues(by_position: Any, by_weight: Any) -> book.Figure:
    """The queue of the busiest expert in both orders: a bar for each choice, as high as its gate weight."""
    title, told = "One queue, two orders", by_position.results
    load = [sum(column) for column in zip(*(one.load for one in told), strict=True)]
    hot, lost = max(range(len(load)), key=load.__getitem__), [dropped(run) for run in (by_position, by_weight)]
    queue = [
        (k, r, n)
        for r, one in enumerate(told)
        for n, row in enumerate(one.experts)
        for k, e in enumerate(row)
        if e == hot
    ]
    slots = sum(told[r].kept[n][k] for k, r, n in queue)
    weight = {(k, r, n): told[r].weights[n][k] for k, r, n in queue}
    said = (
        f"Expert {hot} was chosen {len(queue)} times and has {slots} places. By position, rank 0 loses {lost[0][0]} "
        f"choices in all, and rank {len(told) - 1} loses {lost[0][-1]}. By weight it is {lost[1][0]} and {lost[1][-1]}."
    )
    svg = Svg(WIDTH, title, said)
    top, left, high = max(heading(svg, "measured", said), 56.0) + 8, 10.0, 70.0
    step = min(12.0, (WIDTH - 2 * left) / len(queue))
    apart = 1 if step > 7 else max(1, round(9 / step))
    below = "the number below its rank" + " (not below all)" * (apart > 1)
    orders = {"by position": sorted(queue), "by weight": sorted(queue, key=lambda c: (-weight[c], c))}
    for name, order in orders.items():
        svg.text(left, top + 10, f"{name}: a bar is a choice, its height the gate weight, {below}", 11)
        base = top + 22 + high
        for place, choice in enumerate(order):
            kept, x, tall = place < slots, left + place * step, high * weight[choice]
            svg.rect(
                x,
                base - tall,
                step - 1,
                tall,
                BLUE if kept else "none",
                "" if kept else "x",
                ON_COLOUR,
                stroke_width=0.6,
            )
            if place % apart == 0:
                svg.text(x + step / 2, base + 12, f"{choice[1]}", 8, "middle")
        at = left + slots * step - 0.5
        svg.line(at, top + 18, at, base + 2, dash="6 3", width=2)
        svg.text(min(at + 5, WIDTH - 96), top + 28, "dropped from here", 10.5)
        top = base + 30
    svg.text(left, top, "Filled: kept. Crossed: dropped.", 10.5)
    rows: list[Row] = [
        {"rank": r, "dropped by position": one, "dropped by weight": other}
        for r, (one, other) in enumerate(zip(*lost, strict=True))
    ]
    return book.Figure(title, "measured", said, rows, svg.render(top + 10))


def dropped(run: Any) -> list[int]:
    """How many choices each rank's tokens have lost."""
    return [sum(not yes for row in one.kept for yes in row) for one in run.results]


def weight_lost(run: Any) -> float:
    """The share of all weights that belongs to dropped choices."""
    pairs = [
        (w, yes)
        for one in run.results
        for ws, ks in zip(one.weights, one.kept, strict=True)
        for w, yes in zip(ws, ks, strict=True)
    ]
    return sum(w for w, yes in pairs if not yes) / sum(w for w, _ in pairs)


class Paid(NamedTuple):
    """What a capacity costs: the share of choices dropped, that of slots left empty, and the slowest rank's rows over
    the even share. load: how often each expert was chosen. slots: of each expert; None without a limit."""

    dropped: float
    empty: float
    slowest: float
    load: list[int]
    slots: int | None


def paid(run: Any, factor: float | None) -> Paid:
    """Ranks returned `Told`, each with the load of its own tokens. factor: None without a limit."""
    told, rows = run.results, rows_by_rank(run.results)
    chosen, load = (
        sum(map(sum, (one.load for one in told))),
        [sum(x) for x in zip(*(o.load for o in told), strict=True)],
    )
    slots = None if factor is None else cost.expert_capacity(chosen, len(load), factor)
    room = chosen if slots is None else len(load) * slots
    return Paid(1 - sum(rows) / chosen, 1 - sum(rows) / room, max(rows) * len(rows) / chosen, load, slots)


FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


def costs(with_limit: Callable[..., Any], launch: Callable[..., Any], ranks: int) -> dict[float, Paid]:
    """Runs `with_limit(group, factor)` for each factor."""
    return {factor: paid(launch(with_limit, ranks, factor), factor) for factor in FACTORS}


def trade(points: Mapping[float, Paid]) -> book.Player:
    """factor -> what it costs: a bar for each expert, under a line that rises with the factor."""
    frames = []
    for factor, point in points.items():
        words = (
            f"With a factor of {factor:g} an expert has {point.slots} slots. {point.dropped:.0%} of the choices "
            f"are dropped, and {point.empty:.0%} of the slots stay empty."
        )
        frames.append((_under_a_line(words, point, max(p.slots or 0 for p in points.values())), words))
    rows: list[Row] = [
        {"capacity factor": factor, "choices dropped (%)": 100 * point.dropped, "slots that stay empty (%)":
         100 * point.empty} for factor, point in points.items()
    ]  # fmt: skip
    some = list(points).index(1.0)
    return book.play(
        frames, title="What a capacity factor costs", badge="measured", rows=rows, still=some, label="Picture"
    )


def _under_a_line(words: str, point: Paid, most: int) -> str:
    svg = Svg(WIDTH, "What a capacity factor costs", words)
    top, left, high = max(heading(svg, "measured", words), 72.0) + 10, 50.0, 190.0
    slots, wide = point.slots or 0, (WIDTH - 150) / len(point.load)
    unit, base = high / max(most, *point.load), top + high
    for e, n in enumerate(point.load):
        x, kept, bar = left + (e + 0.1) * wide, min(n, slots) * unit, 0.8 * wide
        svg.rect(x, base - kept, bar, kept, BLUE, "", ON_COLOUR, stroke_width=0.7)
        if n > slots:
            svg.rect(x, base - n * unit, bar, n * unit - kept, "#ffffff", "x", ON_COLOUR, stroke_width=0.7)
        elif n < slots:
            svg.rect(x, base - slots * unit, bar, slots * unit - kept, "none", "", dash="2 2", stroke_width=0.7)
        name = f"expert {e}" if len(point.load) <= 10 else f"{e}"
        svg.text(x + bar / 2, base + 15, name, 10.5, "middle")
        svg.text(x + bar / 2, base + 29, f"{n}", 10.5, "middle", bold=True)
    svg.text(8, base + 29, "chosen", 10.5)
    svg.line(left, base, WIDTH - 100, base)
    line = base - slots * unit
    svg.line(left, line, WIDTH - 96, line, dash="6 3", width=2.2)
    svg.text(WIDTH - 92, line + 4, f"{slots} slots each", 11, bold=True)
    svg.text(
        left, base + 48, "Filled: computed. Crossed, above the line: dropped. Dotted, below it: empty slots.", 10.5
    )
    return svg.render(base + 58)


# 5: gradients ----------------------------------------------------------------------------------------------------


def grid(size: int) -> book.Player:
    """Ranks as a grid: whose tokens are in a gradient, before it is summed, and after."""
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
    frames = [(_grid(words, kind, rows, across), words) for words, kind in who]
    table = [
        {
            "rank": r,
            "holds expert part": r % across,
            "replicas": ", ".join(map(str, range(r % across, size, across))),
        }
        for r in range(size)
    ]
    return book.play(frames, title="Whose tokens are in a gradient", badge="simulated", rows=table, still=1)


def _ranks(ranks: range) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranks[0]} {'and' if len(ranks) == 2 else 'to'} {ranks[-1]}"


def _grid(words: str, kind: str, rows: int, across: int) -> str:
    svg = Svg(WIDTH, "Whose tokens are in a gradient", words)
    top = max(heading(svg, "simulated", words), 72.0) + 12
    wide, high, size = min(170.0, (WIDTH - 40) / across), 84.0, rows * across
    experts = kind in ("row", "column")
    for r in range(size):
        left, up = 20 + r % across * wide, top + r // across * high
        svg.rect(left + 6, up + 5, wide - 12, high - 12, radius=4)
        svg.text(left + wide / 2, up + 20, f"rank {r}", 11, "middle", bold=True)
        row = range(r // across * across, r // across * across + across)
        held = f"expert part {r % across}" if wide > 90 else f"part {r % across}"
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


# 8 to 10: slow links -----------------------------------------------------------------------------------------------


def crossing(run: Any) -> book.Figure:
    """Which ranks send to which, inside two nodes and between them."""
    k, size = ON_NODE, run.trace.world_size
    sends = [m for m in run.trace.sends if m.step == 1]
    across = [m for m in sends if m.src // k != m.dst // k]
    partners = max(len({m.dst for m in across if m.src == r}) for r in range(size))
    said = (
        f"A rank talks to {partners} rank{'s' * (partners != 1)} of other nodes. Between the nodes go {len(across)} "
        f"messages in 4 exchanges, with {format_bytes(sum(m.nbytes for m in across), 3)}. There and back takes "
        f"{format_seconds(run.trace.duration, 3)}."
    )
    svg = Svg(WIDTH, "Who sends to whom", said)
    top = max(heading(svg, "emulated", said), 56.0) + 12
    wide, high = (WIDTH - 20) * k / size, 46.0
    at = {r: (10 + wide * (r // k + 0.5), top + 20 + high * (r % k + 0.5)) for r in range(size)}
    for node in range(size // k):
        svg.rect(10 + node * wide + 6, top, wide - 12, high * k + 28, dash="5 4", radius=6)
        svg.text(10 + node * wide + 14, top + 15, f"node {node}", 10.5)
    for one, other in sorted({(min(m.src, m.dst), max(m.src, m.dst)) for m in sends}):
        (x, y), (u, v) = at[one], at[other]
        if one // k != other // k:
            svg.line(x, y, u, v, width=1.8, colour=ORANGE)
        else:
            bow = 56 + 28 * (other - one)
            svg.add("path", d=f"M{x} {y} Q{x - bow} {(y + v) / 2} {u} {v}", fill="none", stroke=BLUE, stroke_width=1.6,
                    stroke_dasharray="4 3")  # fmt: skip
    for r, (x, y) in at.items():
        svg.rect(x - 26, y - 11, 52, 22, "#ffffff", stroke=ON_COLOUR, radius=4)
        svg.text(x, y + 4, f"rank {r}", 10.5, "middle", on_colour=True)
    svg.text(10, top + high * k + 46, "Solid: messages between two nodes. Dashed: inside a node.", 10.5)
    rows = [
        {"rank": r, "to other nodes": sum(m.src == r for m in across), "inside its node":
         sum(m.src == r for m in sends) - sum(m.src == r for m in across)} for r in range(size)
    ]  # fmt: skip
    return book.Figure("Who sends to whom", "emulated", said, list(rows), svg.render(top + high * k + 56))


def shared_expert(run: Any, overlap: bool) -> book.Figure:
    """For each rank what travels, and below it what computes; the shared expert works while rows travel, or later."""
    boxes, took = _boxes(run), format_seconds(run.trace.duration, 3)
    ends = {(rank, name): end for rank, _, name, _, end in boxes}
    late = [rank for rank in range(run.trace.world_size) if ends[rank, "shared expert"] > ends[rank, "rows"] + 1e-9]
    if not overlap:
        said = f"The shared expert works when the results are back. The layer takes {took}."
    elif late:
        said = f"When the rows have arrived, the shared expert still works. The layer takes {took}."
    else:
        said = f"When the rows have arrived, the shared expert has finished. The layer takes {took}."
    rows: list[Row] = [
        {"rank": rank, "works at": name, "from (µs)": round(start / US), "to (µs)": round(end / US)}
        for rank, _, name, start, end in boxes
    ]
    return book.Figure("A shared expert", "emulated", said, rows, _busy(run, boxes, said))


def free(run: Any) -> float:
    """For how many µs rows travel at every rank, as in the table: so long a shared expert makes the layer no slower."""
    return min(round(end / US) - round(start / US) for _, _, name, start, end in _boxes(run) if name == "rows")


Box = tuple[int, int, str, float, float]  # rank, lane (0: travels, 1: computes), name, start and end


def _boxes(run: Any) -> list[Box]:
    boxes: list[Box] = []
    for rank in range(run.trace.world_size):
        calls = [c for c in run.trace.collectives() if c.rank == rank]
        counts, (rows, results) = [c for c in calls if c.dtype == "int64"], [c for c in calls if c.dtype != "int64"]
        named = (("counts", counts[0].start, counts[-1].end), ("rows", rows.start, rows.end),
                 ("results", results.start, results.end))  # fmt: skip
        boxes += [(rank, 0, name, start, end) for name, start, end in named]
        spans = [s for s in run.trace.spans() if s.rank == rank]
        works = [s for s in spans if s.name == "experts"]
        boxes += [(rank, 1, "experts", s.start, s.end) for s in works]
        boxes += [(rank, 1, "shared expert", s.start, s.end) for s in spans if s.name == "compute"
                  and all(s.start != w.start for w in works)]  # fmt: skip
    return boxes


def _busy(run: Any, boxes: Sequence[Box], words: str) -> str:
    svg = Svg(WIDTH, "A shared expert", words)
    top, left, size = max(heading(svg, "emulated", words), 56.0) + 8, 62.0, run.trace.world_size
    longest = max(run.trace.duration, 1200 * US)  # one axis for all settings of four ranks
    unit = (WIDTH - left - 10) / longest
    for rank, lane, name, start, end in boxes:
        x, y, wide = left + start * unit, top + 48 * rank + 21 * lane, (end - start) * unit
        svg.rect(x, y, wide, 18, GREEN if name == "shared expert" else ORANGE if lane else BLUE, stroke=ON_COLOUR,
                 stroke_width=0.7)  # fmt: skip
        if wide > 6 * len(name):
            svg.text(x + wide / 2, y + 13, name, 10, "middle", on_colour=True)
    for rank in range(size):
        svg.text(8, top + 48 * rank + 13, f"rank {rank}", 11)
    low = top + 48 * size + 2
    for k in range(5):
        at = left + (WIDTH - left - 10) * k / 4
        svg.line(at, low - 6, at, low)
        svg.text(at, low + 12, format_seconds(longest * k / 4, 2) if k else "0", 10, "start" if not k else "end")
    note = "Upper lane of a rank: what travels. Lower lane, green: the shared expert. Orange: the experts."
    svg.text(8, low + 30, note, 10.5)
    return svg.render(low + 40)


def narrow(shapes: Mapping[str, tuple[int, int]], rows: int, degrees: Sequence[int] = (1, 2, 4, 8)) -> book.Figure:
    """name -> (width, hidden): operations a byte of an expert's first product when its columns are cut in t parts."""
    done = {name: [cost.product_intensity(rows, d, h // t) for t in degrees] for name, (d, h) in shapes.items()}
    needs, title = cost.machine_balance(), "An expert cut by tensor parallelism"
    told = ", and ".join(f"{found[-1]:.0f} operations a byte in {name}" for name, found in done.items())
    said = (
        f"Cut in {degrees[-1]} parts and with {rows} rows, an expert's first product does {told}. An H100 needs "
        f"{needs:.0f} to be busy."
    )
    svg = Svg(WIDTH, title, said)
    top, left, high, room = max(heading(svg, "simulated", said), 72.0) + 10, 20.0, 170.0, (WIDTH - 170) / len(shapes)
    unit = high / max(needs, *(n for found in done.values() for n in found))
    for k, (name, found) in enumerate(done.items()):
        wide = (room - 30) / len(degrees)
        for n, (t, value) in enumerate(zip(degrees, found, strict=True)):
            x, tall = left + k * room + n * wide, value * unit
            svg.rect(x, top + high - tall, wide - 10, tall, (BLUE, ORANGE)[k % 2], "/" if k % 2 else "", ON_COLOUR)
            svg.rect(x + wide / 2 - 19, top + high - 22, 28, 16, "#ffffff", radius=3)
            svg.text(x + wide / 2 - 5, top + high - 10, f"{value:.0f}", 10.5, "middle", on_colour=True)
            svg.text(x + wide / 2 - 5, top + high + 15, f"t = {t}", 10.5, "middle")
        svg.text(left + k * room, top + high + 34, name, 11.5, bold=True)
    svg.line(left, top + high, WIDTH - 150, top + high)
    svg.line(left, top + high - needs * unit, WIDTH - 140, top + high - needs * unit, width=2.2, dash="6 3")
    svg.text(WIDTH - 136, top + high - needs * unit + 4, f"an H100 needs {needs:.0f}", 11, bold=True)
    svg.text(left, top + high + 54, "A bar: operations for each byte, of an expert that is cut in t parts.", 10.5)
    table: list[Row] = [
        {"parts t": t, **{name: found[n] for name, found in done.items()}, "an H100 needs": needs}
        for n, t in enumerate(degrees)
    ]
    return book.Figure(title, "simulated", said, table, svg.render(top + high + 64))
