"""Pictures that explain: a map of cuts, a mesh, machines, rungs of a rule, all plans as a histogram, what is off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE, PURPLE, SERIES, YELLOW
from labkit.book.drawing.svg import Svg, text_width, wrap
from labkit.book.drawing.tables import Row
from labkit.cost.planner import Advice, Estimate
from labkit.cost.topology import cloudmatrix384, dgx_node, nvl72
from labkit.cost.topology.machines import NodeParts
from labkit.cost.units import GB, format_bandwidth
from labkit.parallel import Layout

# A map of cuts ---------------------------------------------------------------------------------------------------


def cuts(found: Mapping[tuple[int, int], float | None], marked: Mapping[str, tuple[int, int]], title: str,
         sentence: str) -> book.Figure:  # fmt: skip
    """(t, p) -> seconds of a step, None where it does not fit: t to the right, p downwards. marked: name -> (t, p)."""
    across, down = (sorted({cut[k] for cut in found}) for k in (0, 1))
    fast, slow = (f(s for s in found.values() if s) for f in (min, max))
    svg, left, wide, high = Svg(WIDTH, title, sentence), 96.0, 92.0, 30.0
    top = heading(svg, "simulated", sentence) + 34
    svg.text(left, top - 22, "tensor ranks t", 11.5)
    svg.text(8, top - 6, "stages p", 11.5)
    for k, t in enumerate(across):
        svg.text(left + wide * (k + 0.5), top - 6, str(t), 11.5, "middle", bold=True)
    for row, p in enumerate(down):
        y = top + high * row
        svg.text(left - 12, y + 20, str(p), 11.5, "end", bold=True)
        for k, t in enumerate(across):
            if (t, p) not in found:
                continue
            x, seconds = left + wide * k, found[t, p]
            part = 0.0 if seconds is None else math.log(seconds / fast) / max(math.log(slow / fast), 1e-9)
            colour = (
                GREY
                if seconds is None
                else "#" + "".join(f"{round(255 - (255 - c) * part):02x}" for c in (230, 120, 60))
            )
            svg.rect(x, y, wide - 3, high - 3, colour, "x" if seconds is None else "", ON_COLOUR, stroke_width=0.6)
            if seconds is not None:
                svg.text(x + (wide - 3) / 2, y + 19, f"{seconds:.2f} s", 11, "middle", on_colour=True)
    beside = left + wide * len(across) + 6
    for n, (name, (t, p)) in enumerate(marked.items()):
        x, y = left + wide * across.index(t), top + high * down.index(p)
        svg.rect(x - 1, y - 1, wide - 1, high - 1, stroke_width=3.2)
        svg.text(x + wide - 10, y + 12, "AB"[n], 10.5, "end", bold=True, on_colour=True)
        for line, words in enumerate(wrap(f"{'AB'[n]}: {name}", WIDTH - beside - 8, 11)):
            svg.text(beside, top + 14 + 62 * n + 14 * line, words, 11, bold=not line)
    y = top + high * len(down) + 14
    svg.text(left, y, "a number: seconds of a step by labkit's planner   hatched: does not fit", 10.5)
    rows: list[Row] = [
        {"t": t, "p": p, "step (s)": None if s is None else round(s, 3)} for (t, p), s in sorted(found.items())
    ]
    return book.Figure(title, "simulated", sentence, rows, svg=svg.render(y + 10))


# The cube --------------------------------------------------------------------------------------------------------

SAYS = {
    "dp": "Along dp, ranks hold the same layers and read different examples. Once a step they add up gradients.",
    "pp": "Along pp, ranks hold different layers. For each microbatch they pass activations on, and gradients back.",
    "tp": "Along tp, ranks hold parts of the same layers. Several times in each layer they add up partial sums.",
}


def cube(sizes: Mapping[str, int]) -> book.Player:
    """The ranks of a mesh of three axes as cubes; picture by picture the groups along one axis."""
    layout = Layout(sizes)
    loops = ", ".join(f"{axis} from 0 to {size - 1}" for axis, size in sizes.items())
    whole = f"{layout.size} ranks, counted by three loops, the last one fastest: {loops}."
    frames = [(_cubes(whole, layout, None), whole)]
    for axis in layout.axes:
        groups = layout.groups(axis)
        told = " and ".join("{" + ", ".join(map(str, g)) + "}" for g in groups[:2])
        words = f"{SAYS[axis]} Ranks of one colour form a group: {told}" + (" and so on." if len(groups) > 2 else ".")
        frames.append((_cubes(words, layout, axis), words))
    rows = [{"rank": r, **layout.coordinates(r)} for r in range(layout.size)]
    return book.play(frames, title="A mesh of eight ranks", badge="simulated", rows=rows, still=len(frames) - 1)


def _cubes(words: str, layout: Layout, along: str | None) -> str:
    svg = Svg(WIDTH, "A mesh of eight ranks", words)
    top = max(heading(svg, "simulated", words), 74.0) + 10
    back, down, right = layout.axes  # blocks of dp stand beside each other; pp goes down, tp to the right
    d, p, t = (layout.sizes[axis] for axis in layout.axes)
    left, apart = 186.0, 30.0
    side = min(76.0, (WIDTH - left - apart * d) / (d * t) - 8, 260 / p)
    block, base = t * (side + 8) + apart, top + 14.0 * (d - 1)
    groups = layout.groups(along) if along else []
    number_of = {rank: n for n, group in enumerate(groups) for rank in group}
    for i in reversed(range(d)):
        for j in range(p):
            for k in range(t):
                rank = layout.rank(**{back: i, down: j, right: k})
                look = SERIES[number_of[rank] % len(SERIES)] if along else None
                x, y = left + k * (side + 8) + i * block, base + j * (side + 8) - 14 * i
                svg.rect(x, y, side, side, look.colour if look else "#ffffff", look.hatch if look else "", ON_COLOUR,
                         radius=5, hover=f"rank {rank}: {layout.coordinates(rank)}")  # fmt: skip
                svg.rect(x + 5, y + 5, 27, 18, "#ffffff", stroke=ON_COLOUR, stroke_width=0.5, radius=3)
                svg.text(x + 18.5, y + 18.5, str(rank), 12, "middle", True, on_colour=True)
    bottom = base + p * (side + 8)
    for n, (axis, way) in enumerate(((back, "from block to block"), (down, "downwards"), (right, "to the right"))):
        svg.text(10, base + 20 + 22 * n, f"{axis} = {layout.sizes[axis]}: {way}", 12, bold=axis == along)
    return svg.render(bottom + 14)


# Nested links -----------------------------------------------------------------------------------------------------


def nested(t: int, p: int, d: int, waits: Mapping[str, float]) -> book.Figure:
    """A fleet cut t x p x d, by how far its axes reach: a node of tensor ranks, the nodes of the replicas of a stage,
    and all stages. waits: seconds that a GPU waits in a step, by axis."""
    title = f"From the inside to the outside: TP{t}, DP{d}, PP{p}"
    said = (
        f"The {t} tensor ranks of a layer fill a node. The {d} replicas of a stage are {d} nodes, and the {p} stages "
        f"are {p} such groups. In a step a GPU waits {waits['tensor']:.2f} s for messages inside its node, "
        f"{waits['data']:.2f} s for those inside its stage, and {waits['pipeline']:.2f} s for those between stages."
    )
    svg = Svg(WIDTH, title, said)
    top = heading(svg, "simulated", said) + 30
    boxes = (
        ("tensor", "tp", t, f"one node: {t} GPUs", "GPU", 4, f"in the node: waits {waits['tensor']:.2f} s"),
        ("data", "dp", d, f"one stage: {d} nodes", "node", 4, f"node to node: waits {waits['data']:.2f} s"),
        ("pipeline", "pp", p, f"the fleet: {p} stages", "stage", 4, f"stage to stage: waits {waits['pipeline']:.2f} s"),
    )  # fmt: skip
    wide, high, gap = 212.0, 190.0, 32.0
    for n, (axis, short, count, told, one, columns, carries) in enumerate(boxes):
        x, look = 8 + n * (wide + gap), PARTS[axis]
        svg.rect(x, top, wide, high, stroke_width=2.2, radius=6)
        svg.text(x + wide / 2, top - 8, told, 12, "middle", True)
        rows = math.ceil(min(count, 16) / columns)
        w, h = (wide - 24) / columns, min(40.0, (high - 54) / rows)
        for k in range(min(count, 16)):
            at, y = x + 12 + (k % columns) * w, top + 12 + (k // columns) * h
            first = k == 0 and n > 0
            svg.rect(at + 2, y + 2, w - 4, h - 4, look.colour, "" if first else look.hatch, ON_COLOUR,
                     stroke_width=2.6 if first else 0.6, radius=3)  # fmt: skip
            svg.rect(at + w / 2 - 21, y + h / 2 - 8, 42, 15, "#ffffff", stroke="none", radius=3)
            svg.text(at + w / 2, y + h / 2 + 4, f"{one} {k}", 9.5, "middle", on_colour=True)
        svg.text(x + wide / 2, top + high - 27, f"{short}: {axis}", 11.5, "middle", True)
        svg.text(x + wide / 2, top + high - 11, carries, 11, "middle")
        if n:  # the box before is the first place of this one
            svg.line(x - gap, top, x + 14, top + 14, dash="4 3")
            svg.line(x - gap, top + high, x + 14, top + 12 + h - 2, dash="4 3")
    told_rows: list[Row] = [
        {"axis": axis, "ranks": count, "reaches over": told, "a GPU waits (s)": waits[axis]}
        for axis, _, count, told, *_ in boxes
    ]
    return book.Figure(title, "simulated", said, told_rows, svg=svg.render(top + high + 10))


# Partners on nodes ------------------------------------------------------------------------------------------------


def joined(several: Mapping[str, tuple[Mapping[tuple[int, int, str], int], Sequence[str]]], title: str,
           sentence: str) -> book.Figure:  # fmt: skip
    """Beside each other, eight ranks on four nodes of two. name -> bytes by (rank, rank, axis), and words below.

    Along each axis a rank has one partner, so the lines are the edges of a cube: those inside a node, those from node
    to node to the right, and those downwards.
    """
    svg = Svg(WIDTH, title, sentence)
    y = heading(svg, "emulated", sentence)
    axes = list(dict.fromkeys(axis for lines, _ in several.values() for *_, axis in lines))
    for n, axis in enumerate(axes):
        svg.rect(8 + 110 * n, y, 16, 11, PARTS[axis].colour, PARTS[axis].hatch, ON_COLOUR, stroke_width=0.7)
        svg.text(29 + 110 * n, y + 10, axis, 11)
    svg.text(29 + 110 * len(axes), y + 10, "a box: a node, with a fast link inside; between boxes links are slow", 11)
    top, wide = y + 44, WIDTH / len(several)
    most = max(n for lines, _ in several.values() for n in lines.values())
    rows: list[Row] = []
    for k, (name, (lines, words)) in enumerate(several.items()):
        left = 14 + wide * k
        svg.text(left, top - 10, name, 12, bold=True)
        place = {  # the second rank of a node stands a little lower, so that no line crosses a rank
            rank: (left + 26 + 118 * (rank // 2 % 2) + 44 * (rank % 2), top + 26 + 104 * (rank // 4) + 34 * (rank % 2))
            for rank in range(8)
        }
        for node in range(4):
            x, node_y = place[2 * node]
            svg.rect(x - 20, node_y - 18, 84, 70, stroke_width=1.4, radius=8)
        for (a, b, axis), nbytes in sorted(lines.items(), key=lambda item: -item[1]):
            svg.line(*place[a], *place[b], width=2 + 9 * nbytes / most, colour=PARTS[axis].colour)
            rows.append({"": name, "ranks": f"{a} and {b}", "axis": axis, "kB": nbytes / 1e3,
                         "link": "in a node" if a // 2 == b // 2 else "between nodes"})  # fmt: skip
        for rank, (x, rank_y) in place.items():
            svg.rect(x - 12, rank_y - 12, 24, 24, "#ffffff", "", ON_COLOUR, radius=12)
            svg.text(x, rank_y + 4, str(rank), 11, "middle", on_colour=True)
        for n, line in enumerate(words):
            svg.text(left, top + 212 + 16 * n, line, 11.5)
    return book.Figure(title, "emulated", sentence, rows, svg=svg.render(top + 212 + 16 * 2))


# Machines --------------------------------------------------------------------------------------------------------


MACHINES = "How many GPUs the fast links connect"


def machines() -> book.Player:
    """A node of 8, a rack of 72 and a supernode of 384: how many GPUs the fast links connect."""
    parts = NodeParts()
    rows = []
    words = []
    for name, machine, inside in (
        ("8-GPU node", dgx_node(2), f"{parts.gpus} GPUs, all connected by NVSwitch"),
        ("GB300 NVL72", nvl72(2), "72 GPUs of one rack on one NVLink network"),
        ("CloudMatrix 384", cloudmatrix384(2), "384 NPUs, in 48 nodes of 8, on one unified bus"),
    ):
        fast, slow = machine.levels
        rows.append({"machine": name, "fast domain": fast.holds, "inside (GB/s a GPU)": fast.bandwidth / GB,
                     "outside (GB/s a GPU)": slow.bandwidth / GB,
                     "times": fast.bandwidth / slow.bandwidth})  # fmt: skip
        words.append(
            f"{name}: {inside}. Each sends {format_bandwidth(fast.bandwidth, 3)} inside, which is "
            f"{fast.bandwidth / slow.bandwidth:.3g} times the {format_bandwidth(slow.bandwidth, 3)} to the outside."
        )
    frames = [(_node(words[0], parts), words[0])]
    frames.append((_grid(words[1], 18, 4, "18 trays of 4 GPUs (and 2 CPUs)"), words[1]))
    frames.append((_grid(words[2], 48, 8, "48 nodes of 8 NPUs"), words[2]))
    return book.play(frames, title=MACHINES, badge="quoted", rows=rows, still=0, sentence=" ".join(words))


def _node(words: str, parts: NodeParts) -> str:
    svg = Svg(WIDTH, MACHINES, words)
    top = max(heading(svg, "quoted", words), 84.0) + 6
    wide = (WIDTH - 40) / parts.gpus
    svg.rect(20, top + 150, WIDTH - 40, 26, BLUE, "/", ON_COLOUR, radius=4)
    svg.rect(300, top + 154, 160, 18, BLUE)
    svg.text(WIDTH / 2, top + 167, "NVLink and NVSwitch", 12, "middle", True, on_colour=True)
    for n in range(parts.cpus):
        x, w = 20 + n * (WIDTH - 40) / parts.cpus, (WIDTH - 40) / parts.cpus
        svg.rect(x + 30, top, w - 60, 24, GREY, "", ON_COLOUR, radius=4)
        svg.text(x + w / 2, top + 16, f"CPU {n}" + (" (joined by UPI)" if n else ""), 11, "middle", on_colour=True)
    for n in range(parts.switches):
        x, w = 20 + n * (WIDTH - 40) / parts.switches, (WIDTH - 40) / parts.switches
        svg.line(x + w / 2, top + 24, x + w / 2, top + 42)
        svg.rect(x + 14, top + 42, w - 28, 22, YELLOW, "", ON_COLOUR, radius=4)
        svg.text(x + w / 2, top + 57, f"PCIe switch {n}", 11, "middle", on_colour=True)
    for n in range(parts.gpus):
        x = 20 + n * wide
        svg.line(x + wide * 0.3, top + 64, x + wide * 0.3, top + 96)
        svg.line(x + wide * 0.75, top + 64, x + wide * 0.75, top + 82)
        svg.rect(x + wide * 0.58, top + 82, wide * 0.36, 18, GREEN, ".", ON_COLOUR, radius=3)
        svg.rect(x + wide * 0.62, top + 85, wide * 0.28, 12, GREEN)
        svg.text(x + wide * 0.76, top + 95, "NIC", 9, "middle", on_colour=True)
        svg.line(x + wide * 0.76, top + 100, x + wide * 0.76, top + 200, dash="3 3")
        svg.rect(x + 4, top + 96, wide * 0.48, 34, ORANGE, "", ON_COLOUR, radius=3)
        svg.text(x + 4 + wide * 0.24, top + 117, f"GPU {n}", 10, "middle", True, on_colour=True)
        svg.line(x + 4 + wide * 0.24, top + 130, x + 4 + wide * 0.24, top + 150, width=3)
        svg.text(x + wide * 0.76, top + 214, f"rail {n}", 9.5, "middle")
    svg.text(20, top + 236, "Thick lines: NVLink. Dashed: to the network, where all NICs of one number share a "
             "switch, a rail.", 10.5)  # fmt: skip
    return svg.render(top + 246)


def _grid(words: str, groups: int, each: int, told: str) -> str:
    svg = Svg(WIDTH, MACHINES, words)
    top = max(heading(svg, "quoted", words), 84.0) + 6
    columns = 6 if groups <= 18 else 12
    wide, small = (WIDTH - 40) / columns, 10.0
    per_row = 4
    high = small * math.ceil(each / per_row) + 14
    for n in range(groups):
        x, y = 20 + (n % columns) * wide, top + (n // columns) * (high + 6)
        svg.rect(x + 2, y, wide - 4, high, radius=3)
        for k in range(each):
            svg.rect(x + 7 + (k % per_row) * (small + 2), y + 5 + (k // per_row) * (small + 2), small, small, ORANGE,
                     stroke=ON_COLOUR, stroke_width=0.5)  # fmt: skip
    bottom = top + math.ceil(groups / columns) * (high + 6)
    svg.rect(20, bottom + 2, WIDTH - 40, 22, BLUE, "/", ON_COLOUR, radius=4)
    svg.rect(260, bottom + 5, 240, 16, BLUE)
    svg.text(WIDTH / 2, bottom + 17, f"one fast network: {groups * each} in all", 11.5, "middle", True,
             on_colour=True)  # fmt: skip
    svg.text(20, bottom + 42, told, 11)
    return svg.render(bottom + 54)


# The rule of thumb -----------------------------------------------------------------------------------------------


def ladder(given: Advice, named: Callable[[Estimate], str]) -> book.Player:
    """The rule of thumb, rung by rung; each step is a search, and at the end all plans are one. named: of a plan."""
    memory = given.found.cluster.gpu.memory
    frames, rows = [], []
    stop = given.rungs.index(given.first) if given.first else len(given.rungs)
    told = given.sentences(named)
    for n, words in enumerate(told):
        frames.append((_rungs(words, given, min(n, stop), n == len(told) - 1, named), words))
    for rung in given.rungs:
        best = rung.best
        rows.append({"rung": rung.name, "needs at least (GB)": rung.needs / GB, "a GPU has (GB)": memory / GB,
                     "its fastest plan": named(best) if best else "none fits",
                     "step (s)": best.seconds if best else None,
                     "holds (GB)": best.held.total / GB if best else None})  # fmt: skip
    return book.play(frames, title=LADDER, badge="simulated", rows=rows)


LADDER = "Take the first strategy that fits"


def _rungs(words: str, given: Advice, at: int, end: bool, named: Callable[[Estimate], str]) -> str:
    svg = Svg(WIDTH, LADDER, words)
    top = max(heading(svg, "simulated", words), 108.0) + 4
    memory = given.found.cluster.gpu.memory
    for n, rung in enumerate(given.rungs):
        y = top + 40 * n
        seen = n <= at or end  # at the end every rung is there, so that they can be compared
        fits = rung.best is not None
        look = (GREEN, "") if seen and fits else (ORANGE, "/") if seen else ("none", "")
        svg.rect(20, y, 290, 30, *look, stroke=ON_COLOUR if seen else None, stroke_width=2.5 if n == at else 0.8,
                 radius=5)  # fmt: skip
        if seen:
            svg.rect(24, y + 5, 282, 20, look[0])
        svg.text(165, y + 19, rung.name, 11, "middle", n == at, on_colour=seen)
        if seen:
            needs = f"needs {rung.needs / GB:,.{0 if rung.needs > 1e11 else 1}f} of {memory / GB:.0f} GB at least: "
            needs += (
                f"the fastest takes {rung.best.seconds:.2f} s, {rung.best.held.total / GB:.1f} GB"
                if rung.best
                else "too large"
            )
            svg.text(326, y + 13, needs, 11)
            if rung.best is not None:
                svg.text(326, y + 27, named(rung.best), 10)
        if n + 1 < len(given.rungs):
            svg.line(165, y + 30, 165, y + 40)
    bottom = top + 40 * len(given.rungs) + 4
    if end and given.found.best:
        winner = given.found.winner
        svg.rect(20, bottom, 290, 30, PURPLE, "", ON_COLOUR, stroke_width=2.5, radius=5)
        svg.text(165, bottom + 19, "all plans together", 11, "middle", True, on_colour=True)
        svg.text(326, bottom + 19, f"{named(winner)}: {winner.seconds:.2f} s", 11)
    return svg.render(bottom + 40)


# Bars that are made of parts -------------------------------------------------------------------------------------


# A part has one look in all charts of the chapter.
PARTS = {
    name: SERIES[k]
    for k, names in enumerate((
        ("computing", "parameters", "inside a node"), ("tensor", "activations", "another rail"),
        ("pipeline", "logits", "same rail"),
        ("data", "gradients", "not hidden"), ("context", "buffers"), ("recomputation", "numbers"), ("optimizer",),
        ("experts", "idle", "hidden"),
    ))
    for name in names
}  # fmt: skip


def stacked(
    bars: Mapping[str, Mapping[str, float]], *, unit: str, title: str, badge: str, sentence: str,
    limit: float | None = None, marked: Sequence[str] = (),
) -> book.Figure:  # fmt: skip
    """Horizontal bars, each of its parts; a part that is nothing anywhere has no place in the legend.

    limit: a line across, such as the memory of a GPU. marked: bars whose name stands bold. A bar that is several times
    as long as all others is drawn shorter, with all of its parts, and says so.
    """
    parts = [
        p for p in dict.fromkeys(p for bar in bars.values() for p in bar) if any(b.get(p, 0) for b in bars.values())
    ]
    parts.sort(key=lambda part: part == "hidden")  # after what it is hidden of
    most = _shown([sum(bar.values()) for bar in bars.values()], limit)
    left = min(420.0, max(230.0, 16 + 1.06 * max(text_width(name, 10.5) for name in bars)))
    svg = Svg(WIDTH, title, sentence)
    y = heading(svg, badge, sentence)
    x = 8.0
    for part in parts:
        wide = 30 + 6.4 * len(part)
        if x + wide > WIDTH:
            x, y = 8.0, y + 18
        look = PARTS[part]
        svg.rect(x, y, 16, 11, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7)
        svg.text(x + 21, y + 10, part, 11)
        x += wide
    top = y + (46 if limit else 30)  # the number of the limit has a line of its own below the legend
    scale, drawn_shorter = (WIDTH - left - 62) / most, False
    for n, (name, bar) in enumerate(bars.items()):
        at, x, whole = top + 24 * n, left, sum(bar.values())
        svg.text(left - 8, at + 13, name, 10.5, "end", name in marked)
        shorter = min(1.0, most / whole) if whole else 1.0
        for part in parts:
            wide = bar.get(part, 0.0) * scale * shorter
            if wide > 0:
                look = PARTS[part]
                svg.rect(x, at, wide, 17, look.colour, look.hatch, ON_COLOUR, stroke_width=0.6,
                         hover=f"{name}: {part} {bar[part]:.4g} {unit}")  # fmt: skip
                x += wide
        line = left + limit * scale if limit else 0.0
        beside = line + 4 if limit and x + 5 < line + 4 < x + 40 else x + 5  # not across the line
        if limit and shorter == 1:
            svg.line(line, at - 4, line, at + 20, dash="6 3", width=2.2)
        if shorter < 1:
            for k in (14, 8):
                svg.line(x - k - 3, at + 20, x - k + 3, at - 3, width=1.6)
            drawn_shorter = True
        svg.text(beside, at + 13, f"{whole:,.0f}" if whole >= 1000 else f"{whole:.3g}", 10.5)
    bottom = top + 24 * len(bars)
    if limit:
        svg.text(left + limit * scale, top - 8, f"{limit:.3g} {unit}", 10.5, "middle")
    note = ". A bar with two strokes is drawn shorter than it is; its parts are in proportion." if drawn_shorter else ""
    svg.text(left, bottom + 12, f"in {unit}{note}", 10.5)
    rows: list[Row] = [
        {f"in {unit}": name, **{p: bar.get(p, 0.0) for p in parts}, "all": sum(bar.values())}
        for name, bar in bars.items()
    ]
    return book.Figure(title, badge, sentence, rows, svg=svg.render(bottom + 22))


def _shown(sums: Sequence[float], limit: float | None) -> float:
    """The length of the longest bar that is drawn: the longest there is, unless it makes all others small."""
    longest, *others = sorted([*sums, limit or 0.0], reverse=True)
    second = others[0] if others else 0.0
    return 1.25 * second if second and longest > 4 * second else longest


def histogram(shares: Sequence[float], causes: Sequence[str], *, wide: float, unit: str, title: str, badge: str,
              sentence: str, line: float, told: str) -> book.Figure:  # fmt: skip
    """How many of `shares` lie in each stretch of `wide` from 0 on, in colours by their causes: names of `PARTS`.

    line: a number on the axis, and what it is.
    """
    order = [cause for cause in PARTS if cause in causes]
    counts = [dict.fromkeys(order, 0) for _ in range(math.ceil(max(shares) / wide - 1e-9))]
    for share, cause in zip(shares, causes, strict=True):
        counts[int(share / wide - 1e-9)][cause] += 1
    svg = Svg(WIDTH, title, sentence)
    top, x = heading(svg, badge, sentence), 78.0
    svg.text(8, top + 10, "loses most:", 11)
    for cause in order:
        svg.rect(x, top, 16, 11, PARTS[cause].colour, PARTS[cause].hatch, ON_COLOUR, stroke_width=0.7)
        svg.text(x + 21, top + 10, cause, 11)
        x += 30 + 6.4 * len(cause)
    top += 62
    left, high = 60.0, 120.0
    each, most = (WIDTH - left - 40) / len(counts), max(sum(one.values()) for one in counts)
    for n, one in enumerate(counts):
        y = top + high
        for cause, count in one.items():
            if count:
                tall, look = high * count / most, PARTS[cause]
                y -= tall
                svg.rect(left + n * each + 2, y, each - 4, tall, look.colour, look.hatch, ON_COLOUR, stroke_width=0.5,
                         hover=f"{count:,} plans from {n * wide:.0%} to {(n + 1) * wide:.0%}: {cause}")  # fmt: skip
        svg.text(left + (n + 0.5) * each, y - 5, f"{sum(one.values()):,}", 11, "middle")
    svg.line(left, top + high, WIDTH - 40, top + high)
    for n in range(len(counts) + 1):
        svg.text(left + n * each, top + high + 15, f"{n * wide:.1%}", 11, "middle")
    svg.text(left, top + high + 33, unit, 11)
    place = left + line / wide * each
    svg.line(place, top - 22, place, top + high, dash="6 3", width=2.2)
    svg.text(place + 6, top - 14, told, 11)
    rows: list[Row] = [
        {"MFU from (%)": 100 * n * wide, "to (%)": 100 * (n + 1) * wide, "plans": sum(one.values()), **one}
        for n, one in enumerate(counts)
    ]
    return book.Figure(title, badge, sentence, rows, svg=svg.render(top + high + 44))


def differences(values: Mapping[str, float], *, limit: float, told: str, title: str, badge: str,
                sentence: str) -> book.Figure:  # fmt: skip
    """Bars to the right on an axis of tenfolds, from the smallest number that counts. limit: a line, and what it is."""
    least, most = -17, 1
    svg = Svg(WIDTH, title, sentence)
    top = heading(svg, badge, sentence) + 30
    left = 200.0
    scale = (WIDTH - left - 70) / (most - least)

    def at(value: float) -> float:
        return left + scale * (min(max(math.log10(value), least), most) - least) if value > 0 else left

    for n, (name, value) in enumerate(values.items()):
        row = top + 28 * n
        svg.text(left - 8, row + 14, name, 11, "end")
        large = value > limit
        svg.rect(left, row, max(at(value) - left, 2), 20, ORANGE if large else GREEN, "/" if large else "", ON_COLOUR,
                 hover=f"{name}: {value:.2g}")  # fmt: skip
        svg.text(at(value) + 6, row + 14, f"{value:.1e}" if value else "0", 11)
    bottom = top + 28 * len(values)
    svg.line(at(limit), top - 12, at(limit), bottom, dash="6 3", width=2.2)
    svg.text(at(limit), top - 16, told, 11, "middle")
    for power in range(least + 1, most + 1, 4):
        svg.text(left + scale * (power - least), bottom + 14, f"1e{power}", 11, "middle")
    return book.Figure(title, badge, sentence, [{"": n, "difference": v} for n, v in values.items()],
                       svg=svg.render(bottom + 24))  # fmt: skip


def off_by(values: Mapping[str, Mapping[str, float]], named: Mapping[str, str], *, title: str, badge: str,
           sentence: str, rows: list[Row], zero: str = "what ranks took", left: float = 250.0,
           ends: tuple[str, str] = ("too short a step", "too long a step")) -> book.Figure:  # fmt: skip
    """A row for each name, with a mark for each prediction at how far it is off (0.1 for 10%), and 0 as the truth.

    values: of the first prediction, drawn as a cross, and perhaps of a second, a circle. named: what stands left of a
    row. zero: what 0 stands for. ends: what it means to be left of that, and right.
    """
    svg = Svg(WIDTH, title, sentence)
    y = heading(svg, badge, sentence) + 6
    for n, name in enumerate(values):
        (_cross if n == 0 else _circle)(svg, 14 + 190 * n, y + 5.5, (ORANGE, BLUE)[n])
        svg.text(28 + 190 * n, y + 10, f"{name} ({'circle' if n else 'cross'})", 11)
    right, top = WIDTH - 130.0, y + 44
    every = [value for one in values.values() for value in one.values()]
    low, high = min(-0.02, *every) * 1.1, max(0.02, *every) * 1.1
    scale = (right - left) / (high - low)
    middle = left - low * scale
    for n, name in enumerate(named):
        row = top + 22 * n
        svg.text(left - 12, row + 4, named[name], 11, "end")
        svg.line(left, row, right, row, faint=True)
        for k in reversed(range(len(values))):
            value = [*values.values()][k][name]
            (_cross if k == 0 else _circle)(svg, middle + value * scale, row, (ORANGE, BLUE)[k])
        svg.text(right + 14, row + 4, " and ".join(f"{one[name]:+.1%}" for one in values.values()), 11)
    bottom = top + 22 * len(named) - 10
    svg.line(middle, top - 12, middle, bottom, dash="6 3", width=2.2)
    svg.text(middle, top - 16, zero, 11, "middle")
    if len(values) > 1:
        svg.text(right + 14, top - 16, " and ".join(values), 10.5)
    tick = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / s <= 8)
    for k in range(math.ceil(low / tick), math.floor(high / tick) + 1):
        place = middle + k * tick * scale
        svg.line(place, bottom - 4, place, bottom + 1)
        svg.text(place, bottom + 13, f"{k * tick:+.0%}" if k else "0", 10.5, "middle")
    svg.text(left, bottom + 29, f"\N{LEFTWARDS ARROW} {ends[0]}", 11)
    svg.text(right, bottom + 29, f"{ends[1]} \N{RIGHTWARDS ARROW}", 11, "end")
    return book.Figure(title, badge, sentence, rows, svg=svg.render(bottom + 38))


def _circle(svg: Svg, x: float, y: float, colour: str) -> None:
    svg.rect(x - 5.5, y - 5.5, 11, 11, colour, "", ON_COLOUR, radius=5.5)


def _cross(svg: Svg, x: float, y: float, colour: str) -> None:
    for way in (-1, 1):
        svg.line(x - 5, y - 5 * way, x + 5, y + 5 * way, width=3, colour=colour)
