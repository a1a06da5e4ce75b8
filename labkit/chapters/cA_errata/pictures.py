"""What the appendix shows: the lines of a group as a table with links, and pictures of some of its errors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import series
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Table, cell
from labkit.book.drawing.units import bytes_text
from labkit.chapters.cA_errata.suspects import PHASES, Story
from labkit.cost import slow_sync
from labkit.course import errata, load
from labkit.course.errata import Erratum, groups
from labkit.course.errors import did_you_mean

HEAD = ("where", "what it says, and why that cannot be", "it says", "it comes to", "see")
COMES = {"right": "right", "then": "then", "elsewhere": "elsewhere"}  # the words that stand before our number
NODE = "#0072b2"


class Said(str):
    """A sentence, shown as one."""

    def __repr__(self) -> str:
        return str(self)


class Lines(tuple[Erratum, ...]):
    """Some errata, each computed when shown. A notebook shows a folded table with links; `str()` is text."""

    def _repr_markdown_(self) -> str:
        rows = [HEAD, ("---",) * len(HEAD), *map(_row, self)]
        table = "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows)
        return f"<details><summary>All {len(self)} lines of this group</summary>\n\n{table}\n\n</details>"

    def __repr__(self) -> str:
        return str(
            Table(
                {"line": e.id, "where": str(e.source), "it says": e.stated, "": COMES[e.comes], "it comes to": found(e)}
                for e in self
            )
        )


def _row(e: Erratum) -> tuple[str, ...]:
    return f"{e.source}, {e.place}<br>`{e.id}`", e.what, e.stated, f"{COMES[e.comes]}: **{found(e)}**", link(e)


def lines(kind: str) -> Lines | Said:
    """The lines of one group: "bytes", "memory", "time", "failures", "order" or "small". Largest factors first."""
    name = str(kind).strip().lower()
    if name not in groups():
        known = ", ".join(groups())
        return Said(f"There is no group {kind!r}{did_you_mean(name, groups())}. The groups are {known}.")
    return Lines(sorted((e for e in errata().values() if e.kind == name), key=_far, reverse=True))


def _far(entry: Erratum) -> float:
    """How far off a line is: its factor, up or down. Where there is none, something is said of nothing."""
    return math.inf if entry.factor is None else abs(math.log(entry.factor))


def found(entry: Erratum) -> str:
    """What a line comes to, with three digits or as a whole number, and the unit."""
    number = entry.claim().found
    if entry.unit == "times" and number == 1:
        return "the same"
    whole = abs(number) >= 1000 or number == round(number)
    digits = cell(round(number)) if whole else f"{number:.3g}"
    return entry.unit.format(digits) if "{}" in entry.unit else f"{digits} {entry.unit}".rstrip()


def link(entry: Erratum) -> str:
    """The section where a line matters, as a link, if its chapter is written."""
    chapter = load().chapter(entry.chapter)
    if not chapter.written:
        return ""
    words = re.sub(r"^\d+ ", "", entry.heading)
    return f"[{chapter.number}: {words}]({chapter.name}.ipynb#{entry.heading.replace(' ', '-')})"


def sent(run: Any) -> book.Figure:
    """Bytes that each rank sent, beside those of an all-reduce alone; ranks return the bytes of their gradient."""
    size, nbytes = len(run.results), run.results[0]
    each = run.trace.bytes_sent()
    alone = cost.ring_all_reduce_bytes(nbytes, size)
    ratio = sum(each) / (size * alone)
    many = "as much as" if abs(ratio - 1) < 1e-9 else f"{ratio:.3g} times what"
    said = f"For a gradient of {bytes_text(nbytes)}, {size} ranks sent {bytes_text(sum(each))} in all, {many} "
    said += f"plain data parallelism sends: {bytes_text(size * alone)}."
    values = {
        "sent": {f"rank_{rank}": float(n) for rank, n in enumerate(each)},
        "plain data parallelism": {f"rank_{rank}": alone for rank in range(size)},
    }
    return book.bars(values, title="Bytes that each rank sends", sentence=said, ticks=True)


def factors(labels: Mapping[str, str]) -> book.Figure:
    """Some lines, by id with a label, as how many times their number is too large or too small: a logarithmic axis."""
    known = [(e.factor or 1.0, e) for e in errata().values() if e.id in labels]
    rows = [
        {"what": labels[e.id], "kind": groups()[e.kind], "it says": e.stated, "it comes to": found(e), "factor": f}
        for f, e in known
    ]
    twice = sum(f >= 2 or f <= 0.5 for f, _ in known)
    (least, low), (most, high) = (end(known, key=lambda pair: pair[0]) for end in (min, max))
    said = f"{len(known)} numbers, and {twice} of them are off by a factor of 2 or more: the {labels[low.id]} comes to "
    said += f"{least:.2g} times what is said, and the {labels[high.id]} to {most:.2g} times."
    svg = Svg(WIDTH, "What it comes to, over what it says", said)
    y = heading(svg, "quoted", said) + 26

    def at(factor: float) -> float:
        return 225 + (WIDTH - 250) * (math.log10(factor) + 2.4) / 3.7

    bottom = y + 17 * len(known) + 20 * len({e.kind for _, e in known})
    for tick in (0.01, 0.1, 0.5, 1, 2, 10):
        svg.line(at(tick), y - 8, at(tick), bottom, faint=tick != 1)
        svg.text(at(tick), y - 13, f"{tick:g}", 11, "middle")
    for k, kind in enumerate(groups()):
        svg.text(8, y + 12, groups()[kind], 11, bold=True)
        y += 20
        for factor, e in known:
            if e.kind == kind:
                look, (left, right) = series(k), sorted((at(factor), at(1)))
                svg.text(217, y + 10, labels[e.id], 11, "end")
                svg.rect(left, y, right - left, 11, fill=look.colour, hatch=look.hatch, hover=f"{factor:.3g}")
                y += 17
    return book.Figure("What it comes to, over what it says", "quoted", said, list(rows), svg.render(bottom + 6))


def both_directions() -> book.Figure:
    """NVLink as its data sheet counts it, beside a port of InfiniBand, as a ring uses them."""
    whole, port = 900.0, slow_sync.PORT / 1e9
    said = f"A ring sends to one neighbour, and receives from the other. So of the {whole:.0f} GB/s of a data sheet it "
    said += f"sends with {whole / 2:.0f}: {whole / 2 / port:.0f} times a port of {port:.0f} GB/s, and not "
    said += f"{whole / port:.0f} times."
    svg = Svg(WIDTH, "What a ring uses of a link", said)
    y = heading(svg, "quoted", said) + 14
    wires = (("NVLink", whole / 2, "counted in both directions"), ("InfiniBand HDR", port, "counted in one direction"))
    for name, one, how in wires:
        for x, text in ((150, "GPU"), (560, "GPU")):
            svg.rect(x, y, 60, 54)
            svg.text(x + 30, y + 31, text, 12, "middle")
        svg.text(8, y + 24, name, 12, bold=True)
        svg.text(8, y + 40, how, 9.5)
        thick = max(2.0, 16 * one / (whole / 2))
        svg.line(214, y + 15, 556, y + 15, width=thick, colour=NODE)
        svg.line(214, y + 40, 556, y + 40, width=thick, dash="dash", colour="#999999")
        svg.text(385, y + 3, f"sends {one:.0f} GB/s", 11, "middle")
        svg.text(385, y + 61, f"{one:.0f} GB/s, for what comes back", 11, "middle")
        y += 92
    rows = [{"link": name, "GB/s in one direction": one, "data sheet": how} for name, one, how in wires]
    return book.Figure("What a ring uses of a link", "quoted", said, list(rows), svg.render(y - 20))


def phases() -> book.Figure:
    """The three phases of the recipe with healthy links, and what the uplinks carry meanwhile."""
    names = ("reduce-scatter", "ring between the nodes", "broadcast")
    times = slow_sync.stated_phases()
    whole, busy = sum(times), times[1] / sum(times)
    said = f"The recipe takes {1e3 * whole:.1f} ms for 3 GB. Its uplinks send for {1e3 * times[1]:.1f} ms of them and "
    said += f"rest while the nodes work inside: on average they are {busy:.0%} busy, though nothing is wrong."
    svg = Svg(WIDTH, "Three phases, and what the uplinks do", said)
    top = heading(svg, "simulated", said) + 8
    left, wide = 110, WIDTH - 130
    x = float(left)
    svg.text(8, top + 22, "phase", 12)
    svg.text(8, top + 84, "uplinks", 12)
    base = top + 110
    for k, (name, t) in enumerate(zip(names, times, strict=True)):
        width, look = wide * t / whole, series(k)
        svg.rect(x, top, width, 34, fill=look.colour, hatch=look.hatch, hover=f"{name}: {1e3 * t:.2f} ms")
        svg.text(x + width / 2, top + 50, f"{name}", 10.5, "middle")
        svg.text(x + width / 2, top + 63, f"{1e3 * t:.2f} ms", 10.5, "middle")
        if k == 1:
            svg.rect(x, top + 72, width, base - top - 72, fill=look.colour, hatch=look.hatch)
            svg.text(x + width / 2, base + 15, "100 %", 11, "middle")
        else:
            svg.line(x, base, x + width, base)
            svg.text(x + width / 2, base + 15, "0 %", 11, "middle")
        x += width
    level = base - (base - top - 72) * busy
    svg.line(left, level, left + wide, level, dash="dash", width=1.5)
    svg.text(left + 4, level - 4, f"average {busy:.0%}", 11)
    rows = [
        {"phase": name, "ms": 1e3 * t, "uplinks": f"{100 * (k == 1)} %"}
        for k, (name, t) in enumerate(zip(names, times, strict=True))
    ]
    return book.Figure("Three phases, and what the uplinks do", "simulated", said, list(rows), svg.render(base + 26))


def times(story: Story) -> book.Figure:
    """The phases of a recipe on a time axis that stays, with a line at the time that was seen."""
    seen, whole = slow_sync.OBSERVED, story.seconds
    far = abs(whole - seen) * 1e3
    said = f"The recipe takes {1e3 * whole:.1f} ms, {far:.1f} ms {'less' if whole < seen else 'more'} than was seen."
    svg = Svg(WIDTH, "What explains the time that was seen?", said)
    top = heading(svg, "simulated", said) + 22
    left, scale = 8.0, (WIDTH - 16) / max(0.2, whole * 1.05)
    x = left
    for k, (name, t) in enumerate(zip(PHASES, story.phases, strict=True)):
        look = series(k)
        svg.rect(x, top, t * scale, 34, fill=look.colour, hatch=look.hatch, hover=f"{name}: {1e3 * t:.1f} ms")
        x += t * scale
    svg.line(left + seen * scale, top - 10, left + seen * scale, top + 44, dash="dash", width=2)
    svg.text(left + seen * scale + 5, top - 8, f"seen: {1e3 * seen:.0f} ms", 11)
    looks = [(f"{name}, {1e3 * t:.1f} ms", series(k).colour, series(k).hatch, "") for k, (name, t) in
             enumerate(zip(PHASES, story.phases, strict=True))]  # fmt: skip
    bottom = legend(svg, top + 54, looks)
    rows = [
        {"phase": name, "ms": round(1e3 * t, 1), "part": f"{t / whole:.0%}"}
        for name, t in zip(PHASES, story.phases, strict=True)
    ]
    return book.Figure("What explains the time that was seen?", "simulated", said, list(rows), svg.render(bottom))
