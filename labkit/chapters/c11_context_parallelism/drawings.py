"""Pictures that explain: tiles over the scores, two halves of a softmax, blocks around a ring, positions for heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.chapters.c11_context_parallelism.attention import attend, drawn
from labkit.chapters.c11_context_parallelism.you_write import merge

TILE, TOKENS = 3, 12  # of the picture of tiles


def tiles() -> book.Player:
    """A small text's attention tile by tile: which scores exist, and how far each query's sum has come."""
    q, k, v = drawn(TOKENS, heads=1)
    every = torch.arange(TOKENS)
    total = attend(q, k, v, every, every)[1].flatten().exp()
    frames, rows, sums = [], [], torch.zeros(TOKENS)
    title, count = "Attention in tiles", 0
    for a in range(0, TOKENS, TILE):
        out, lse = torch.zeros_like(q[..., :TILE, :]), torch.full((1, 1, TILE), -math.inf)
        for b in range(0, a + TILE, TILE):
            r, c = slice(a, a + TILE), slice(b, b + TILE)
            out, lse = merge(out, lse, *attend(q[..., r, :], k[..., c, :], v[..., c, :], every[r], every[c]))
            sums[r] = lse.flatten().exp() / total[r]
            done = bool((sums[r] > 1 - 1e-5).all())
            said = (
                f"Queries {a} to {a + TILE - 1} read keys {b} to {b + TILE - 1}. Only these "
                f"{TILE * TILE if a > b else TILE * (TILE + 1) // 2} scores exist now. "
                + (
                    "These queries are finished."
                    if done
                    else f"So far these queries have {float(sums[r].mean()):.0%} of their sums, on average."
                )
            )
            frames.append((_tiled(title, said, a, b, sums.tolist()), said))
            rows.append(
                {"tile": count + 1, "queries from": a, "keys from": b, "share of the sum": float(sums[r].mean())}
            )
            count += 1
    return book.play(frames, title=title, badge="simulated", rows=rows, still=7)


def _tiled(title: str, said: str, a: int, b: int, sums: Sequence[float]) -> str:
    svg = Svg(WIDTH, title, said)
    top = heading(svg, "simulated", said) + 24
    cell, left = 22.0, 96.0
    svg.text(left + TOKENS * cell / 2, top - 8, "keys", 11, "middle")
    svg.text(left - 10, top + TOKENS * cell / 2, "queries", 11, "end")
    for i in range(TOKENS):
        for j in range(i + 1):
            past = (i // TILE, j // TILE) < (a // TILE, b // TILE)
            now = (i // TILE, j // TILE) == (a // TILE, b // TILE)
            fill, hatch = (ORANGE, "") if now else (GREY, "") if past else ("none", "")
            if past:
                svg.add("rect", x=left + j * cell, y=top + i * cell, width=cell, height=cell, fill=fill,
                        fill_opacity="0.25", klass="lk-line", stroke_width=0.2)  # fmt: skip
            else:
                svg.rect(left + j * cell, top + i * cell, cell, cell, fill, hatch, stroke_width=0.3)
    side = TILE * cell
    svg.rect(left + b * cell, top + a * cell, side, side, stroke_width=3)
    svg.line(left, top, left + TOKENS * cell, top + TOKENS * cell, dash="3 3")
    x = left + TOKENS * cell + 60
    svg.text(x, top - 8, "how much of each query's sum is there", 11)
    for i, share in enumerate(sums):
        y = top + i * cell
        svg.rect(x, y + 3, 240, cell - 6, dash="2 2", stroke_width=0.4)
        if share > 0:
            look = (GREEN, "x") if share > 1 - 1e-5 else (BLUE, "")
            svg.rect(x, y + 3, 240 * share, cell - 6, *look, ON_COLOUR, stroke_width=0.6)
        svg.text(x + 246, y + cell / 2 + 4, "finished" if share > 1 - 1e-5 else f"{share:.0%}", 10.5)
    y = top + TOKENS * cell + 20
    svg.text(left, y, "orange with a thick frame: scores that exist now   grey: were there, and are gone", 11)
    return svg.render(y + 12)


def halves() -> book.Player:
    """One query and six keys, cut at each place: two means, two sums, and the same result."""
    scores = torch.tensor([1.0, 2.0, 0.5, 2.5, 1.5, 0.0])
    values = torch.tensor([4.0, 1.0, 3.0, 6.0, 2.0, 5.0])
    frames, rows = [], []
    title = "One softmax, cut in two"
    for cut in range(1, 6):
        parts = [scores[:cut], scores[cut:]]
        means = [float((p.softmax(0) * x).sum()) for p, x in zip(parts, (values[:cut], values[cut:]), strict=True)]
        sums = [float(p.exp().sum()) for p in parts]
        joined, share = float((scores.softmax(0) * values).sum()), sums[0] / sum(sums)
        said = (
            f"The left part has {sums[0]:.1f} of the {sum(sums):.1f} in the sum of weights, a share of {share:.0%}: "
            f"{share:.3f} × {means[0]:.3f} + {1 - share:.3f} × {means[1]:.3f} = {joined:.2f}."
        )
        frames.append((_cut(title, said, scores, values, cut, means, sums, joined), said))
        rows.append({"keys on the left": cut, "mean of the left": means[0], "mean of the right": means[1],
                     "share of the left": share, "joined": joined})  # fmt: skip
    return book.play(frames, title=title, badge="simulated", rows=rows, still=2, begin=2)


def _cut(
    title: str, said: str, scores: Tensor, values: Tensor, cut: int, means: Sequence[float], sums: Sequence[float],
    joined: float,
) -> str:  # fmt: skip
    svg = Svg(WIDTH, title, said)
    top = heading(svg, "simulated", said) + 20
    high, wide, base = 150.0, 56.0, top + 168
    tallest = float(scores.exp().max())
    looks = ((BLUE, ""), (ORANGE, "/"))
    for i, (s, v) in enumerate(zip(scores.tolist(), values.tolist(), strict=True)):
        x, tall = 30 + i * (wide + 8) + (14 if i >= cut else 0), high * math.exp(s) / tallest
        svg.rect(x, base - tall, wide, tall, *looks[i >= cut], ON_COLOUR, stroke_width=0.7)
        svg.text(x + wide / 2, base - tall - 5, f"exp {s:g} = {math.exp(s):.1f}", 10, "middle")
        svg.text(x + wide / 2, base + 15, f"key {i}", 11, "middle")
        svg.text(x + wide / 2, base + 30, f"value {v:g}", 11, "middle")
    at = 30 + cut * (wide + 8) + 3
    svg.line(at, top - 4, at, base + 34, dash="6 4", width=2)
    x = 30 + 6 * (wide + 8) + 44
    for k, name in enumerate(("left part", "right part")):
        y = top + 4 + k * 62
        svg.rect(x, y, 16, 16, *looks[k], ON_COLOUR, stroke_width=0.7)
        svg.text(x + 24, y + 12, name, 12, bold=True)
        svg.text(x, y + 32, f"mean {means[k]:.2f}, sum {sums[k]:.1f}, lse {math.log(sums[k]):.2f}", 11.5)
    y = top + 136
    svg.text(x, y, "joined", 12, bold=True)
    svg.text(x, y + 20, f"mean {joined:.2f}, sum {sum(sums):.1f}, lse {math.log(sum(sums)):.2f}", 11.5)
    share = sums[0] / sum(sums)
    svg.rect(x, y + 32, 240 * share, 14, *looks[0], ON_COLOUR, stroke_width=0.7)
    svg.rect(x + 240 * share, y + 32, 240 * (1 - share), 14, *looks[1], ON_COLOUR, stroke_width=0.7)
    svg.text(x, y + 62, f"shares {share:.0%} and {1 - share:.0%}", 11.5)
    return svg.render(base + 44)


def around(run: Any) -> book.Player:
    """The blocks of keys and values around the circle of ranks, from the messages that were sent."""
    n = run.trace.world_size
    sent: list[list[int]] = [[] for _ in range(n)]
    for m in sorted(run.trace.sends, key=lambda m: m.start):
        sent[m.src].append(m.dst)
    holds = [list(range(n))]
    for i in range(max(map(len, sent), default=0)):
        came = {sent[r][i]: holds[-1][r] for r in range(n)}
        holds.append([came.get(r, holds[-1][r]) for r in range(n)])
    title = "Keys and values go around"
    frames = []
    for i in range(len(holds)):
        said = f"Round {i}: rank 0 holds block {holds[i][0]}, and has held {i + 1} of {n} blocks so far. "
        said += (
            "Every block has been on every rank." if i + 1 == len(holds) else "Meanwhile the block moves on to rank 1."
        )
        frames.append((_circle(title, said, holds, i, run.trace.badge), said))
    rows = [{"round": i} | {f"rank {r}": f"block {b}" for r, b in enumerate(row)} for i, row in enumerate(holds)]
    return book.play(frames, title=title, badge=run.trace.badge, rows=rows, still=min(1, len(holds) - 1))


def way_back(n: int) -> book.Player:
    """The backward pass: blocks go around once more, and behind each one its gradient, which every rank adds to."""
    title, frames, rows = "Blocks and gradients go around", [], []
    for i in range(n + 1):
        holds = [[(r - j) % n for r in range(n)] for j in range(i + 1)]
        last = n - 1
        if i < n:
            said = f"Round {i}: rank 0 has block {holds[i][0]}, and has added its share to the gradient of that block, "
            said += f"which has {i + 1} of {n} shares now. "
            said += (
                "Block and gradient move on."
                if i < last
                else "Only the gradient moves on: one step is left, to its owner."
            )
        else:
            said = f"Each gradient is home, at the owner of its block, with the shares of all {n} ranks."
        frames.append((_circle(title, said, holds, i, "simulated", back=True), said))
        rows.append({"step": i, "shares in each gradient": min(i + 1, n), "blocks have moved": min(i, last),
                     "gradients have moved": i})  # fmt: skip
    return book.play(frames, title=title, badge="simulated", rows=rows, still=min(1, n))


def _circle(title: str, said: str, holds: Sequence[Sequence[int]], i: int, badge: str, back: bool = False) -> str:
    """back: the chips are a block and its gradient, and the small boxes the ranks that have added to the gradient."""
    n = len(holds[0])
    svg = Svg(WIDTH, title, said)
    top = heading(svg, badge, said)
    far, box = 138.0 if n > 4 else 118.0, (92.0, 58.0)
    cx, cy = WIDTH / 2, top + far + 48
    place = [
        (cx + 1.9 * far * math.sin(2 * math.pi * r / n), cy - far * math.cos(2 * math.pi * r / n)) for r in range(n)
    ]
    if i < n if back else i + 1 < len(holds):
        for r in range(n):
            (x1, y1), (x2, y2) = place[r], place[(r + 1) % n]
            _arrow(svg, x1, y1, x2, y2, box)
    for r, (x, y) in enumerate(place):
        look, block = SERIES[r % 8], holds[i][r]
        kept, home = SERIES[block % 8], back and i == n  # then the blocks have not moved any further
        left, up = x - box[0] / 2, y - box[1] / 2
        svg.rect(left, up, *box, "#ffffff", radius=5, stroke_width=1.4)
        if back:  # the block, and its gradient
            look = kept
        if not home:
            svg.rect(left + 4, up + 4, 40, 22, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7,
                     radius=9 if back else 0)  # fmt: skip
            _plate(svg, left + 24, up + 19, f"kv {block}" if back else f"q {r}")
        svg.rect(left + 48, up + 4, 40, 22, kept.colour, kept.hatch, ON_COLOUR, stroke_width=0.7,
                 radius=0 if back else 9)  # fmt: skip
        _plate(svg, left + 68, up + 19, f"d {block}" if back else f"kv {block}")
        met = {holds[j][r] for j in range(i + 1)}
        if back:  # who has added: the owner, and the ranks after it
            met = {(block + j) % n for j in range(min(i + 1, n))}
        step = min(11.0, 84 / n)
        for b in range(n):
            there = SERIES[b % 8] if b in met else None
            svg.rect(left + 4 + b * step, up + 34, step - 1.5, 12, there.colour if there else "none",
                     there.hatch if there else "", "#777777", stroke_width=0.6)  # fmt: skip
        told = f"{len(met)} of {n} shares" if back else f"{len(met)} of {n} blocks"
        svg.text(left + 46, up + box[1] + 13, f"rank {r}: {told}", 10.5, "middle")
    y = cy + far + 62
    legend = (
        "q: queries, they stay   kv: the block of keys and values that is here now   small boxes: blocks held so far"
    )
    if back:
        legend = "kv: a block of keys and values   d: its gradient   small boxes: ranks that have added their share"
    svg.text(8, y, legend, 11)
    return svg.render(y + 12)


def _plate(svg: Svg, x: float, y: float, text: str) -> None:
    svg.rect(x - 15, y - 11, 30, 14, "#ffffff", stroke="none", radius=3)
    svg.text(x, y, text, 10.5, "middle", on_colour=True)


def _arrow(svg: Svg, x1: float, y1: float, x2: float, y2: float, box: tuple[float, float]) -> None:
    """Between the edges of two boxes."""
    dx, dy = x2 - x1, y2 - y1
    t = min((box[0] / 2 + 5) / abs(dx) if dx else 9.0, (box[1] / 2 + 16) / abs(dy) if dy else 9.0, 0.45)
    a, b = (x1 + t * dx, y1 + t * dy), (x2 - t * dx, y2 - t * dy)
    svg.line(*a, *b, width=1.6)
    svg.arrow_head(*b, dx, dy, 8)


def looked_up(ranks: int, length: int, told: float, from_zero: float) -> book.Figure:
    """Which row of the position table each token of a text looks up, where positions are told and where not.

    length: tokens of each rank. told, from_zero: the first losses.
    """
    title, whole = "Which position each token looks up", ranks * length
    said = (
        f"Above, the {whole} tokens look up positions 0 to {whole - 1}, and the first loss is {told:.4f}. Below, each "
        f"rank counts from 0: positions 0 to {length - 1} are looked up {ranks} times, the others never, and the first "
        f"loss is {from_zero:.4f}."
    )
    svg = Svg(WIDTH, title, said)
    y = heading(svg, "measured", said) + 4
    left, room = 120.0, WIDTH - 134.0
    for name, starts in (("with positions", [r * length for r in range(ranks)]), ("from 0", [0] * ranks)):
        svg.text(8, y + 13, name, bold=True)
        for r in range(ranks):
            look, x = SERIES[r % 8], left + room * r / ranks
            svg.rect(x, y, room / ranks - 3, 20, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7)
            _plate(svg, x + room / ranks / 2, y + 15, f"rank {r}")
            aim = left + room * (starts[r] + length / 2) / whole
            svg.line(x + room / ranks / 2, y + 22, aim, y + 56, "" if starts[r] == r * length else "4 3", 1.4)
            svg.arrow_head(aim, y + 58, aim - x - room / ranks / 2, 36, 7)
        svg.text(8, y + 73, "position table", 11)
        for r in range(ranks):
            used = sum(start == r * length for start in starts)
            x = left + room * r / ranks
            svg.rect(x, y + 60, room / ranks - 3, 20, GREY if not used else "none", dash="" if used else "3 3",
                     stroke_width=1.2)  # fmt: skip
            words = f"{r * length} to {(r + 1) * length - 1}" + ("" if used == 1 else f", {used} times" if used else "")
            svg.text(x + 8, y + 74, words if used else f"{words}: never", 10.5, on_colour=not used)
        y += 104
    rows: list[Row] = [{"rank": r, "with positions": f"{r * length} to {(r + 1) * length - 1}",
             "from 0": f"0 to {length - 1}"} for r in range(ranks)]  # fmt: skip
    return book.Figure(title, "measured", said, rows, svg.render(y))


def positions_for_heads(ranks: int = 4, tokens: int = 12) -> book.Player:
    """Ulysses: who holds which head at which position, before, between and after."""
    title, frames, rows = "Positions for heads", [], []
    said = (
        f"Each rank has computed the queries, keys and values of its own {tokens // ranks} tokens, for all heads.",
        f"All-to-all: rank 0 keeps head 0 of its tokens and sends each of the other {ranks - 1} heads to another rank.",
        f"Now each rank has all {tokens} tokens of one head, so it computes the attention of this head alone.",
        "A second all-to-all takes the results back to the ranks of their tokens.",
    )
    for k, words in enumerate(said):
        svg = Svg(WIDTH, title, words)
        top = heading(svg, "simulated", words) + 26
        wide, high, left = 46.0, 30.0, 110.0
        svg.text(left + tokens * wide / 2, top - 10, "tokens, from the first to the last", 11, "middle")
        for h in range(ranks):
            svg.text(left - 10, top + h * high + 19, f"head {h}", 11.5, "end")
            for t in range(tokens):
                source, to = t * ranks // tokens, h
                owner = to if k == 2 else source
                moves = k in (1, 3) and source != to
                look = SERIES[owner]
                svg.rect(left + t * wide, top + h * high, wide - 2, high - 2, look.colour, look.hatch, ON_COLOUR,
                         stroke_width=2.4 if moves else 0.6)  # fmt: skip
                text = (f"{source} → {to}" if k == 1 else f"{to} → {source}") if moves else str(owner)
                svg.rect(left + t * wide + 5, top + h * high + 7, wide - 12, 15, "#ffffff", stroke="none", radius=3)
                svg.text(left + t * wide + wide / 2 - 1, top + h * high + 18, text, 10.5, "middle", on_colour=True)
        y = top + ranks * high + 20
        svg.text(left, y, "number: the rank that holds it   arrow and thick frame: moves from rank to rank", 11)
        frames.append((svg.render(y + 12), words))
        rows.append({"step": k, "what": words})
    return book.play(frames, title=title, badge="simulated", rows=rows, still=1)
