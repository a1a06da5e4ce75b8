"""Pictures that explain: rows that batches touch, gradients of equal ids that meet, a DLRM, masks that cancel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE, PURPLE, RED, SERIES, YELLOW
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.chapters.c13_embeddings.given import labels_of
from labkit.data import zipf_ids

ACROSS, DOWN, DRAWS, BATCHES = 40, 25, 40, 6  # of the picture of touched rows


def touched(skew: float = 1.1, seed: int = 0) -> book.Player:
    """A table of 1,000 rows, and which of them batches of 40 ids touch: uniform ids left, skewed right."""
    num, title = ACROSS * DOWN, "Which rows a batch touches"
    dice = torch.Generator().manual_seed(seed)
    drawn = [[zipf_ids((DRAWS,), num, s, dice).unique().tolist() for s in (0.0, skew)] for _ in range(BATCHES)]
    seen: list[set[int]] = [set(), set()]
    frames, rows = [], []
    for k, now in enumerate(drawn):
        before = [set(one) for one in seen]
        for one, ids in zip(seen, now, strict=True):
            one.update(ids)
        said = (
            f"Batch {k + 1} has {DRAWS} ids. If they are uniform, it touches {len(now[0])} of the {num:,} rows. If "
            f"they are skewed, it touches {len(now[1])}. For the first time it touches "
            f"{len(set(now[0]) - before[0])} rows on the left, and {len(set(now[1]) - before[1])} on the right."
        )
        frames.append((_tables(title, said, now, before), said))
        rows.append({"batch": k + 1, "rows (uniform)": len(now[0]), "rows (skewed)": len(now[1]),
                     "seen (uniform)": len(seen[0]), "seen (skewed)": len(seen[1])})  # fmt: skip
    return book.play(frames, title=title, badge="simulated", rows=rows, still=3)


def _tables(title: str, said: str, now: Sequence[Sequence[int]], before: Sequence[set[int]]) -> str:
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, "simulated", said), 90.0) + 18
    cell = 8.4
    for side, name in enumerate(("uniform ids", "skewed ids: popular rows at the top left")):
        left = 8 + side * (ACROSS * cell + 28)
        svg.text(left, top - 6, name, 11.5, bold=True)
        svg.rect(left, top, ACROSS * cell, DOWN * cell, stroke_width=0.8)
        for ids, fill, wide in ((before[side], GREY, 0.3), (now[side], ORANGE, 1.4)):
            for i in ids:
                x, y = left + i % ACROSS * cell, top + i // ACROSS * cell
                svg.rect(x + 0.7, y + 0.7, cell - 1.4, cell - 1.4, fill, "", ON_COLOUR, stroke_width=wide)
    y = top + DOWN * cell + 18
    svg.text(8, y, "a square: one row of the table   thick frame: this batch   thin: an earlier one   empty: never",
             11)  # fmt: skip
    return svg.render(y + 12)


def duplicates() -> book.Player:
    """Five gradients for three rows: summed where ids are equal, and what an assignment makes of them."""
    ids, gradients = [7, 2, 7, 5, 7], [1.0, 4.0, 2.0, 3.0, 5.0]
    order = sorted(set(ids))
    title, frames, rows = "Three gradients for row 7", [], []
    for k in range(len(ids) + 1):
        total = {i: sum(g for j, g in zip(ids[:k], gradients[:k], strict=True) if j == i) for i in order}
        last = {i: next((g for j, g in zip(ids[:k][::-1], gradients[:k][::-1], strict=True) if j == i), 0.0)
                for i in order}  # fmt: skip
        if k == 0:
            said = "A batch has row 7 three times, so there are three gradients for it. The row needs their sum."
        elif k < len(ids):
            said = f"Gradient {k} belongs to row {ids[k - 1]}: above it is added, below it overwrites what was there."
        else:
            said = f"In the end row 7 has {total[7]:g} above. Below, the last one has won: {last[7]:g}."
        frames.append((_fall(title, said, ids, gradients, order, total, last, k), said))
        rows.append({"gradients": k} | {f"row {i}, sum": total[i] for i in order}
                    | {f"row {i}, assigned": last[i] for i in order})  # fmt: skip
    return book.play(frames, title=title, badge="simulated", rows=rows, still=len(ids))


def _fall(
    title: str, said: str, ids: Sequence[int], gradients: Sequence[float], order: Sequence[int],
    total: dict[int, float], last: dict[int, float], k: int,
) -> str:  # fmt: skip
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, "simulated", said), 56.0) + 12
    svg.text(8, top + 4, "gradients, in the order of the batch", 11.5, bold=True)
    for n, (i, g) in enumerate(zip(ids, gradients, strict=True)):
        look = SERIES[order.index(i)]
        svg.rect(8 + n * 96, top + 14, 84, 34, look.colour if n >= k else "none", look.hatch if n >= k else "",
                 ON_COLOUR if n >= k else None, stroke_width=2.6 if n == k - 1 else 0.8)  # fmt: skip
        svg.rect(14 + n * 96, top + 23, 72, 16, "#ffffff", stroke="none", radius=3)
        svg.text(50 + n * 96, top + 35, f"row {i}: {g:g}", 11, "middle", on_colour=True)
    lines = {"added up: total.index_add_(0, place, gradient)": total, "overwritten: total[place] += gradient": last}
    for lane, (name, sums) in enumerate(lines.items()):
        y = top + 78 + lane * 84
        svg.text(8, y, name, 11.5, bold=True)
        for i in order:
            n, look = order.index(i), SERIES[order.index(i)]
            svg.rect(8 + n * 180, y + 10, 170, 42, radius=4)
            svg.rect(14 + n * 180, y + 16, 15.5 * sums[i], 16, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7)
            svg.text(14 + n * 180, y + 47, f"row {i}: {sums[i]:g}", 11)
    return svg.render(top + 232)


def recommender(ranks: int = 4) -> book.Player:
    """One step of a DLRM on some ranks: which part is copied, which is cut, and what travels."""
    title = "A recommender on its ranks"
    said = (
        "Every rank has all of the two perceptrons, and a part of the tables. It reads a part of the batch.",
        "Pull: ids go to the owners of their rows, and the rows come back. This is an all-to-all.",
        "Each rank computes its own examples. The bottom perceptron makes a vector of the dense features. The products "
        "of all pairs of vectors, rows included, go to the top perceptron, which makes a logit of them.",
        "Push: the gradients of rows go to the owners, who update only these rows. This is an all-to-all again.",
        "The gradients of the perceptrons are averaged, which is the all-reduce of chapter 4.",
    )
    frames = []
    for k, words in enumerate(said):
        svg = Svg(WIDTH, title, words)
        top = max(heading(svg, "simulated", words), 56.0) + 10
        wide = (WIDTH - 24) / ranks
        for r in range(ranks):
            x, look = 8 + r * wide, SERIES[1 + r % 7]  # the first one is plain, as what is the same on every rank
            svg.text(x + wide / 2 - 8, top + 8, f"rank {r}", 12, "middle", bold=True)
            for y, high, name, fill, on in (
                (18, 26, "bottom perceptron", BLUE, k in (2, 4)), (52, 26, "top perceptron", BLUE, k in (2, 4)),
                (92, 30, "products of pairs", "none", k == 2),
            ):  # fmt: skip
                svg.rect(x + 4, top + y, wide - 26, high, fill, "", ON_COLOUR if fill != "none" else None,
                         stroke_width=2.8 if on else 0.8, radius=5)  # fmt: skip
                svg.text(x + wide / 2 - 9, top + y + high / 2 + 4, name, 10.5, "middle", on_colour=fill != "none")
            svg.rect(x + 4, top + 160, wide - 26, 60, look.colour, look.hatch, ON_COLOUR,
                     stroke_width=2.8 if k in (1, 3) else 0.8)  # fmt: skip
            svg.rect(x + 12, top + 180, wide - 42, 18, "#ffffff", stroke="none", radius=3)
            svg.text(x + wide / 2 - 9, top + 193, "its part of the tables", 10, "middle", on_colour=True)
        for r in range(ranks):
            for s in range(ranks):
                a, b = 8 + r * wide + wide / 2 - 9, 8 + s * wide + wide / 2 - 9
                if k == 1:
                    svg.line(a, top + 158, b, top + 126, width=1.1)
                    svg.arrow_head(b, top + 126, b - a, -32, 6)
                if k == 3:
                    svg.line(a, top + 126, b, top + 158, width=1.1, dash="4 3")
                    svg.arrow_head(b, top + 158, b - a, 32, 6)
        if k == 4:
            for y in (31, 65):
                for r in range(ranks - 1):
                    x = 8 + (r + 1) * wide - 20
                    svg.line(x, top + y, x + 22, top + y, width=2.2)
                    svg.arrow_head(x + 23, top + y, 1, 0, 7)
                    svg.arrow_head(x - 1, top + y, -1, 0, 7)
        svg.text(8, top + 240, "plain boxes: the same weights on every rank   patterned: different rows on each   "
                 "thick frame: at work", 10.5)  # fmt: skip
        frames.append((svg.render(top + 252), words))
    rows = [{"moment": k, "what": words} for k, words in enumerate(said)]
    return book.play(frames, title=title, badge="simulated", rows=rows, still=1)


def masks(numbers: Sequence[int] = (12, 7, 30), modulus: int = 100) -> book.Player:
    """Three clients and a server: masks of pairs, what is sent, and the sum, with and without a client."""
    pairs = {(0, 1): 58, (0, 2): 77, (1, 2): 65}
    added = [sum(s if c == a else -s for (a, b), s in pairs.items() if c in (a, b)) for c in range(3)]
    sent = [(x + m) % modulus for x, m in zip(numbers, added, strict=True)]
    part = (sent[0] + sent[1]) % modulus
    first, second = pairs[0, 2], pairs[1, 2]  # the masks of client 2
    repaired = (part - first - second) % modulus
    said = (
        f"Each client has a number that nobody else should see. All computing here is modulo {modulus}.",
        "Every pair of clients has agreed on a secret mask. The lower one adds it, the higher one takes it away.",
        "What the clients send looks random: each of these numbers would be possible for any secret number.",
        f"The server adds up what came. Every mask is there with + and with −: {' + '.join(map(str, sent))} = "
        f"{sum(sent)}, and modulo {modulus} that is {sum(sent) % modulus}, the sum of the numbers.",
        f"If client 2 drops out, its masks with the others stay in the sum: {sent[0]} + {sent[1]} gives {part}, and "
        f"not {(numbers[0] + numbers[1]) % modulus}.",
        f"The repair: clients 0 and 1 tell the server the masks that they shared with client 2. It subtracts both: "
        f"{part} − {first} − {second} is {repaired} modulo {modulus}, the sum of the two. The mask between clients "
        "0 and 1 has cancelled, and nobody tells it.",
    )
    title, frames = "Masks that cancel", []
    for k, words in enumerate(said):
        svg = Svg(WIDTH, title, words)
        top = max(heading(svg, "simulated", words), 74.0) + 6
        place = [(150.0, top + 40), (60.0, top + 190), (240.0, top + 190)]
        for n, ((a, b), s) in enumerate(pairs.items()):
            if k == 0:
                break
            (x1, y1), (x2, y2) = place[a], place[b]
            gone = k >= 4 and 2 in (a, b)
            svg.line(x1, y1, x2, y2, width=2.2, dash=("", "7 4", "2 3")[n], colour=(RED, PURPLE, GREEN)[n])
            mx, my = (x1 + x2) / 2, (y1 + y2) / 2
            svg.rect(mx - 26, my - 9, 52, 18, YELLOW if gone else "#ffffff", stroke=ON_COLOUR, stroke_width=0.6,
                     radius=3)  # fmt: skip
            svg.text(mx, my + 4, f"mask {s}", 10, "middle", on_colour=True)
        for c, (x, y) in enumerate(place):
            lost = k >= 4 and c == 2
            svg.rect(x - 44, y - 22, 88, 44, "none" if lost else SERIES[c].colour, "" if lost else SERIES[c].hatch,
                     None if lost else ON_COLOUR, radius=6, dash="5 4" if lost else "")  # fmt: skip
            if not lost:
                svg.rect(x - 38, y - 16, 76, 32, "#ffffff", stroke="none", radius=4)
            svg.text(x, y - 3, f"client {c}", 10.5, "middle", on_colour=not lost)
            svg.text(x, y + 11, "gone" if lost else f"has {numbers[c]}", 10.5, "middle", on_colour=not lost)
        if k >= 2:
            for c in range(3):
                signs = " ".join(f"{'+' if c == a else '−'} {s}" for (a, b), s in pairs.items() if c in (a, b))
                y, lost = top + 30 + c * 40, k >= 4 and c == 2
                told = "nothing comes" if lost else f"{numbers[c]} {signs} = {sent[c]} (mod {modulus})"
                svg.text(330, y, f"client {c} sends", 11, bold=True)
                svg.text(330, y + 16, told, 11)
        if k >= 3:
            svg.rect(322, top + 152, 330, 46, radius=5, stroke_width=1.8)
            total = {3: sum(sent) % modulus, 4: part, 5: repaired}[k]
            right = sum(numbers) % modulus if k == 3 else (numbers[0] + numbers[1]) % modulus
            svg.text(332, top + 171, f"the server has {total}", 12, bold=True)
            svg.text(332, top + 188, f"the sum of the numbers is {right}", 11)
        frames.append((svg.render(top + 232), words))
    rows = [{"client": c, "number": numbers[c], "masks": added[c], "sent": sent[c]} for c in range(3)]
    return book.play(frames, title=title, badge="simulated", rows=rows, still=3)


def clients(images_of: Sequence[torch.Tensor], digits: torch.Tensor) -> book.Figure:
    """How many images of each digit each client has. A cell is filled in proportion, below its number.

    images_of: of each client, which of all images it has. digits: of all images.
    """
    parts = labels_of(images_of, digits)
    title = "Who has which digits"
    sizes = [sum(row) for row in parts]
    said = (
        f"{sum(sizes):,} images at {len(parts)} clients: the smallest has {min(sizes)}, and the largest {max(sizes)}."
    )
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, "measured", said), 56.0) + 20
    largest, wide, high = max(max(row) for row in parts), 48.0, 42.0
    for d in range(10):
        svg.text(150 + (d + 0.5) * wide, top - 4, f"digit {d}", 10.5, "middle", bold=True)
    for c, row in enumerate(parts):
        y, look = top + 4 + c * high, SERIES[c % 8]
        svg.text(8, y + 23, f"client {c + 1}: {sizes[c]} images", 11.5)
        for d, count in enumerate(row):
            x, tall = 150 + d * wide, (high - 20) * count / largest
            svg.rect(x, y, wide - 4, high - 4, stroke_width=0.5)
            svg.rect(x, y + high - 4 - tall, wide - 4, tall, look.colour, look.hatch, ON_COLOUR, stroke_width=0.6)
            svg.text(x + wide / 2 - 2, y + 12, str(count or "–"), 11.5, "middle")
    rows: list[Row] = [{"client": c + 1} | {f"digit {d}": n for d, n in enumerate(row)} for c, row in enumerate(parts)]
    return book.Figure(title, "measured", said, rows, svg.render(top + 12 + len(parts) * high))
