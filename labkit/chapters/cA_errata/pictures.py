"""What the appendix shows: the lines of a group as a table with links, and pictures of some of its errors."""

from __future__ import annotations

import math
import re
from typing import Any

from labkit import book, cost
from labkit.book.drawing.style import series
from labkit.book.drawing.svg import text_width
from labkit.book.drawing.tables import Table, cell
from labkit.book.drawing.units import bytes_text
from labkit.chapters.cA_errata import suspects
from labkit.chapters.cA_errata.drawing import WIDTH, Page, heading, legend
from labkit.chapters.cA_errata.gating import Said as Said, unchecked, unsearched
from labkit.chapters.cA_errata.suspects import Story, TwoLevel
from labkit.cost import slow_sync
from labkit.cost.units import GB, format_seconds
from labkit.course import errata, load
from labkit.course.errata import Erratum, groups, questions
from labkit.course.errors import did_you_mean

HEAD = ("where, and the chapter", "what it says", "but, and the question that finds it", "it comes to")
COMES = {"right": "computed", "then": "against itself", "elsewhere": "by another place"}  # before our number
NODE = "#0072b2"
WORDS = {"2": "two", "6": "six"}  # numbers of the sources that a line writes as a word


class Lines(tuple[Erratum, ...]):
    """Some errata, each computed when shown. A notebook shows a folded table with links; `str()` is text."""

    def _repr_markdown_(self) -> str:
        return self.folded(f"{len(self)} findings")

    def folded(self, summary: str) -> str:
        """The table, folded below a line."""
        rows = [HEAD, ("---",) * len(HEAD), *map(_row, self)]
        table = "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows)
        return f"<details><summary>{summary}</summary>\n\n{table}\n\n</details>"

    def __repr__(self) -> str:
        return str(
            Table(
                {
                    "finding": e.id,
                    "where": str(e.source),
                    "it says": e.stated,
                    "": COMES[e.comes],
                    "it comes to": told(e),
                }
                for e in self
            )
        )


def claimed(entry: Erratum) -> str:
    """The claim of a line by itself: what it says, without "It says that", and its number where that is not in it."""
    said = entry.what.partition(". But ")[0].removeprefix("It says that ")
    number = WORDS.get(entry.says, entry.stated if "," in entry.stated else re.escape(entry.says))
    stands = _plain(entry.quote) in _plain(said) if entry.quote else re.search(rf"(?<![\d.]){number}(?![\d.]\d)", said)
    return f"{said[0].upper()}{said[1:]}{'' if stands else f' ({entry.stated})'}."


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", text.lower())


def objection(entry: Erratum) -> str:
    """Why that cannot be, as a sentence of its own."""
    but = entry.what.partition(". But ")[2]
    return but[0].upper() + but[1:]


def told(entry: Erratum, number: float | None = None) -> str:
    """What a line comes to, or another number in its place, and of what: 5.73 % of a hop is latency."""
    return f"{found(entry, number)} {entry.noun}".rstrip()


def needed(entry: Erratum) -> str:
    """The number that the words of a source need: above 50 %."""
    return entry.unit.format(entry.says) if "{}" in entry.unit else f"{entry.says} {entry.unit}".rstrip()


def _row(e: Erratum) -> tuple[str, ...]:
    where = "<br>".join(part for part in (f"{e.source}, {e.place}", f"`{e.id}`", link(e)) if part)
    asks = questions()[e.caught[0]] if e.caught else "None of the seven: you have to know the format."
    comes = f"{COMES[e.comes]}: **{found(e)}** {e.noun}".rstrip()
    return where, claimed(e), f"{objection(e)}<br>*{asks}*", comes


def lines(kind: str) -> Lines | Said:
    """The lines of one group: "bytes", "memory", "time", "failures", "order" or "small". Largest factors first."""
    name = str(kind).strip().lower()
    if name not in groups():
        known = ", ".join(groups())
        return Said(f"There is no group {kind!r}{did_you_mean(name, groups())}. The groups are {known}.")
    return Lines(sorted((e for e in errata().values() if e.kind == name), key=_far, reverse=True))


class Groups(tuple[tuple[str, Lines], ...]):
    """All groups, each folded below its heading in the appendix."""

    def _repr_markdown_(self) -> str:
        return "\n\n".join(
            lines.folded(f"{name}: {len(lines)} finding{'s' if len(lines) > 1 else ''}") for name, lines in self
        )

    def __repr__(self) -> str:
        return "\n\n".join(f"{name}\n\n{lines!r}" for name, lines in self)


def everything() -> Groups:
    """Every finding, by groups, for reference."""
    return Groups((name, group) for kind, name in groups().items() if isinstance(group := lines(kind), Lines))


def _far(entry: Erratum) -> float:
    """How far off a line is: its factor, up or down. Where there is none, something is said of nothing."""
    return math.inf if entry.factor is None else abs(math.log(entry.factor))


def found(entry: Erratum, number: float | None = None) -> str:
    """What a line comes to, or another number in its place, with three digits or as a whole number, and the unit."""
    number = entry.claim().found if number is None else number
    if number == 1 and entry.unit.startswith("times"):
        return "the same" if entry.unit == "times" else entry.unit.removeprefix("times ")
    if not math.isfinite(number):
        return entry.unit.format(number) if "{}" in entry.unit else f"{number} {entry.unit}".rstrip()
    whole = abs(number) >= 1000 or number == round(number)
    digits = cell(round(number)) if whole else f"{number:.3g}"
    return entry.unit.format(digits) if "{}" in entry.unit else f"{digits} {entry.unit}".rstrip()


def link(entry: Erratum) -> str:
    """The section where a line matters, as a link, if its chapter is written."""
    chapter = load().chapter(entry.chapter)
    if not chapter.written:
        return ""
    words = re.sub(r"^\d+ ", "", entry.heading)
    return f"[ch. {chapter.number}, {words}]({chapter.name}.ipynb#{entry.heading.replace(' ', '-')})"


def gradient_of(run: Any) -> int:
    """The bytes of what the first collective of a run was given."""
    calls = run.trace.calls()
    if not calls:
        raise ValueError("no collective was called, so nothing was sent")
    return int(calls[0].nbytes)


STEPS = {  # what a collective is made of, and what it sends
    "all_reduce": (("reduce-scatter", "gradients"), ("all-gather", "gradients")),
    "reduce_scatter": (("reduce-scatter", "gradients"),),
    "all_gather": (("all-gather", "weights"),),
    "broadcast": (("broadcast", "weights"),),
}


def by_step(run: Any) -> list[tuple[str, str, float]]:
    """What a rank sent on average, by steps: the operation, of what, and the bytes. A ring does an all-reduce in two
    halves."""
    calls, sums = run.trace.collectives(), dict[str, float]()
    for message in run.trace.sends:
        name = calls[message.collective].name if message.collective >= 0 else "send"
        sums[name] = sums.get(name, 0.0) + message.nbytes / len(run.results)
    return [
        (step, what, nbytes / len(steps))
        for name, nbytes in sums.items()
        for steps in (STEPS.get(name, ((name, ""),)),)
        for step, what in steps
    ]


def sent(run: Any, program: str) -> book.Figure:
    """What a rank of a program sends on average, step by step; above it plain data parallelism by formula."""
    size, nbytes = len(run.results), gradient_of(run)
    each, plain = sum(run.trace.bytes_sent()) / size, cost.ring_all_reduce_bytes(nbytes, size)
    ratio = each / plain
    said = f"For a gradient of {bytes_text(nbytes)}, each of {size} ranks sent {bytes_text(each)}, "
    said += (
        "as the formula of a ring says for one all-reduce, and so for plain data parallelism."
        if abs(ratio - 1) < 1e-9
        else f"{ratio:.3g} times what plain data parallelism sends: {bytes_text(plain)}."
    )
    halves = [(step, what, plain / 2) for step, what in STEPS["all_reduce"]]
    shown = {f"{PLAIN}, by the formula": halves, f"{program}, in this run": by_step(run)}
    svg = Page("Bytes that a rank sends", said)
    y, scale = heading(svg, run.trace.badge, said) + 4, (WIDTH - 16) / max(each, plain)
    for name, steps in shown.items():
        svg.text(8, y + 12, name, bold=True)
        x = 8.0
        for step, what, n in steps:
            look = series(1 if what == "weights" else 0)
            svg.rect(x, y + 20, n * scale, 66, fill=look.colour, stroke_width=1.2)
            for k, line in enumerate((step, what, bytes_text(n))):
                if text_width(line, 13.5) < n * scale - 4:
                    svg.text(x + n * scale / 2, y + 39 + 19 * k, line, anchor="middle", on_colour=True)
            x += n * scale
        y += 104
    rows = [
        {"program": name, "step": f"{step} of {what}".removesuffix(" of "), "bytes": round(n)}
        for name, steps in shown.items()
        for step, what, n in steps
    ]
    return book.Figure(svg.title, run.trace.badge, said, list(rows), svg.render(y - 8))


PLAIN, TABLE, TEXT = "plain data parallelism", "ZeRO-1, as the table says", "ZeRO-1, as the text says"


WHOLE = 4 * 840_000  # bytes of the gradient of the page's whole model


def piece(run: Any, tp: int, pp: int) -> book.Figure:
    """What a rank sends when a model is cut into tp x pp pieces, beside one that is not cut.

    A rank returns the bytes of the gradient of its piece. A ring's members are drawn as the page makes its groups.
    """
    pieces, ranks = tp * pp, len(run.results)
    if not isinstance(run.results[0], int):
        raise ValueError("gradient_sum returns the bytes of a rank's gradient: gradient.nbytes")
    nbytes = pieces * run.results[0]
    each, whole = sum(run.trace.bytes_sent()) / ranks, cost.ring_all_reduce_bytes(nbytes, ranks)
    same = ranks // pieces
    others = f"{same - 1} other rank{'s' if same != 2 else ''}"
    said = (
        f"A rank holds the whole model, as {others} do, and sent {bytes_text(each)}. "
        if pieces == 1
        else f"A rank holds 1/{pieces} of the model, the same piece as {others}, and sent {bytes_text(each)}. "
        if same > 1
        else f"A rank holds 1/{pieces} of the model, and no other rank has the same piece, so the rank has no sum to "
        f"make ({each:.0f} bytes were sent to agree on the groups). "
    )
    if pieces > 1:
        said += f"To sum the whole gradient with all {ranks} ranks, the rank would send {bytes_text(whole)}."
    formula = cost.ring_all_reduce_bytes(nbytes / pieces, same) if same > 1 else 0.0
    if pieces > 1 and nbytes != WHOLE:
        said = (
            f"The gradient of a rank has {bytes_text(run.results[0])} here, and 1/{pieces} of the {bytes_text(WHOLE)} "
        )
        said += f"of the page would be {bytes_text(WHOLE / pieces)}: has gradient_sum been changed?"
    elif abs(each - formula) > 0.01 * formula + 1000:
        said += " That is not what the formula says: has gradient_sum been changed?"
    svg = Page("Who has the same piece of the model?", said)
    top = heading(svg, run.trace.badge, said) + 12
    box, gap = 54.0, 7.0
    for k in range(pieces):
        look, left = series(k), 12 + k * (same * (box + 8) + gap)
        for n in range(same):
            x = left + n * (box + 8)
            svg.text(x + box / 2, top, f"rank {k + n * pieces}", anchor="middle")
            w, h = box / pp, 44 / tp  # pieces: a column for each stage, a row for each tensor-parallel part
            svg.rect(x + k // tp * w, top + 8 + k % tp * h, w, h, fill=look.colour, hatch=look.hatch)
            for one in range(pieces):
                svg.rect(x + one // tp * w, top + 8 + one % tp * h, w, h, stroke_width=0.8)
        if same > 1:  # a ring: from each to the next one, and from the last back to the first
            y, first, last = top + 70, left + box / 2, left + (same - 1) * (box + 8) + box / 2
            svg.path(f"M{first} {y - 14} L{first} {y} L{last} {y} L{last} {y - 14}", width=2)
            for n in range(same):
                svg.arrow_head(left + n * (box + 8) + box / 2, y - 15, 0, -1, 8)
            svg.text((first + last) / 2, y + 18, f"ring of {same}", anchor="middle")
    svg.text(8, top + 112, "Filled: the piece of the model whose gradient a rank sums with its ring.")
    rows = [
        {"piece": f"{k + 1} of {pieces}", "ranks": ", ".join(str(k + n * pieces) for n in range(same)),
         "a rank sends, by the formula": bytes_text(formula), "and sent in this run": bytes_text(each)}
        for k in range(pieces)
    ]  # fmt: skip
    return book.Figure(svg.title, run.trace.badge, said, list(rows), svg.render(top + 122))


def held(run: Any, held_bytes: Any, stage: int) -> book.Figure:
    """What real ranks hold under one stage of ZeRO, part by part, and what the page's function says of it.

    A rank returns its bytes of each part. What is sharded is drawn where its share lies.
    """
    parameters, ranks, found = 512, len(run.results), run.results
    if not all(hasattr(one, "optimizer") for one in found):
        raise ValueError("state returns what a rank holds: model.state_bytes()")
    total, yours = found[0].total, round(held_bytes(parameters, stage, ranks))
    said = f"Of a model with {parameters} parameters each of {ranks} ranks held {total:,.0f} bytes under ZeRO-{stage}. "
    said += (
        f"That is what {book.whose(held_bytes)} held_bytes says."
        if {round(one.total) for one in found} == {yours}
        else f"That is not the {yours:,} of held_bytes: has state been changed?"
    )
    parts = {"parameters": 2 * parameters, "gradients": 2 * parameters, "optimizer state": 12 * parameters}
    svg = Page("What a rank holds", said)
    looks = [(name, series(k).colour, series(k).hatch) for k, name in enumerate(parts)]
    top = legend(svg, heading(svg, run.trace.badge, said), [*looks, ("not on this rank", "none", "")]) + 4
    left, scale = 64.0, (WIDTH - 170) / sum(parts.values())
    for rank, one in enumerate(found):
        x, y = left, top + 28 * rank
        svg.text(left - 8, y + 16, f"rank {rank}", anchor="end")
        for k, (whole, mine) in enumerate(
            zip(parts.values(), (one.parameters, one.gradients, one.optimizer), strict=True)
        ):
            share = min(1.0, mine / whole)
            svg.rect(x, y, whole * scale, 22, stroke_width=0.8)
            start = x + (1 - share) * whole * scale * rank / max(1, ranks - 1)
            svg.rect(
                start, y, share * whole * scale, 22, fill=series(k).colour, hatch=series(k).hatch, stroke_width=0.8
            )
            x += whole * scale
        svg.text(x + 10, y + 16, f"{one.total:,.0f} bytes")
    rows = [
        {"rank": rank, "parameters (bytes)": round(one.parameters), "gradients (bytes)": round(one.gradients),
         "optimizer state (bytes)": round(one.optimizer), "in all": round(one.total)}
        for rank, one in enumerate(found)
    ]  # fmt: skip
    return book.Figure(svg.title, run.trace.badge, said, list(rows), svg.render(top + 28 * ranks + 4))


def both_directions(pencil: Any = None) -> book.Figure | Said:
    """NVLink as its data sheet counts it, beside a port of InfiniBand, as a ring uses them.

    pencil: the panel with the question that this picture answers, if it is to wait for that.
    """
    if book.live() and pencil is not None and not getattr(pencil, "over", lambda id: False)("nvlink-both"):
        return Said("Answer the question on NVLink above, or press Show the steps. Then run this cell again.")
    return _both_directions()


def _both_directions() -> book.Figure:
    whole, port = 900.0, slow_sync.PORT / 1e9
    said = (
        "In a ring each GPU receives from one neighbour and sends to the other, so its link works in both directions. "
    )
    said += (
        f"The {whole:.0f} GB/s of the data sheet are the sum of both. So a GPU sends {whole / 2:.0f} GB/s, which is "
    )
    said += f"{whole / 2 / port:.0f} times a port of {port:.0f} GB/s, and not {whole / port:.0f} times."
    svg = Page("What a ring uses of a link", said)
    y = heading(svg, "quoted", said) + 14
    wires = (("NVLink", whole / 2, f"{whole / 2:.0f} in + {whole / 2:.0f} out = {whole:.0f}"),
             ("InfiniBand HDR", port, f"{port:.0f} in one direction"))  # fmt: skip
    for name, one, how in wires:
        for x, who in ((186, "left"), (353, "this GPU"), (520, "right")):
            svg.rect(x, y, 72, 44)
            svg.text(x + 36, y + 26, who, 12, "middle")
        for k, line in enumerate((name, "data sheet, in GB/s:", how)):
            svg.text(8, y + 11 + 17 * k, line, 12, bold=not k)
        thick = max(2.0, 16 * one / (whole / 2))
        for x, what in ((258, "receives"), (425, "sends")):
            head = max(8.0, thick)
            svg.line(x + 4, y + 24, x + 92 - head, y + 24, width=thick, colour=NODE)
            svg.arrow_head(x + 91, y + 24, 1, 0, head)
            svg.text(x + 47, y + 2, what, 11, "middle")
            svg.text(x + 47, y + 46, f"{one:.0f} GB/s", 11, "middle")
        y += 84
    rows = [{"link": name, "GB/s in one direction": one, "data sheet": how} for name, one, how in wires]
    return book.Figure("What a ring uses of a link", "quoted", said, list(rows), svg.render(y - 20))


def stages(run: Any) -> book.Figure:
    """What each stage does, by time: boxes of computing, and all the rest of its time marked as idle."""
    size, whole, places = run.trace.world_size, run.trace.duration, list[tuple[int, float, float]]()
    for span in run.trace.spans("compute"):
        places.append((span.rank, span.start, span.end))
    part = 1 - sum(end - begin for _, begin, end in places) / (whole * size)
    said = f"In {format_seconds(whole)} a stage idles for {part:.0%} of the time, on average."
    svg = Page("When does a stage idle?", said)
    looks = [("computes a microbatch", series(0).colour, ""), ("idle", "none", "/")]
    top = legend(svg, heading(svg, run.trace.badge, said), looks) + 6
    left, scale = 64.0, (WIDTH - 76) / whole
    for rank in range(size):
        y = top + 36 * rank
        svg.text(left - 8, y + 18, f"stage {rank}", anchor="end")
        svg.rect(left, y, whole * scale, 26, fill="none", hatch="/", stroke_width=0.6)
        mine = sorted((begin, end) for one, begin, end in places if one == rank)
        for number, (begin, end) in enumerate(mine):
            svg.rect(left + begin * scale, y, (end - begin) * scale, 26, fill=series(0).colour, stroke_width=0.8)
            if (end - begin) * scale > 16:
                svg.text(left + (begin + end) / 2 * scale, y + 18, str(number), anchor="middle")
    bottom = top + 36 * size
    step = next(each for each in (0.01, 0.02, 0.05, 0.1, 1.0) if whole <= 9 * each or each == 1)
    for k in range(int(whole / step + 1e-9) + 1):
        svg.text(left + k * step * scale, bottom + 12, f"{1e3 * step * k:.3g}", anchor="middle")
    svg.text(WIDTH - 12, bottom + 30, "time (ms); a number is a microbatch", anchor="end")
    rows = [
        {"stage": r, "computing (ms)": round(1e3 * sum(e - b for one, b, e in places if one == r), 3),
         "idle (%)": round(100 * (1 - sum(e - b for one, b, e in places if one == r) / whole), 1)}
        for r in range(size)
    ]  # fmt: skip
    return book.Figure("When does a stage idle?", run.trace.badge, said, list(rows), svg.render(bottom + 38))


def phases(two_level: TwoLevel) -> book.Figure | Said:
    """The three phases of the reader's algorithm with healthy links, and what the uplinks carry meanwhile."""
    return unchecked(two_level) or _phases(two_level)


def _phases(two_level: TwoLevel) -> book.Figure:
    phase = ("reduce-scatter", "ring between the nodes", "all-gather")
    times = suspects.phases(two_level)
    whole, busy = sum(times), times[1] / sum(times)
    said = f"Healthy uplinks are {busy:.0%} busy on average, because they rest during the phases inside the nodes. "
    said += f"The counter of the example shows {slow_sync.UPLINK_FRACTION:.0%}. "
    said += f"By {book.whose(two_level)} function 3 GB take {1e3 * whole:.1f} ms, and the uplinks send for "
    said += f"{1e3 * times[1]:.1f} ms of them."
    svg = Page("Three phases, and what the uplinks do", said)
    top = heading(svg, "simulated", said) + 8
    left, wide = 70, WIDTH - 80
    x = float(left)
    svg.text(8, top + 22, "phase", 12)
    svg.text(8, top + 84, "uplinks", 12)
    base = top + 150
    for k, (name, t) in enumerate(zip(phase, times, strict=True)):
        width, look = wide * t / whole, series(k)
        svg.rect(x, top, width, 34, fill=look.colour, hatch=look.hatch, hover=f"{name}: {1e3 * t:.2f} ms")
        svg.text(x + width / 2, top + 50, f"{name}", 10.5, "middle")
        svg.text(x + width / 2, top + 66, f"{1e3 * t:.2f} ms", 10.5, "middle")
        if k == 1:
            svg.rect(x, top + 76, width, base - top - 76, fill=look.colour, hatch=look.hatch)
            svg.text(x + width / 2, base + 15, "100 %", 11, "middle")
        else:
            svg.line(x, base, x + width, base)
            svg.text(x + width / 2, base + 15, "0 %", 11, "middle")
        x += width
    level = base - (base - top - 76) * busy
    svg.line(left, level, left + wide, level, dash="6 4", width=1.5)
    shown = base - (base - top - 76) * slow_sync.UPLINK_FRACTION
    svg.line(left, shown, left + wide, shown, dash="2 3", width=1.5)
    below, above = sorted((level, shown), reverse=True)  # the lower line has its name below it, so none is struck out
    names = {level: f"average, {busy:.0%}", shown: f"counter, {slow_sync.UPLINK_FRACTION:.0%}"}
    svg.text(left + wide - 4, above - 4, names[above], 11, "end")
    if below != above:
        svg.text(left + wide - 4, below + 14, names[below], 11, "end")
    rows = [
        {"phase": name, "ms": 1e3 * t, "uplinks": f"{100 * (k == 1)} %"}
        for k, (name, t) in enumerate(zip(phase, times, strict=True))
    ]
    return book.Figure("Three phases, and what the uplinks do", "simulated", said, list(rows), svg.render(base + 26))


def times(story: Story) -> book.Figure:
    """The phases of an algorithm on a time axis that stays, with a line at the time that was seen."""
    seen, whole = slow_sync.OBSERVED, story.seconds
    far = abs(whole - seen) * 1e3
    beside = "as was seen" if far < 0.05 else f"{far:.1f} ms {'less' if whole < seen else 'more'} than was seen"
    said = f"This algorithm takes {1e3 * whole:.1f} ms, {beside}."
    svg = Page("What explains the time that was seen?", said)
    top = heading(svg, "simulated", said) + 22
    left, scale = 8.0, (WIDTH - 16) / max(0.2, whole * 1.05)
    x = left
    for k, (name, t) in enumerate(zip(story.names, story.phases, strict=True)):
        look = series(k)
        svg.rect(x, top, t * scale, 34, fill=look.colour, hatch=look.hatch, hover=f"{name}: {1e3 * t:.2f} ms")
        x += t * scale
    svg.line(left + seen * scale, top - 10, left + seen * scale, top + 44, dash="6 4", width=2)
    svg.text(left + seen * scale + 5, top - 8, f"seen: {1e3 * seen:.0f} ms", 11)
    looks = [(f"{name}, {1e3 * t:.2f} ms", series(k).colour, series(k).hatch) for k, (name, t) in
             enumerate(zip(story.names, story.phases, strict=True))]  # fmt: skip
    bottom = legend(svg, top + 54, looks)
    rows = [
        {"phase": name, "ms": round(1e3 * t, 2), "part": f"{t / whole:.0%}"}
        for name, t in zip(story.names, story.phases, strict=True)
    ]
    return book.Figure("What explains the time that was seen?", "simulated", said, list(rows), svg.render(bottom))


LEFT, TALL = 62, 230  # pixels of the plane of all stories: left of it, and its height
SLOWEST, LARGEST = 0.2, 7.0  # what its axes end with: a part of the uplinks' speed, and GB
COUNTED = {"counter as a speed": "speed", "counter as an average": "average", "counter in both meanings": "both"}


def plane(two_level: TwoLevel, case: object = None) -> book.Figure | Said:
    """Stories that take the time that was seen: a curve for each algorithm, thick where the counter fits as well.

    case: the panel above, with what the reader has found: algorithm, size of the message in GB, and the part of
    their speed that the uplinks have.
    """
    found: dict[object, tuple[str, float, float]] = getattr(case, "found", {})
    return unchecked(two_level) or unsearched(case, "plane") or _plane(two_level, list(found.values()))


def _plane(two_level: TwoLevel, found: list[tuple[str, float, float]]) -> book.Figure:
    rows = suspects.stories(two_level)
    said = (
        f"On each curve an algorithm takes the {1e3 * slow_sync.OBSERVED:.0f} ms that were seen. The curve is thick "
        f"where the counter fits, too, as a speed or as an average. At {slow_sync.GRADIENT / GB:.0f} GB, where the "
        "expected times come out, no curve is thick."
    )
    if found:
        said += f" The {'circle is the explanation' if len(found) == 1 else 'circles are the explanations'} "
        said += "that you have found."
    svg = Page("Explanations of the time that was seen", said)
    names = list(suspects.ALGORITHMS)
    top = legend(svg, heading(svg, "simulated", said), [(f"{n[0]} {n[1]}", series(k).colour, "") for k, n in
                 enumerate(zip("ABC", names, strict=True))]) + 22  # fmt: skip
    wide = WIDTH - LEFT - 20

    def place(size: float, uplinks: float) -> tuple[float, float]:
        return LEFT + wide * size / LARGEST, top + TALL * (1 - (uplinks - SLOWEST) / (1 - SLOWEST))

    svg.rect(LEFT, top, wide, TALL, fill="none")
    for k, name in enumerate(names):
        thick: dict[str, list[tuple[float, float]]] = {}  # by what the counter shows there
        for n in range(80):
            low, high = (SLOWEST + (1 - SLOWEST) * (n + step) / 80 for step in (0, 1))
            ends = [(suspects.seen_size(two_level, part, name), part) for part in (low, high)]
            if all(size <= LARGEST for size, _ in ends):
                (x1, y1), (x2, y2) = (place(*end) for end in ends)
                size, middle = suspects.seen_size(two_level, (low + high) / 2, name), (low + high) / 2
                fits = suspects.story(two_level, size, 100 * middle, name).counter
                svg.line(x1, y1, x2, y2, width=6 if fits else 2, colour=series(k).colour)
                if fits:
                    thick.setdefault(COUNTED[fits], []).append((x1, y1))
        for what, points in thick.items():
            x, y = points[len(points) // 2]
            svg.text(x + 10, y + 5, what)
        x, y = place(suspects.seen_size(two_level, 0.78, name), 0.78)
        svg.text(x + 9, y + 10, "ABC"[k], bold=True)
    for name, size, part in found:
        x, y = place(size, part)
        svg.add("circle", cx=x, cy=y, r=9, fill=series(names.index(name)).colour, stroke="#1a1a1a", stroke_width=2)
    x, _ = place(slow_sync.GRADIENT / GB, 1)
    svg.line(x, top, x, top + TALL, dash="6 4", width=1.5)
    svg.text(x, top - 5, f"{slow_sync.GRADIENT / GB:.0f} GB", anchor="middle")
    for size in range(0, int(LARGEST) + 1, 2):
        svg.text(place(size, SLOWEST)[0], top + TALL + 17, f"{size} GB", 11, "middle")
    for part in (0.2, 0.6, 1.0):
        svg.text(LEFT - 6, place(0, part)[1] + 5, f"{part:.0%}", 11, "end")
    svg.text(LEFT + wide / 2, top + TALL + 36, "size of the message", 11, "middle")
    svg.text(LEFT + wide - 8, top + TALL - 10, "upwards: speed of the uplinks", 11, "end")
    return book.Figure(svg.title, "simulated", said, list(rows), svg.render(top + TALL + 48))
