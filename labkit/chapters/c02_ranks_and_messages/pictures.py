"""What chapter 2 shows and plays with: words of letters and steps, and the telephone's misunderstandings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from labkit import book
from labkit.cost import wires
from labkit.cost.units import format_bandwidth, format_bytes, format_seconds


def letters(run: Any) -> str:
    """Who holds whose letter."""
    held = ", ".join(f"rank {rank} that of rank {x:g}" for rank, x in enumerate(run.results))
    return f"All have the letter of their left neighbour: {held}."


def in_order(run: Any) -> book.Figure:
    """The whole run in real time, from its first message to its last."""
    said = "Look at the order in which the letters move: the lengths of the boxes are the noise of your machine."
    return book.timeline(run.trace, title="Who sends when", sentence=said)


STAYS = "The axis stays, so that you can compare runs."


def up_to(run: Any, longest: float, sentence: str = STAYS, arrows: bool | None = None) -> book.Figure:
    """The whole run on an axis that ends at `longest` seconds, or where the run ends if that is later."""
    window = (0.0, max(longest, run.trace.duration))
    return book.timeline(run.trace, title="Who sends when", window=window, sentence=sentence, arrows=arrows)


MOST = 8  # ranks that section 4 offers


def meetings(run: Any, one: float) -> book.Figure:
    """The whole run, on the axis of the slowest one; in the ways that block, receivers say when they are there. one:
    seconds of a message alone."""
    if all(m.nbytes for m in run.trace.sends):
        said = "Every rank sends and receives at the same time."
    elif any(abs(m.start - m.recv_start) > one / 2 for m in run.trace.sends):
        said = (
            "A hatched rank waits for its partner. A sender does so in its lower row, where the empty message of its "
            "receiver is to arrive."
        )
    else:
        said = "Nobody waits: each partner is there when it is needed."
    return up_to(run, MOST * one, said, arrows=True)


def eager_sends(run: Any, longest: float) -> book.Figure:
    """The whole run on an axis that stays, with the reason why a receiver is busy for longer than its sender."""
    said = "A sender is busy only while its bytes leave. The latency passes on the wire, so the receiver alone sees it."
    return up_to(run, longest, said)


# Everyday words, one or more for each first letter that the sentence of the chapter has.
WORDS = """
apples are arriving breakfast breaks brilliant bring cakes cases cats cost cousins dogs eagles eat elephants
enough extra flowers foxes grandmothers green horses ice in jam kitchens lemons mice never nice noodles not
old oranges parrots penguins quiet rain raw red roof rolls royal ruin sausages secret silly snow socks soup
special spoons submarines the three tigers tired to toast tomatoes tractors umbrellas vegetables wait warm
whales yellow zebras
""".split()


def mishear(text: str, rank: int, seed: int) -> str:
    """The text with another word of the same first letter in place of one of its words, on each rank of another one."""
    dice, words = Random(f"{seed} {rank}"), text.rstrip(".").split(" ")
    order = Random(seed).sample(range(len(words)), len(words))
    k = order[(rank - 1) % len(words)]
    other = [word for word in WORDS if word[0] == words[k][0].lower() and word != words[k].lower()] or ["what"]
    word = dice.choice(other)
    words[k] = word.capitalize() if words[k][0].isupper() else word
    return " ".join(words) + "."


def took(run: Any, message: float) -> str:
    """How long the run took, beside the formula for its kernel and a message of `message` seconds."""
    kernel = next((span for span in run.trace.spans("compute") if span.rank == 0), None)
    computing = kernel.end - kernel.start if kernel else 0.0
    overlapped = kernel is not None and any(m.start < kernel.end for m in run.trace.sends if m.src == 0)
    formula = wires.step_seconds(computing, message, overlapped)
    return (
        f"The run took {format_seconds(run.trace.duration)}; by the formula it takes {format_seconds(formula)} "
        f"({run.trace.badge})."
    )


def in_messages(run: Any, one: float) -> str:
    """How long the run took, in times of one message, which takes `one` seconds."""
    took = run.trace.duration
    messages = f"{took / one:.1f}".removesuffix(".0")
    long = "one message" if messages == "1" else f"{messages} messages one after the other"
    return f"{format_seconds(took, 3)}, as long as {long} ({run.trace.badge})."


LIMIT = 64 * 1024  # bytes up to which section 9 sends eagerly; systems differ, and so do their settings


def all_ended(run: Any) -> str:
    """How many messages there were, where nobody waits for ever."""
    sends = run.trace.sends
    said = f"It ends: {len(sends)} messages of {sends[0].nbytes:,} bytes have arrived ({run.trace.badge})."
    if sends[0].nbytes <= LIMIT < sends[0].nbytes + 1000:
        said += f" This is the largest size of the slider that does: the limit here is {LIMIT:,} bytes."
    return said


def milliseconds(run: Any) -> str:
    """From the first kernel to the last message."""
    trace = run.trace
    begin = min(span.start for span in trace.spans("compute"))
    return f"{1e3 * (max(m.arrived for m in trace.recvs) - begin):.4g} ms"


def two_digits(times: float) -> str:
    """A factor to two digits, and no power of ten: 1.6, 48, 480."""
    return f"{float(f'{times:.2g}'):,.10g}"


def one_message(fit: Any, points: Mapping[int, Sequence[float]]) -> book.Figure:
    """The times of messages by their size, the line that was fitted to their medians, and its two parts."""
    drawn = {n: times for n, times in points.items() if n}  # a logarithmic axis has no 0
    bytes_alone = {"β n alone": lambda n: fit.beta * n} if fit.beta and fit.half_size <= max(drawn) else {}
    at = {f"half-bandwidth size {format_bytes(fit.half_size, 2)}": fit.half_size} if fit.beta else {}
    return book.cost_curves(
        {"α + β n": fit.seconds}, {"α + β n": drawn}, title="A message on this machine", middle=True, at=at,
        thin={"α alone": lambda _: fit.alpha, **bytes_alone}, axes=("size of the message", "time of one message"),
    )  # fmt: skip


def on_each_wire(run: Any) -> book.Figure:
    """One message over the wire that was emulated, on axes that stay, and what the formula says of all wires."""
    name, nbytes, took = _wire(run), run.trace.sends[0].nbytes, run.trace.duration
    return book.cost_curves(
        {wire.name: wire.seconds for wire in wires.WIRES}, {name: {nbytes: [took]}},
        sizes=(1e3, 8e6), title="One message on three wires", badge="emulated",
        axes=("size of the message", "time of one message"),
        sentence=f"{format_bytes(nbytes)} over {name} took {format_seconds(took, 3)}.",
    )  # fmt: skip


def _wire(run: Any) -> str:
    """The name of the wire whose bandwidth the run's links had."""
    return next(wire.name for wire in wires.WIRES if wire.bandwidth == run.spec.network.intra.bandwidth)


def in_parts(run: Any) -> book.Table:
    """A message of this size over each wire: its latency, its bytes, their sum, and the run over the chosen wire."""
    nbytes, rows = run.trace.sends[0].nbytes, []
    for wire in wires.WIRES:
        parts = {
            "latency": format_seconds(wire.alpha, 3),
            "bytes": format_seconds(nbytes * wire.beta, 3),
            "together": format_seconds(wire.seconds(nbytes), 3),
            "latency's part": f"{wire.alpha / wire.seconds(nbytes):.0%}",
        }
        ran = format_seconds(run.trace.duration, 3) if wire.name == _wire(run) else ""
        rows.append({"wire": wire.name} | parts | {"the run (emulated)": ran})
    return book.Table(rows)


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
