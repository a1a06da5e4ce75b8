"""What chapter 3 shows: gradients, a collective on emulated links, and what its ranks brought, sent and got."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import plural
from labkit.cost.units import format_bytes, format_seconds

BANDWIDTH, LATENCY = 1e9, 20e-6  # bytes per second and seconds of the links that the chapter emulates
FOLLOWED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather")


def circle(run: Any) -> book.Stepper:
    """The messages of the first collective around the circle of ranks, round by round."""
    return book.replay(run.trace, by="round", shape="circle")


def slipped(run: Any) -> book.Stepper:
    """The same, opened where a rank of the ring adds in place of copying, or copies in place of adding."""
    stepper = circle(run)
    adding = len(stepper.recording.ranks) - 1  # rounds
    for step, frame in enumerate(stepper.frames):
        if any(move.combine != (step <= adding) for move in frame.moves):
            stepper.open_at(step)
            break
    return stepper


def timeline(run: Any, slip: str) -> book.Figure | str:
    """The first collective of the run, on every rank, if one of them is late: else all rows are alike."""
    call = run.trace.calls()[0]
    if not any(rank["compute"] for rank in run.trace.step_breakdown()):
        return "No rank is late, so all of them send and receive at the same times." if slip == "none" else ""
    return book.timeline(run.trace, title=f"{call.name} by {call.algorithm}".replace("_", " "))


def time_taken(run: Any) -> str:
    """How long the all-reduce took."""
    (call,) = run.trace.calls("all_reduce")
    return f"After **{format_seconds(call.seconds, 4)}** every rank has the sum ({run.trace.badge})."


def verdict(run: Any, slip: str, in_round: int) -> str:
    """Whether all ranks hold the sum, and how long it took."""
    replay = book.record(run.trace)
    told = f"{replay.verdict} The run took {format_seconds(run.trace.duration, 3)} ({run.trace.badge})."
    if replay.flaws:
        told += " The picture opens at the slip. In its last step, what is wrong is orange."
    elif slip == "adds":
        told += f" In round {in_round} every rank adds, so this is no slip."
    elif slip == "forgets to add":
        told += f" In round {in_round} the ranks only copy, so there was nothing to add."
    return told


def brought_and_got(run: Any) -> book.Table:
    """What each rank had before the call, and what the call returned to it."""

    def said(x: Any) -> str:
        return "nothing" if x is None else ", ".join(f"{n:g}" for n in x.tolist())

    brought = [x for x, _ in run.results]
    if run.trace.calls()[0].name in ("scatter", "broadcast"):
        brought[1:] = [None] * (len(brought) - 1)  # only the root has something to give away
    got = [y for _, y in run.results]
    rows = enumerate(zip(brought, got, strict=True))
    return book.Table({"": f"rank {r}", "brings": said(x), "gets": said(y)} for r, (x, y) in rows)


def cost_of_call(run: Any) -> str:
    """What all ranks sent together in the first call, by its messages and by the formula."""
    call, size = run.trace.calls()[0], run.trace.world_size
    joined = call.nbytes * (size if call.name in ("all_gather", "gather") else 1)  # their cost counts the result
    formula = cost.cost_of(call.name, call.algorithm).total_bytes(joined // 8, 8, size)
    sent = sum(run.trace.bytes_sent())
    told = (
        f"The call is `collectives.{call.algorithm}_{call.name}`. All ranks together send "
        f"{plural(sent // 8, 'number')} of 8 bytes, {sent} bytes in all; the formula says {formula}."
    )
    if call.name in FOLLOWED:
        told += " In the picture, r0 stands for what rank 0 brought"
        sums = call.name in ("all_reduce", "reduce_scatter", "reduce")
        told += " and r0+r1 for the sum of what ranks 0 and 1 brought." if sums else "."
        if book.record(run.trace).chunks > 1:
            told += " The small number outside a box is that of the chunk."
    return told


def messages(run: Any) -> book.Figure | book.Stepper:
    """The call around the circle; an all-to-all as the parts of all ranks, before and after."""
    call = run.trace.calls()[0]
    if call.name in FOLLOWED:
        recording = replace(book.record(run.trace), mark="r")  # whole numbers are what the ranks bring
        return book.Stepper(recording, by="round", shape="circle")
    return transposed(run)


def transposed(run: Any) -> book.Figure:
    """What the ranks of an all-to-all have before and after: a row for each rank, a look for each rank's parts."""
    n, title = len(run.results), "An all-to-all transposes"
    said = "Part j of rank i becomes part i of rank j: the rows of the ranks before are the columns after."
    svg = Svg(WIDTH, title, said)
    top, cell = heading(svg, "measured", said) + 40, min(44.0, 280.0 / n)
    for k, when in enumerate(("before", "after")):
        left = 70.0 + 375 * k
        svg.text(left, top - 22, when, 13, bold=True)
        for part in range(n):
            svg.text(left + cell * (part + 0.5), top - 6, str(part), 10.5, "middle")
        for rank, pair in enumerate(run.results):
            y = top + cell * rank
            svg.text(left - 8, y + cell / 2 + 4, f"rank {rank}", 11, "end")
            for part, value in enumerate(pair[k].tolist()):
                look = SERIES[(part if k else rank) % len(SERIES)]
                svg.rect(
                    left + cell * part, y, cell - 2, cell - 2, look.colour, look.hatch, ON_COLOUR, stroke_width=0.6
                )
                svg.rect(left + cell * part + 3, y + cell / 2 - 9, cell - 8, 16, "#ffffff", stroke_width=0)
                svg.text(left + cell * part + cell / 2 - 1, y + cell / 2 + 3, str(value), 11, "middle", on_colour=True)
    rows: list[Row] = [{"rank": r, "before": ", ".join(map(str, x.tolist())), "after": ", ".join(map(str, y.tolist()))}
                       for r, (x, y) in enumerate(run.results)]  # fmt: skip
    return book.Figure(title, "measured", said, rows, svg=svg.render(top + cell * n + 8))


def away(gradients: Sequence[Any], average: Any, joined: Any) -> book.Figure:
    """Each rank's gradient and their average as arrows of one length, at their true angles with the gradient of one
    process that read all the text."""
    whole = joined.norm()

    def seen(x: Any) -> tuple[float, float]:
        """Degrees away, and times as long."""
        across = float((x / x.norm() - joined / whole).norm()) / 2  # of two unit vectors; exact for small angles, too
        return math.degrees(2 * math.asin(min(1.0, across))), float(x.norm() / whole)

    arrows = {f"rank {rank}": seen(x) for rank, x in enumerate(gradients)} | {"average": seen(average)}
    off, (least, most) = arrows["average"][0], (f(deg for deg, _ in [*arrows.values()][:-1]) for f in (min, max))
    size = f"A gradient has {joined.numel():,} numbers in float32, so M is {joined.nbytes / 1e6:.4g} MB."
    told = (
        f"The gradients of single ranks point {least:.0f} to {most:.0f} degrees away from that of one process with all "
        f"the text, and their average {off:.0e} degrees, which is rounding. {size}"
    )
    svg = Svg(WIDTH, "How far each gradient points away", told)
    long, x, ranked = 220.0, 40.0 if most < 85 else 320.0, sorted([*arrows.items()][:-1], key=lambda item: item[1][0])
    far, high = [18.0 - 13, 18.0 - 13], []  # how far names reach on each side; and where each name stands
    for k, (_, (deg, _)) in enumerate(ranked):
        far[k % 2] = max(far[k % 2] + 13, long * math.sin(math.radians(deg)))  # no name on another
        high.append(far[k % 2])
    y = heading(svg, "measured", told) + 18 + far[0]
    svg.line(x, y, x + long - 8, y, width=4, colour=SERIES[1].colour)
    svg.arrow_head(x + long + 3, y, 1, 0, 12)
    svg.text(x + long + 12, y + 4, "the average of all ranks, and one process with all the text", 12, bold=True)
    for k, ((name, (deg, _)), away_from) in enumerate(zip(ranked, high, strict=True)):
        side = 1 if k % 2 else -1
        along, up = math.cos(math.radians(deg)), side * math.sin(math.radians(deg))
        tip = x + long * along, y + long * up
        svg.line(x, y, *tip, width=1.4, colour=SERIES[0].colour)
        svg.arrow_head(*tip, along, up, 8)
        beside = x + long + 12 if along > 0.4 else tip[0] + 12
        svg.line(tip[0] + 2, tip[1], beside - 3, y + side * away_from, width=0.6)
        svg.text(beside, y + side * away_from + 4, f"{name}: {deg:.0f}°", 11)
    end = y + max(far[1], 18) + 26
    svg.text(8, end, "The angles with the average are true. On which side an arrow lies means nothing.", 11)
    rows: list[Row] = [{"gradient of": name, "degrees away": float(f"{deg:.3g}"), "times as long": round(long, 3)}
                       for name, (deg, long) in arrows.items()]  # fmt: skip
    return book.Figure("How far each gradient points away", "measured", told, rows, svg=svg.render(end + 8))


def matrix(run: Any, computed: Sequence[int] | None = None, title: str = "Bytes from rank to rank") -> book.Figure:
    """The bytes from rank to rank. They are counted, whatever clock the run had."""
    return book.byte_matrix(run.trace, computed, predicted_name="computed", title=title, badge="measured")


def busiest_of(runs: Mapping[str, Any], numel: int) -> book.Figure:
    """What the busiest rank and all ranks together sent, by each way to sum `numel` float32 numbers."""
    sent = {way: list(run.trace.bytes_sent()) for way, run in runs.items()}
    formula = {
        way: list(cost.cost_of("all_reduce", way).bytes_by_rank(numel, 4, run.trace.world_size))
        for way, run in runs.items()
    }
    most, total = ({way: of(each) for way, each in sent.items()} for of in (max, sum))
    least, all_told = min(most, key=lambda way: most[way]), max(total, key=lambda way: total[way])
    if len(set(most.values())) == 1:
        told = f"The busiest rank sends {format_bytes(most[least], 3)} with each of the {len(most)} algorithms."
    else:
        told = (
            f"The busiest rank sends least with {least}, {format_bytes(most[least], 3)}. All ranks together send "
            f"most with {all_told}, {format_bytes(total[all_told], 3)}."
        )
    told += " The formulas agree to the byte." if sent == formula else " The formulas do not agree everywhere."
    return book.bars({"busiest rank": most, "all ranks together": total}, title="What the ranks send", sentence=told)


def sums(run: Any) -> str:
    """What the ranks hold after several sums; a rank that left one out has fewer."""
    first, *others = run.results
    if all(held == first for held in others):
        return "The run ended. Every rank has the sums " + ", ".join(f"{x:g}" for x in first) + "."
    lines = [f"rank {r}: " + ", ".join(f"{x:g}" for x in held) for r, held in enumerate(run.results)]
    return "The run ended. The sums on " + "; ".join(lines) + "."
