"""The race of chapter 3: four ways to an all-reduce, what their time is made of, and how they meet at a shared link."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import plural
from labkit.chapters.c03_collectives.pictures import BANDWIDTH
from labkit.cost.units import format_bytes, format_seconds

RACERS = ["my ring", "my recursive doubling", "halving doubling", "tree"]
NAMES = {
    "my ring": "The ring", "my recursive doubling": "Recursive doubling", "halving doubling": "Halving-doubling",
    "tree": "The tree",
}  # fmt: skip


def form_of(call: Any) -> Any:
    """The closed form of an all-reduce, of a reader's own as well."""
    return cost.cost_of("all_reduce", call.algorithm.removeprefix("my_"))


def said(call: Any) -> str:
    """The name of its algorithm, as the page writes it."""
    return str(call.algorithm).replace("_", " ")


def by_formula(call: Any, size: int, alpha: float) -> float:
    """Seconds, to the nanosecond, as the virtual clock has them: equal times are to be written alike."""
    return round(float(form_of(call).seconds(call.nbytes, size, alpha, 1 / BANDWIDTH)), 9)


def in_a_row(call: Any, size: int) -> float:
    """The bytes on the longest chain of messages, each of which waits for the one before, by the formula."""
    return float(form_of(call).seconds(call.nbytes, size, 0, 1))


def recorded(run: Any, nth: int) -> Any:
    """The messages of the nth all-reduce, round by round; None where no picture can follow them."""
    try:
        recording = book.record(run.trace, "all_reduce", nth)
    except ValueError:  # of no message at all
        return None
    return None if recording.unseen else recording


def over_the_link(moves: Sequence[Any], size: int) -> tuple[list[Any], list[Any]]:
    """Of the messages of a round those from the first half of the ranks to the second, and back."""
    halves = [(m.src >= size / 2, m.dst >= size / 2, m) for m in moves]
    return [m for a, b, m in halves if not a and b], [m for a, b, m in halves if a and not b]


def queue_of(moves: Sequence[Any], size: int) -> float:
    """Seconds by which a round is longer if a single link joins the two halves."""
    longest = max((m.nbytes for m in moves), default=0)
    most = max(sum(m.nbytes for m in some) for some in over_the_link(moves, size))
    return max(0, most - longest) / BANDWIDTH


def rounds_of(run: Any, nth: int) -> list[Sequence[Any]]:
    """The messages of the nth all-reduce by round. Where no picture can follow them, because they were sent from other
    tensors, a rank's first message belongs to the first round, and so on."""
    if (recording := recorded(run, nth)) is not None:
        return [frame.moves for frame in recording.rounds[1:]]
    seen: Counter[int] = Counter()  # all-reduces, and then messages, of each rank
    calls, rounds = set(), defaultdict(list)
    for index, call in enumerate(run.trace.collectives()):
        if call.name == "all_reduce" and not call.nested:
            calls |= {index} if seen[call.rank] == nth else set()
            seen[call.rank] += 1
    seen.clear()
    for message in run.trace.sends:
        if message.collective in calls:
            rounds[seen[message.src]].append(message)
            seen[message.src] += 1
    return [rounds[k] for k in sorted(rounds)]


def queued(run: Any, nth: int) -> float:
    """Seconds for which messages of the nth all-reduce would wait for each other, if a single link joined two switches
    with half of the ranks each."""
    return sum(queue_of(moves, run.trace.world_size) for moves in rounds_of(run, nth))


def raced(run: Any, latency: float, shared: bool = False) -> book.Figure:
    """How long each all-reduce of the run took, beside the two parts of its formula. latency: in microseconds.

    shared: and by how much longer, if one link joined two switches.
    """
    calls, size, alpha = run.trace.calls("all_reduce"), run.trace.world_size, 1e-6 * latency
    waits = {said(call): round(alpha * form_of(call).rounds(size), 9) for call in calls}
    parts = {
        "latencies": waits,
        "bytes": {said(call): by_formula(call, size, alpha) - waits[said(call)] for call in calls},
    }
    took, where = {said(call): round(call.seconds, 9) for call in calls}, "From fast to slow"
    if shared:
        parts["queue at the shared link"] = {said(call): queued(run, nth) for nth, call in enumerate(calls)}
        where = "With one link between two switches, by the formulas and these messages, from fast to slow"
    ends = {name: sum(part.get(name, 0.0) for part in parts.values()) for name in took} if shared else took
    told = ", ".join(f"{name} {format_seconds(ends[name], 3)}" for name in sorted(ends, key=lambda name: ends[name]))
    run_as = "the run, without the shared link" if shared else "the run"
    return book.bars(
        {**parts, run_as: took}, unit="seconds", badge="simulated" if shared else run.trace.badge,
        title=f"All-reduce of {format_bytes(calls[0].nbytes)} on {size} ranks", ticks=True, stacked=True,
        sentence=f"{where}: {told}.",
    )  # fmt: skip


def _watched(run: Any, watch: str) -> tuple[int, Any]:
    """The all-reduce of the run that the reader watches, and which one of them it is."""
    calls = run.trace.calls("all_reduce")
    return next((k, call) for k, call in enumerate(calls) if said(call) == watch)


def watched(run: Any, watch: str, latency: float, shared: bool = False) -> str:
    """Why the all-reduce that is watched takes as long as it does. latency: in microseconds."""
    (nth, call), alpha, size = _watched(run, watch), 1e-6 * latency, run.trace.world_size
    formula, waits = by_formula(call, size, alpha), queued(run, nth) if shared else 0.0
    rounds = f"{plural(form_of(call).rounds(size), 'round')} of {format_seconds(alpha)}"
    told = (
        f"{NAMES[watch]}: {rounds}, and {format_bytes(in_a_row(call, size), 3)} that go one after the other: "
        f"{format_seconds(formula, 3)} by the formula"
    )
    if not shared:
        return f"{told}."
    if not waits:
        return f"{told}. At the shared link nothing waits."
    told += f", and {format_seconds(waits, 3)} in the queue at the shared link: {format_seconds(formula + waits, 3)}."
    if call.algorithm == "halving_doubling":
        near = formula + 2 * (size / 2 - 1) * call.nbytes / size / BANDWIDTH
        told += (
            f" If the nearest partners met first, as in Rabenseifner (2004), only 1/{size} of the tensor would be left "
            f"when the far ones meet, and it would take {format_seconds(near, 3)}."
        )
    return told


def followed(run: Any, watch: str, shared: bool = False) -> book.Player | str:
    """The all-reduce that is watched, round by round."""
    nth, _ = _watched(run, watch)
    if shared and (rounds := rounds_of(run, nth)):
        return on_switches(rounds, run.trace.world_size, watch)
    if recorded(run, nth) is None:
        return (
            "Your function sends from tensors of its own, so no picture can follow what becomes of the chunks. A line "
            "such as x = x + ... or y = x.clone() makes a new tensor. Write x += ..., which changes x itself, and run "
            "the cells from there on to see the picture."
        )
    return book.replay(run.trace, "all_reduce", nth, by="round", shape="circle")


def on_switches(rounds: Sequence[Sequence[Any]], size: int, name: str) -> book.Player:
    """Each round on two switches with half of the ranks each: what crosses the link between them, one after the other.

    rounds: the messages of each.
    """
    title, frames, rows = f"{NAMES[name]} on two switches", [], []
    for k, moves in enumerate(rounds):
        over, back = over_the_link(moves, size)
        alone, wait = max(m.nbytes for m in moves) / BANDWIDTH, queue_of(moves, size)
        if over or back:
            many = max(len(over), len(back))
            each = f"{plural(many, 'message')} of {format_bytes(max(m.nbytes for m in over + back), 3)}"
            where = "in each direction" if over and back else "in one direction"
            told = f"{each} cross the link {where}." if many > 1 else f"{each} crosses the link {where}."
            told += (
                f" They share it, so they take {format_seconds(alone + wait, 3)} and not {format_seconds(alone, 3)}."
                if wait else " It has the link for itself, so nothing waits."
            )  # fmt: skip
        else:
            told = "All messages stay below their own switch, so nothing waits."
        words = f"Round {k}. {told}"
        rows.append({"round": k, "across": len(over), "back": len(back), "a message (ms)": 1e3 * alone,
                     "waits (ms)": 1e3 * wait})  # fmt: skip
        frames.append((_switches(title, words, moves, over, back, size), words))
    most = max(range(len(rows)), key=lambda k: rows[k]["waits (ms)"])
    table: list[Row] = [dict(row) for row in rows]
    return book.play(frames, title=title, badge="simulated", rows=table, begin=most, still=most, label="Round")


def _switches(title: str, words: str, moves: Sequence[Any], over: Sequence[Any], back: Sequence[Any], size: int) -> str:
    """Ranks at their switches, the link between these, and on it a box for each message, with its sender's number."""
    svg = Svg(WIDTH, title, words)
    top, half = max(heading(svg, "simulated", words), 60.0) + 12, size // 2
    pitch = min(40.0, 200.0 / half)
    tall, radius = pitch * half, min(14.0, 0.42 * pitch)
    middle = top + tall / 2
    talks = {m.src for m in moves}
    for side, (x, switch) in enumerate(((60.0, 210.0), (WIDTH - 60.0, WIDTH - 210.0))):
        svg.rect(switch - 22, middle - 42, 44, 84, fill="#ffffff", stroke_width=1.4)
        svg.text(switch, middle + 60, "switch", 11, "middle")
        for i in range(half):
            rank, y = side * half + i, top + pitch * (i + 0.5)
            svg.line(x, y, switch + (22 if side else -22), middle, width=1.6 if rank in talks else 0.7,
                     faint=rank not in talks)  # fmt: skip
            svg.add("circle", cx=x, cy=y, r=radius, fill="#ffffff", klass="lk-line", stroke_width=1.4)
            svg.text(x, y + 4, str(rank), 11 if radius > 10 else 8, "middle", bold=True, on_colour=True)
    left, right = 232.0, WIDTH - 232.0
    svg.line(left, middle, right, middle, width=5)
    wide = min(34.0, (right - left - 32) / max(len(over), len(back), 4))
    for some, y, to_right in ((over, middle - 34, True), (back, middle + 12, False)):
        for n, m in enumerate(some):
            x = right - 14 - (n + 1) * wide if to_right else left + 18 + n * wide
            look = SERIES[0 if to_right else 1]
            svg.rect(x, y, wide - 4, 22, look.colour, look.hatch, ON_COLOUR, stroke_width=0.8)
            svg.text(x + (wide - 4) / 2, y + 15, str(m.src), 11, "middle", bold=True, on_colour=True)
        if some:
            end = right - 4 if to_right else left + 4
            svg.arrow_head(end, y + 11, 1 if to_right else -1, 0, 9)
    svg.text((left + right) / 2, top + tall + 14, "a box: a message, with the rank that sends it", 11, "middle")
    return svg.render(top + tall + 24)
