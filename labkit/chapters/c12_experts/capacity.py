"""What a capacity does: queues at the experts, the choices that are dropped, and the slots that stay empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, ON_COLOUR
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.chapters.c12_experts.flying import rows_by_rank


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
    load = [sum(of_ranks) for of_ranks in zip(*(one.load for one in told), strict=True)]
    chosen = sum(load)
    slots = None if factor is None else cost.expert_capacity(chosen, len(load), factor)
    room = chosen if slots is None else len(load) * slots
    return Paid(1 - sum(rows) / chosen, 1 - sum(rows) / room, max(rows) * len(rows) / chosen, load, slots)


FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)


def costs(with_limit: Callable[..., Any], launch: Callable[..., Any], ranks: int) -> dict[float, Paid]:
    """Runs `with_limit(group, factor)` for each factor."""
    turns = book.in_turn(FACTORS, "the layer with a capacity factor of {:g}")
    return {factor: paid(launch(with_limit, ranks, factor), factor) for factor in turns}


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
