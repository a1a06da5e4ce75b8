"""What chapter 2 shows and plays with: words of letters and steps, and the telephone's misunderstandings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any

from labkit import book
from labkit.cost import wires
from labkit.cost.units import format_bandwidth, format_bytes, format_seconds


def letters(run: Any) -> str:
    """Who holds whose letter."""
    held = ", ".join(f"rank {rank} that of rank {x:g}" for rank, x in enumerate(run.results))
    return f"All have the letter of their left neighbour: {held}."


def timeline(run: Any) -> book.Figure:
    """The whole run, from its first message to its last."""
    return book.timeline(run.trace, title="Who sends when")


# Everyday words, one or more for each first letter that the sentence of the chapter has.
WORDS = """
apples are arriving breakfast breaks brilliant bring cakes cases cats cost cousins dogs eagles eat elephants
enough extra flowers foxes grandmothers green horses ice in jam kitchens lemons mice never nice noodles not
old oranges parrots penguins quiet rain raw red roof rolls royal ruin sausages secret silly snow socks soup
special spoons submarines the three tigers tired to toast tomatoes tractors umbrellas vegetables wait warm
whales yellow zebras
""".split()


def mishear(text: str, rank: int, seed: int) -> str:
    """The text with another word of the same first letter in place of one of its words."""
    dice, words = Random(f"{seed} {rank}"), text.rstrip(".").split(" ")
    k = dice.randrange(len(words))
    other = [word for word in WORDS if word[0] == words[k][0].lower() and word != words[k].lower()] or ["what"]
    word = dice.choice(other)
    words[k] = word.capitalize() if words[k][0].isupper() else word
    return " ".join(words) + "."


def took(run: Any) -> str:
    """How long the run took, beside the formula that came with its results."""
    formula = run.results[0]
    return (
        f"The run took {format_seconds(run.trace.duration, 3)}; by the formula it takes {format_seconds(formula, 3)} "
        f"({run.trace.badge})."
    )


def in_messages(run: Any) -> str:
    """How long the run took, in times of one message: what the ranks returned is the time of one."""
    sends, one = run.trace.sends, run.results[0]
    begun = max(min([m.start for m in sends if m.src == r] + [m.recv_start for m in sends if m.dst == r])
                for r in range(run.trace.world_size))  # fmt: skip
    took = max(m.arrived for m in sends) - begun
    said = (
        f"From the moment when all ranks had begun to the end of the last message: {format_seconds(took, 3)}, "
        f"{took / one:.1f} times as long as one message of {format_seconds(one, 3)} ({run.trace.badge})."
    )
    strict = without_buffers(run)
    if strict is None:
        return said
    return f"{said} If no byte could leave before its receiver was there, it would be {strict} times (simulated)."


def without_buffers(run: Any) -> int | None:
    """The same messages where none can begin before both its ends are there: how often as long as one of them.

    None where a rank sends and receives at the same time: then nobody waits, and it is one.
    """
    todo: list[list[tuple[float, float, str, int]]] = [[] for _ in range(run.trace.world_size)]
    for m in run.trace.sends:
        todo[m.src].append((m.start, m.end, "send", m.dst))
        todo[m.dst].append((m.recv_start, m.arrived, "recv", m.src))
    for mine in todo:
        mine.sort()
        if any(second[0] < first[1] for first, second in pairwise(mine)):
            return None
    free = [0] * len(todo)
    while any(todo):
        src, dst = next(
            (r, mine[0][3]) for r, mine in enumerate(todo)
            if mine and mine[0][2] == "send" and todo[mine[0][3]] and todo[mine[0][3]][0][2:] == ("recv", r)
        )  # fmt: skip
        free[src] = free[dst] = max(free[src], free[dst]) + 1
        todo[src].pop(0)
        todo[dst].pop(0)
    return max(free)


def all_ended(run: Any) -> str:
    """How many messages there were, where nobody waits for ever."""
    sends = run.trace.sends
    return f"It ends: {len(sends)} messages of {sends[0].nbytes:,} bytes have arrived ({run.trace.badge})."


def milliseconds(run: Any) -> str:
    """From the first kernel to the last message."""
    trace = run.trace
    begin = min(span.start for span in trace.spans("compute"))
    return f"{1e3 * (max(m.arrived for m in trace.recvs) - begin):.6g} ms"


def one_message(fit: Any, points: Mapping[int, Sequence[float]]) -> book.Figure:
    """The times of messages by their size, and the line that was fitted to their medians."""
    drawn = {n: times for n, times in points.items() if n}  # a logarithmic axis has no 0
    curves = {"one message": fit.seconds}
    return book.cost_curves(curves, {"one message": drawn}, title="A message on this machine")


def wires_table() -> book.Table:
    """Three wires: bandwidth, latency, and the size of a message that reaches half of the bandwidth."""
    rows = [
        {
            "wire": wire.name,
            "bandwidth": format_bandwidth(wire.bandwidth),
            "latency": format_seconds(wire.alpha),
            "half-bandwidth size": format_bytes(wire.half_size),
        }
        for wire in wires.WIRES
    ]
    return book.Table(rows, caption=f"quoted: {wires.BANDWIDTH_SOURCE}; {wires.LATENCY_SOURCE}")
