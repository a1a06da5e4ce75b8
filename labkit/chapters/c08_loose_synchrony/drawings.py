"""Pictures that explain: three timelines, old weights, graphs, two paths downhill, a matrix in two factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import seconds_text
from labkit.chapters.c08_loose_synchrony.task import Served
from labkit.optim.synchrony import graphs

Point = tuple[float, float]
NAMES = {"BSP": "all wait for all", "SSP": "ahead by a bounded number", "ASP": "nobody waits"}


def held_up(run: Any, s: str) -> book.Figure:
    """The beginning of one run under the reader's rule."""
    return three({s if s == "no bound" else f"s = {s}": run}, "Who waits when", most=0.2)


def waiting(trace: Any) -> float:
    """The share of their time for which workers wait."""
    spent = [part for w in range(1, trace.world_size) for part in _spent(trace, w)]
    return _sum(spent, "wait") / (sum(b - a for _, a, b in spent) or 1)


def three(
    runs: Mapping[str, Any], title: str = "Three ways to synchronize", late: str = "", most: float = math.inf,
    end: float = math.inf,
) -> book.Figure:  # fmt: skip
    """When workers compute and wait, and when the server updates, under each policy: from the spans of real runs.

    late: how the last worker is. most: seconds that are drawn; the words are about the whole run. end: seconds after
    which nothing counts.
    """
    left = 92.0
    longest = min(most, end, max(run.trace.duration for run in runs.values()))
    shares = dict[str, float]()
    rows: list[Row] = []
    for name, run in runs.items():
        spent = [_spent(run.trace, w, end) for w in range(1, run.trace.world_size)]
        done = [sum(s.name == "push" and s.rank == w and s.start <= end + 1e-9 for s in run.trace.spans())
                for w in range(1, run.trace.world_size)]  # fmt: skip
        busy = sum(b - a for worker in spent for kind, a, b in worker if kind == "compute")
        idle = sum(b - a for worker in spent for kind, a, b in worker if kind == "wait")
        shares[name] = idle / (busy + idle)
        rows += [{"policy": name, "rank": w, "computing (ms)": 1e3 * _sum(one, "compute"),
                  "waiting (ms)": 1e3 * _sum(one, "wait"), "gradients": done[w - 1]}
                 for w, one in enumerate(spent, 1)]  # fmt: skip
    said = "Workers wait " + ", ".join(f"{share:.0%} of their time under {name}" for name, share in shares.items())
    whole = min(end, max(run.trace.duration for run in runs.values()))
    said += f", in the whole run of {seconds_text(whole)} (drawn: {seconds_text(most)})" if whole > 1.01 * most else ""
    said += f". Worker {len(spent)} is {late}." if late else "."
    svg = Svg(WIDTH, title, said)
    y = legend(svg, heading(svg, "emulated", said), [("computing a gradient", ORANGE, "", ""),
               ("waiting for the weights", "none", "/", "3 2"), ("update at the server", BLUE, "|", "")])  # fmt: skip
    scale, high = (WIDTH - left - 12) / longest, 17.0
    for name, run in runs.items():
        y += 8
        svg.text(8, y + 10, f"{name}: {NAMES[name]}" if name in NAMES else name, 12, bold=True)
        y += 18
        svg.text(left - 8, y + 12, "server", 11, "end")
        svg.line(left, y + high / 2, left + longest * scale, y + high / 2, faint=True)
        for span in (u for u in run.trace.spans("update") if u.start <= longest + 1e-9):
            svg.rect(left + span.start * scale - 1.5, y + 1, 3, high - 3, BLUE, stroke=ON_COLOUR, stroke_width=0.4)
        y += high
        for w in range(1, run.trace.world_size):
            svg.text(left - 8, y + 12, f"worker {w}", 11, "end")
            for kind, a, b in ((k, a, min(b, longest)) for k, a, b in _spent(run.trace, w) if a < longest):
                look = (ORANGE, "", "") if kind == "compute" else ("none", "/", "3 2")
                svg.rect(left + a * scale, y + 2, (b - a) * scale - 0.7, high - 4, look[0], look[1], dash=look[2],
                         stroke_width=0.6)  # fmt: skip
            y += high
    svg.text(left, y + 14, "0 ms", 11)
    svg.text(WIDTH - 12, y + 14, f"{1e3 * longest:.0f} ms", 11, "end")
    return book.Figure(title, "emulated", said, rows, svg=svg.render(y + 24))


def _spent(trace: Any, worker: int, end: float = math.inf) -> list[tuple[str, float, float]]:
    """What a worker did until `end`: it waits while it pulls, and computes from there to its push."""
    spans = sorted((s for s in trace.spans() if s.rank == worker), key=lambda s: (s.start, s.end))
    pulls, pushes = ([s for s in spans if s.name == name] for name in ("pull", "push"))
    found = []
    for pull, push in zip(pulls, pushes, strict=False):
        if pull.end - pull.start > 1e-9:
            found.append(("wait", pull.start, pull.end))
        found.append(("compute", pull.end, push.start))
    return [(kind, a, min(b, end)) for kind, a, b in found if a < end - 1e-9]


def _sum(spent: Sequence[tuple[str, float, float]], what: str) -> float:
    return sum(b - a for kind, a, b in spent if kind == what)


def versions(served: Served, count: int = 14) -> book.Player:
    """Update by update: which version of the weights the server has, and which one each worker computes with."""
    title, frames, rows = "Which weights each gradient comes from", [], []
    held = dict.fromkeys(range(1, served.workers + 1), 0)
    for i, update in enumerate(served.log[:count]):
        age = (
            "with the newest weights"
            if update.tau == 0
            else (
                f"with version {update.version}, and since then {update.tau} other update{'s' * (update.tau > 1)} came"
            )
        )
        said = f"Worker {update.worker} computed {age}: tau = {update.tau}. The weights are now version {i + 1}."
        frames.append((_held(title, said, held, update, i), said))
        rows.append({"update": i + 1, "worker": update.worker, "computed with version": update.version,
                     "tau": update.tau})  # fmt: skip
        held[update.worker] = i + 1  # under ASP a worker pulls at once
    return book.play(frames, title=title, badge="emulated", rows=rows, still=min(9, len(frames) - 1))


def _held(title: str, said: str, held: Mapping[int, int], update: Any, i: int) -> str:
    svg = Svg(WIDTH, title, said)
    y = heading(svg, "emulated", said) + 12
    box, gap, x0 = 40.0, 6.0, 96.0
    svg.text(x0 - 10, y + 24, "server", 12, "end")
    first = max(0, i - 12)
    for v in range(first, i + 2):
        x = x0 + (v - first) * (box + gap)
        new = v == i + 1
        svg.rect(x, y, box, 34, GREEN if new else GREY, "x" if new else "", stroke_width=2.2 if new else 0.6, radius=4)
        svg.rect(x + 6, y + 9, box - 12, 17, "#ffffff", stroke="none", radius=3)
        svg.text(x + box / 2, y + 22, f"v{v}", 12, "middle", on_colour=True)
    y += 58
    for w, version in held.items():
        mine = w == update.worker
        svg.text(x0 - 10, y + 17, f"worker {w}", 12, "end", bold=mine)
        at = max(version, first)
        x = x0 + (at - first) * (box + gap)
        svg.rect(x, y, box, 24, ORANGE if mine else BLUE, "/" if mine else "", ON_COLOUR, stroke_width=0.8, radius=4)
        svg.rect(x + 6, y + 4, box - 12, 16, "#ffffff", stroke="none", radius=3)
        svg.text(x + box / 2, y + 16, f"v{version}", 11.5, "middle", on_colour=True)
        if mine:
            end = x0 + (i - first) * (box + gap) + box
            if update.tau:
                svg.line(x + box + 4, y + 12, end, y + 12, width=2, dash="5 3")
                svg.arrow_head(end, y + 12, 1, 0, 8)
            svg.text(end + 8, y + 17, f"tau = {update.tau}", 12, bold=True)
        y += 32
    svg.text(8, y + 12, "orange, hatched: whose gradient arrives now; green, crossed: the version that it makes", 11)
    return svg.render(y + 24)


def graph(name: str, size: int) -> Tensor:
    """A mixing matrix by the name that the chapter gives it."""
    return {"ring": graphs.ring, "exponential": graphs.exponential, "complete": graphs.complete}[name](size)


GRAPHS = ["ring", "exponential", "complete"]


def three_graphs(size: int) -> book.Figure:
    """Who averages with whom, and how fast such rounds bring all ranks together."""
    title = f"Who sends to whom, with {size} ranks"
    rows: list[dict[str, Any]] = []
    for name in GRAPHS:
        w = graph(name, size)
        rows.append({"graph": name, "neighbours": max(len(graphs.heard(w, r)) for r in range(size)),
                     "mixing rate": graphs.mixing_rate(w)})  # fmt: skip
    said = "; ".join(f"{r['graph']}: {r['neighbours']} neighbours, mixing rate {r['mixing rate']:.2f}"
                     for r in rows)  # fmt: skip
    said = said[0].upper() + said[1:] + "."
    svg = Svg(WIDTH, title, said)
    top = heading(svg, "simulated", said) + 4
    wide, far = WIDTH / len(GRAPHS), 66.0
    for k, (name, row) in enumerate(zip(GRAPHS, rows, strict=True)):
        cx, cy = wide * (k + 0.5), top + far + 34
        svg.text(cx, top + 12, name, 12.5, "middle", bold=True)
        _network(svg, graph(name, size), cx, cy, far, 11)
        svg.text(cx, cy + far + 36, f"mixing rate {row['mixing rate']:.2f}", 11.5, "middle")
    svg.text(
        8,
        top + 2 * far + 92,
        "Thick: to whom rank 0 sends. A thick line with an arrow goes one way, and one without goes both ways.",
        11,
    )
    return book.Figure(title, "simulated", said, list[Row](rows), svg=svg.render(top + 2 * far + 104))


def _network(svg: Svg, w: Tensor, cx: float, cy: float, far: float, radius: float, full: Sequence[float] = ()) -> None:
    """full: how strong the colour of each node is, 0 to 1."""
    n = len(w)
    at = [(cx + far * math.sin(2 * math.pi * r / n), cy - far * math.cos(2 * math.pi * r / n)) for r in range(n)]
    for i in range(n):
        for j in graphs.heard(w, i):
            both = bool(w[j, i])
            if both and j < i:
                continue
            (x1, y1), (x2, y2) = at[j], at[i]
            length = math.hypot(x2 - x1, y2 - y1)
            ux, uy = (x2 - x1) / length, (y2 - y1) / length
            mine = j == 0 or (both and i == 0)  # a tangle is read by the lines of one rank
            svg.line(x1 + ux * radius, y1 + uy * radius, x2 - ux * radius, y2 - uy * radius, width=3 if mine else 0.8,
                     colour=ORANGE if mine else None, faint=not mine)  # fmt: skip
            if not both and mine:
                svg.arrow_head(x2 - ux * radius, y2 - uy * radius, ux, uy, 7)
    for r, (x, y) in enumerate(at):
        svg.add("circle", cx=x, cy=y, r=radius, fill="#ffffff", stroke=ON_COLOUR, stroke_width=0.8)
        svg.add("circle", cx=x, cy=y, r=radius, fill=BLUE, fill_opacity=full[r] if full else None, stroke="none")
        svg.text(x, y + 4, str(r), 11, "middle", on_colour=True)


def rounds(run: Any, name: str) -> book.Player:
    """A number on each rank, round by round: each rank returned what it had, round by round."""
    held = [[float(x) for x in row] for row in zip(*run.results, strict=True)]
    n, title = len(held[0]), f"Averages along a graph: {name}"
    mean, low, high = sum(held[0]) / n, min(held[0]), max(held[0])
    w, frames, rows = graph(name, n), [], []
    rate = graphs.mixing_rate(w)
    apart = [math.sqrt(sum((x - mean) ** 2 for x in row) / n) for row in held]
    for k, row in enumerate(held):
        said = f"After {k} rounds the consensus distance is {apart[k]:.3g}; the mean is {sum(row) / n:.3g}."
        svg = Svg(WIDTH, title, said)
        top = heading(svg, "measured", said) + 10
        _network(svg, w, 130, top + 92, 78, 13, [round((x - low) / (high - low or 1), 3) for x in row])
        x0, step = 270.0, min(56.0, 470 / n)
        base, tall = top + 170, 140.0
        for r, x in enumerate(row):
            up = tall * (x - low) / (high - low or 1)
            look = SERIES[r % 8]
            svg.rect(x0 + r * step, base - up, step - 8, up, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7)
            svg.text(x0 + r * step + step / 2 - 4, base + 28, f"{x:.2f}", 10.5, "middle")
            svg.text(x0 + r * step + step / 2 - 4, base + 14, f"rank {r}" if step > 44 else str(r), 10.5, "middle")
        level = base - tall * (mean - low) / (high - low or 1)
        svg.line(x0 - 10, level, x0 + n * step, level, dash="5 4", width=1.4)
        svg.text(x0 + n * step + 4, level + 4, "mean", 10.5)
        frames.append((svg.render(base + 38), said))
        rows.append({"round": k, "consensus distance": apart[k], "by the mixing rate": apart[0] * rate**k})
    return book.play(frames, title=title, badge="measured", rows=rows, still=min(2, len(frames) - 1))


def paths(walks: Mapping[str, Sequence[Point]], epsilon: float = 0.5) -> book.Player:
    """Two descents from the same point of the counterexample, step by step, over the level lines of the loss."""
    title, frames, rows = "Two ways down", [], []
    steps = max(map(len, walks.values()))
    marks = sorted({*range(0, min(12, steps)), *range(12, steps, max(1, steps // 12)), steps - 1})
    for k in marks:
        now = {name: walk[min(k, len(walk) - 1)] for name, walk in walks.items()}
        said = f"After {k} steps: " + "; ".join(f"{name} at ({x:.2f}, {y:.2f}), loss {valley(x, y, epsilon):.3f}"
                                         for name, (x, y) in now.items()) + "."  # fmt: skip
        frames.append((_valley_picture(title, said, walks, k, epsilon), said))
        rows.append({"step": k} | {name: valley(at[0], at[1], epsilon) for name, at in now.items()})
    return book.play(frames, title=title, badge="measured", rows=rows, still=len(frames) - 1, begin=0)


def valley(x: float, y: float, epsilon: float = 0.5) -> float:
    """The loss of the counterexample."""
    e = epsilon
    return ((1 + e) * x + (e - 1) * y) ** 2 + ((e - 1) * x + (1 + e) * y) ** 2


def _valley_picture(title: str, said: str, walks: Mapping[str, Sequence[Point]], k: int, e: float) -> str:
    svg = Svg(WIDTH, title, said)
    top = heading(svg, "measured", said) + 8
    side, low, high = 300.0, -0.5, 1.7
    left = 60.0

    def at(x: float, y: float) -> Point:
        return left + side * (x - low) / (high - low), top + side * (high - y) / (high - low)

    for level in (0.05, 0.25, 1.0, 2.5):  # along (1, 1) the loss is 2 e^2 (x + y)^2 / 2, across it 2 (x - y)^2
        a, b = math.sqrt(level) / (2 * e), math.sqrt(level) / 2
        ring = []
        for t in range(49):
            u, v = a * math.cos(t * math.pi / 24), b * math.sin(t * math.pi / 24)
            ring.append(at((u + v) / math.sqrt(2), (u - v) / math.sqrt(2)))
        shown = [p for p in ring if left <= p[0] <= left + side and top <= p[1] <= top + side]
        for (x1, y1), (x2, y2) in zip(ring, ring[1:], strict=False):
            if all(left <= x <= left + side and top <= y <= top + side for x, y in ((x1, y1), (x2, y2))):
                svg.line(x1, y1, x2, y2, faint=True)
        if shown:
            svg.text(*max(shown, key=lambda p: p[0] - p[1]), f"loss {level:g}", 9.5)
    svg.rect(left, top, side, side, stroke_width=0.8)
    ox, oy = at(0, 0)
    svg.marker(ox, oy, "star", GREEN, 8)
    svg.text(ox + 10, oy + 14, "minimum", 11)
    for (name, walk), look, y in zip(walks.items(), (SERIES[3], SERIES[0]), (40, 120), strict=False):
        seen = [at(*p) for p in walk[: k + 1]]
        for (x1, y1), (x2, y2) in zip(seen, seen[1:], strict=False):
            svg.line(x1, y1, x2, y2, width=1.8, colour=look.colour, dash="5 3" if look.dash != "solid" else "")
        svg.marker(*seen[-1], look.marker, look.colour, 6)
        x = left + side + 40
        svg.marker(x + 6, top + y - 4, look.marker, look.colour, 6)
        svg.text(x + 20, top + y, name, 12.5, bold=True)
        px, py = walk[min(k, len(walk) - 1)]
        svg.text(x + 20, top + y + 20, f"x = ({px:.3f}, {py:.3f}), x1 + x2 = {px + py:.3f}", 11.5)
        svg.text(x + 20, top + y + 38, f"loss {valley(px, py, e):.4f}", 11.5)
    svg.text(left + side / 2, top + side + 16, "x1", 11, "middle")
    svg.text(left - 10, top + side / 2, "x2", 11, "end")
    return svg.render(top + side + 26)


def power_step(run: Any) -> book.Player:
    """One step of PowerSGD on real ranks, product by product: M Q on two of them, the means of P and Q, and P Q^T.

    run: of `methods.factored`, of which each rank returned its M, the Q of the step before, and the new P and Q.
    """
    title, frames, rows = "One power step", [], []
    ms = [one["m"] for one in run.results]
    q, p, new = (run.results[0][name] for name in ("before", "p", "q"))
    (n, m), r, whole = ms[0].shape, q.shape[1], torch.stack(ms).mean(0)
    ps, qs = [x @ q for x in ms], [x.T @ p for x in ms]
    steps: list[tuple[str, list[list[Any]]]] = [
        (f"Each rank has its own M, and all have the same Q of the step before. So each computes its P = M Q, with "
         f"{n} × {r} numbers in place of {n} × {m}.",
         [[x for k in (0, 1) for x in ("", (ms[k], f"M of rank {k}", 1), "·", (q, "Q", 4), "=",
                                       (ps[k], f"P of rank {k}", 4))][1:]]),
        (f"An all-reduce averages the {n} × {r} numbers of P. Since all took the same Q, the result is the P of the "
         "averaged M. Then its columns are made orthonormal.",
         [[*_joined([(x, f"rank {k}", 4) for k, x in enumerate(ps)]), "→", (p, "P", 4)]]),
        (f"Now each rank computes its Q = M^T P, and an all-reduce averages these {m} × {r} numbers as well.",
         [[*_joined([(x, f"rank {k}", 4) for k, x in enumerate(qs)]), "→", (new, "Q", 4)]]),
        (f"In place of {n * m} numbers {r * (n + m)} were averaged. Every rank multiplies P Q^T, and misses "
         f"{missed(run)[0]:.0%} of the norm of the averaged M.",
         [[(whole, "M, averaged", 1), "≈", (p @ new.T, "P Q^T", 1)]]),
    ]  # fmt: skip
    for k, (said, lines) in enumerate(steps, 1):
        svg = Svg(WIDTH, title, said)
        y = heading(svg, "measured", said) + 24
        for line in lines:
            x, high = 12.0, CELL * n
            for part in line:
                if isinstance(part, str):
                    svg.text(x + 14, y + high / 2, part, 20, "middle")
                    x += 28
                else:
                    x = _cells(svg, part[0], x + 14, y, CELL, part[1], grow=part[2]) + 14
            y += high + 34
        svg.text(12, y, "orange, large square: positive; blue, small square: negative; white: near 0", 11)
        frames.append((svg.render(y + 12), said))
        rows.append({"step": k, "what": said})
    return book.play(frames, title=title, badge="measured", rows=rows, still=len(frames) - 1, begin=0)


def missed(run: Any) -> tuple[float, float, float]:
    """What P Q^T misses of the averaged M, as a part of its norm; the least that as many columns can miss; and which
    part of the numbers of M was averaged. run: as of `power_step`."""
    whole, p, q = torch.stack([one["m"] for one in run.results]).mean(0), run.results[0]["p"], run.results[0]["q"]
    least = torch.linalg.svdvals(whole)[q.shape[1] :].norm()
    return (float((whole - p @ q.T).norm() / whole.norm()), float(least / whole.norm()),
            (p.numel() + q.numel()) / whole.numel())  # fmt: skip


CELL = 2.6  # of a number of a gradient, on the screen


def _joined(parts: list[Any]) -> list[Any]:
    """With a plus between any two."""
    return [x for part in parts for x in ("+", part)][1:]


def _cells(svg: Svg, matrix: Tensor, x: float, y: float, cell: float, name: str, grow: float = 1) -> float:
    """Draw a matrix, return its right edge. grow: how many times as wide a cell of a thin one is."""
    cw, ch = cell * grow, cell
    n, m = matrix.shape
    most = float(matrix.abs().max()) or 1.0
    svg.text(x + m * cw / 2, y - 7, name, 12, "middle", bold=True)
    svg.text(x + m * cw / 2, y + n * ch + 14, f"{n} × {m}", 10.5, "middle")
    svg.rect(x, y, m * cw, n * ch, "#ffffff", stroke_width=0.6)
    signs = {ORANGE: "", BLUE: ""}
    for i, row in enumerate((matrix / most).tolist()):
        for j, v in enumerate(row):
            if abs(v) < 0.12:
                continue
            big = 1.0 if v > 0 else 0.62
            colour = ORANGE if v > 0 else BLUE
            a, b = x + j * cw + cw * (1 - big) / 2, y + i * ch + ch * (1 - big) / 2
            shade = 0 if abs(v) > 0.5 else 1 if abs(v) > 0.25 else 2
            mark = f"M{a:.1f} {b:.1f}h{cw * big:.1f}v{ch * big:.1f}h-{cw * big:.1f}z"
            key = colour if shade == 0 else f"{colour}|{0.6 if shade == 1 else 0.3}"
            signs[key] = signs.get(key, "") + mark
    for key, d in signs.items():
        if d:
            colour, _, opacity = key.partition("|")
            svg.add("path", d=d, fill=colour, fill_opacity=opacity or None, stroke="none")
    return x + m * cw


def summed_or_gathered(size: int = 4) -> book.Figure:
    """Why values at agreed indices add up on the way, and values at each rank's own do not: side by side."""
    title, rows = "What can be added up on the way", list[Row]()
    cases = {"agreed indices: all-reduce": [[2, 5]] * size,
             "each rank's own indices: all-gather": [[(r + 1) % 8, (3 * r + 4) % 8] for r in range(size)]}  # fmt: skip
    sums = [sorted({p for some in places for p in some}) for places in cases.values()]
    said = (
        f"On the left the sum has {len(sums[0])} numbers, as every message has. On the right it has {len(sums[1])}, "
        "so no message of 2 numbers can hold it."
    )
    svg = Svg(WIDTH, title, said)
    top, left, cell = heading(svg, "simulated", said) + 22, 62.0, 33.0
    half = (WIDTH - left) / 2
    for k, ((name, places), there) in enumerate(zip(cases.items(), sums, strict=True)):
        y, x = top + 6, left + k * half
        svg.text(x, top - 6, name, 12.5, bold=True)
        for r, own in enumerate([*places, there]):
            last = r == size
            if k == 0:
                svg.text(left - 10, y + 17, "sum" if last else f"rank {r}", 12, "end", bold=last)
            for p in range(8):
                fill, hatch = (SERIES[r % 8].colour, SERIES[r % 8].hatch) if p in own else ("none", "")
                svg.rect(x + cell * p, y, cell - 4, 24, fill, hatch, stroke_width=0.6)
            svg.text(x + 8 * cell + 4, y + 17, f"{len(own)} numbers", 11.5)
            y += 32 if r < size - 1 else 38
        rows.append({"indices": name, "numbers of a rank": 2, "numbers of the sum": len(there)})
    return book.Figure(title, "simulated", said, rows, svg=svg.render(y + 4))
