"""What chapter 3 shows: a collective on emulated links, what its ranks sent, and what goes over the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book, cost
from labkit.cost.units import format_bytes, format_seconds

RACERS = ("ring", "tree", "recursive_doubling", "halving_doubling")
FOLLOWED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather")


def circle(run: Any) -> book.Stepper:
    """The messages of the first collective around the circle of ranks, round by round."""
    return book.replay(run.trace, by="round", shape="circle")


def followed(run: Any) -> book.Figure | book.Stepper:
    """The same; of a reader's function that sends from other tensors than its own, the bytes from rank to rank."""
    return matrix(run) if book.record(run.trace).unseen else circle(run)


def timeline(run: Any) -> book.Figure:
    """The first collective of the run, on every rank."""
    call = run.trace.calls()[0]
    return book.timeline(run.trace, title=f"{call.name} by {call.algorithm}".replace("_", " "))


def busiest(run: Any) -> str:
    """What the ranks of an all-reduce sent, and how long it took."""
    sent, call = run.trace.bytes_sent(), run.trace.calls()[0]
    others = {format_bytes(n, 3) for n in sent[1:]}
    if others == {format_bytes(sent[0], 3)}:
        said = f"Every rank sends {format_bytes(sent[0], 3)}"
    else:
        most = format_bytes(max(sent[1:]), 3)
        said = f"Rank 0 sends {format_bytes(sent[0], 3)}, and the busiest of the others {most}"
    everyone = format_bytes(sum(sent), 3)
    return f"{said}; all together {everyone}. It takes {format_seconds(call.seconds, 3)} ({run.trace.badge})."


def raced(run: Any) -> str:
    """Rounds, bytes and time of an all-reduce, beside what the formula says of links with this `alpha` and `beta`."""
    call, (alpha, beta) = run.trace.calls()[0], run.results[0]
    size, form = run.trace.world_size, cost.cost_of("all_reduce", call.algorithm.removeprefix("my_"))
    formula = format_seconds(form.seconds(call.nbytes, size, alpha, beta), 3)
    return (
        f"{form.rounds(size)} rounds, and the busiest rank sends {format_bytes(max(run.trace.bytes_sent()), 3)}. "
        f"It takes {format_seconds(call.seconds, 3)} ({run.trace.badge}); the formula says {formula}."
    )


def verdict(run: Any) -> str:
    """Whether all ranks hold the sum, and how long it took."""
    replay = book.record(run.trace)
    return f"{replay.verdict} The run took {format_seconds(run.trace.duration, 3)} ({run.trace.badge})."


def brought_and_got(run: Any) -> book.Table:
    """What each rank had before the call, and what the call returned to it."""

    def said(x: Any) -> str:
        return "nothing" if x is None else ", ".join(f"{n:g}" for n in x.tolist())

    return book.Table({"": f"rank {r}", "brings": said(x), "gets": said(y)} for r, (x, y) in enumerate(run.results))


def cost_of_call(run: Any) -> str:
    """What all ranks sent together in the first call, by its messages and by the formula."""
    call, size = run.trace.calls()[0], run.trace.world_size
    joined = call.nbytes * (size if call.name in ("all_gather", "gather") else 1)  # their cost counts the result
    formula = cost.cost_of(call.name, call.algorithm).total_bytes(joined // 8, 8, size)
    sent = sum(run.trace.bytes_sent())
    return f"By {call.algorithm.replace('_', ' ')}: all ranks together send {sent} bytes; the formula says {formula}."


def messages(run: Any) -> book.Figure | book.Stepper:
    """The call around the circle; of one without a common tensor the bytes from rank to rank."""
    call = run.trace.calls()[0]
    if call.name in FOLLOWED:
        return circle(run)
    return matrix(run, title=f"Bytes from rank to rank: {call.name}")


def crossing(trace: Any, ranks_per_node: int) -> tuple[int, int]:
    """Bytes that leave their node: of all ranks together, and of the busiest one."""
    rows = enumerate(trace.bytes_between())
    between = [sum(b for c, b in enumerate(row) if c // ranks_per_node != r // ranks_per_node) for r, row in rows]
    return sum(between), max(between)


def crossed(run: Any) -> str:
    """How long an all-reduce over nodes took, and what left the nodes: ranks returned the ranks of a node."""
    total, most = crossing(run.trace, run.results[0])
    return (
        f"It takes {format_seconds(run.trace.calls()[0].seconds, 3)} ({run.trace.badge}). Between the nodes go "
        f"{format_bytes(total, 3)} in all, {format_bytes(most, 3)} of them from the busiest rank."
    )


def matrix(run: Any, computed: Sequence[int] | None = None, title: str = "Bytes from rank to rank") -> book.Figure:
    """The bytes from rank to rank. They are counted, whatever clock the run had."""
    return book.byte_matrix(run.trace, computed, predicted_name="computed", title=title, badge="measured")


def busiest_of(runs: Mapping[str, Any], numel: int) -> book.Figure:
    """What the busiest rank sent by each way to sum `numel` float32 numbers, beside the formula."""
    measured = {way: max(run.trace.bytes_sent()) for way, run in runs.items()}
    formula = {
        way: max(cost.cost_of("all_reduce", way).bytes_by_rank(numel, 4, run.trace.world_size))
        for way, run in runs.items()
    }
    return book.bars({"measured": measured, "formula": formula}, title="What the busiest rank sends")


def sums(run: Any) -> str:
    """What the ranks hold after several sums; a rank that left one out has fewer."""
    first, *others = run.results
    if all(held == first for held in others):
        return "The run ended. Every rank has the sums " + ", ".join(f"{x:g}" for x in first) + "."
    lines = [f"rank {r}: " + ", ".join(f"{x:g}" for x in held) for r, held in enumerate(run.results)]
    return "The run ended. The sums on " + "; ".join(lines) + "."
