"""Pictures that explain: rows that batches touch, gradients of equal ids that meet, a DLRM, masks that cancel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE, PURPLE, RED, SERIES, YELLOW, Look
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text
from labkit.chapters.c13_embeddings.clients import labels_of
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
            f"they are skewed, it touches {len(now[1])}. Of these rows, {len(set(now[0]) - before[0])} on the left and "
            f"{len(set(now[1]) - before[1])} on the right had not been touched before."
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
            said = (
                f"In the end the upper row 7 holds {total[7]:g}. Below only one of the gradients is left, here the "
                f"last: {last[7]:g}."
            )
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
    lines = {"added one by one": total, "overwritten: total[place] += gradient": last}
    for lane, (name, sums) in enumerate(lines.items()):
        y = top + 78 + lane * 84
        svg.text(8, y, name, 11.5, bold=True)
        for i in order:
            n, look = order.index(i), SERIES[order.index(i)]
            svg.rect(8 + n * 180, y + 10, 170, 42, radius=4)
            svg.rect(14 + n * 180, y + 16, 15.5 * sums[i], 16, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7)
            svg.text(14 + n * 180, y + 47, f"row {i}: {sums[i]:g}", 11)
    return svg.render(top + 232)


def state(dim: int = 64, nbytes: float = 10e12) -> book.Figure:
    """One row of a table and, beside it, what each optimizer keeps for it: a square for each number."""
    title, side, across = "One row and its optimizer's state", 9.0, 16
    names = {"SGD": "sgd", "row-wise Adagrad": "rowwise_adagrad", "Adagrad": "adagrad", "Adam": "adam"}
    kept = {label: dim * cost.OPTIMIZER_STATE[name][0] + cost.OPTIMIZER_STATE[name][1] for label, name in names.items()}
    told = {label: bytes_text(nbytes * more / dim) for label, more in kept.items()}
    said = f"With Adam the state is larger than the table. Row-wise Adagrad adds only {told['row-wise Adagrad']} to it."
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, "simulated", said), 56.0) + 14
    high = -(-dim // across) * side
    svg.text(140, top, f"{dim} weights", 11.5, bold=True)
    svg.text(140 + across * side + 20, top, "state", 11.5, bold=True)
    for n, (label, more) in enumerate(kept.items()):
        y = top + 10 + n * (high + 14)
        svg.text(8, y + high / 2 + 4, label, 12, bold=True)
        for count, left, look in ((dim, 140.0, SERIES[0]), (more, 140 + across * side + 20, SERIES[1])):
            for k in range(count):
                block, place = divmod(k, dim)
                x = left + block * (across * side + 8) + place % across * side
                svg.rect(x, y + place // across * side, side - 1, side - 1, look.colour, look.hatch, ON_COLOUR,
                         stroke_width=0.4)  # fmt: skip
        svg.text(630, y + high / 2 + 4, f"+ {told[label]}" if more else "no state", 12)
    y = top + 10 + len(kept) * (high + 14) + 6
    svg.text(8, y, f"a square: one number   at the right: what that adds to a table of {bytes_text(nbytes)}", 11)
    rows: list[Row] = [{"optimizer": label, "numbers of state for a row": more, "adds": told[label]}
                       for label, more in kept.items()]  # fmt: skip
    return book.Figure(title, "simulated", said, rows, svg.render(y + 12))


def recommender(ranks: int = 4) -> book.Player:
    """One step of a DLRM on some ranks: which part is copied, which is cut, and what goes in and out of each part."""
    title = "A recommender on its ranks"
    said = (
        "Every rank has all of the two perceptrons, and a part of the tables. It reads a part of the batch.",
        "Pull: ids go down to the owners of their rows, and the rows come up. This is an all-to-all.",
        "Each rank computes its own examples, from bottom to top. The bottom perceptron makes a vector of the dense "
        "features, and the rows are vectors, too. The dot products of all pairs of them, and the first vector itself, "
        "go into the top perceptron.",
        "Push: the gradients of rows go to the owners, who update only these rows. This is an all-to-all again.",
        "The gradients of the perceptrons are averaged, which is the all-reduce of chapter 4.",
    )
    frames = []
    for k, words in enumerate(said):
        svg = Svg(WIDTH, title, words)
        top = max(heading(svg, "simulated", words), 56.0) + 10
        wide = (WIDTH - 24) / ranks
        lefts = [8 + r * wide for r in range(ranks)]
        for r, left in enumerate(lefts):
            _of_rank(svg, left, top, wide - 22, SERIES[1 + r % 7], f"rank {r}", k)
        for a in lefts:
            for b in lefts:
                x1, x2 = a + 0.72 * (wide - 22), b + 0.72 * (wide - 22)
                if k in (1, 3):
                    svg.line(x1, top + 116, x2, top + 178, width=1.1, dash="4 3" if k == 3 else "")
                    svg.arrow_head(x2, top + 178, x2 - x1, 62, 6)
                if k == 1:
                    svg.arrow_head(x1, top + 116, x1 - x2, -62, 6)
        lows = [left + 0.22 * (wide - 22) for left in lefts] if k == 4 else []
        for left, low in zip(lefts, lows, strict=False):
            svg.line(low, top + 230, low, top + 220, width=2.2)
            svg.arrow_head(low, top + 219, 0, -1, 7)
            if left != lefts[0]:
                svg.line(low - wide, top + 230, low, top + 230, width=2.2)
                svg.line(left - 20, top + 47, left, top + 47, width=2.2)
                svg.arrow_head(left + 1, top + 47, 1, 0, 7)
                svg.arrow_head(left - 21, top + 47, -1, 0, 7)
        svg.text(8, top + 270, "plain boxes: the same weights on every rank   patterned: different rows on each   "
                 "thick frame: at work", 10.5)  # fmt: skip
        frames.append((svg.render(top + 282), words))
    rows = [{"moment": k, "what": words} for k, words in enumerate(said)]
    return book.play(frames, title=title, badge="simulated", rows=rows, still=1)


def _of_rank(svg: Svg, left: float, top: float, wide: float, look: Look, name: str, k: int) -> None:
    """The parts of a model on one rank at moment k: data go in below, and come out above."""
    middle, low, high = left + wide / 2, left + 0.22 * wide, left + 0.72 * wide
    svg.text(middle, top + 6, name, 12, "middle", bold=True)
    svg.text(middle + 6, top + 24, "out: a logit for each example", 9.5, "middle")
    svg.rect(left, top + 34, wide, 26, BLUE, "", ON_COLOUR, stroke_width=2.8 if k in (2, 4) else 0.8, radius=5)
    svg.text(middle, top + 51, "top perceptron", 10.5, "middle", on_colour=True)
    svg.rect(left, top + 82, wide, 26, stroke_width=2.8 if k == 2 else 0.8, radius=5)
    svg.text(middle, top + 99, "products of pairs, and the vector", 10, "middle")
    svg.rect(left, top + 180, 0.44 * wide, 38, BLUE, "", ON_COLOUR, stroke_width=2.8 if k in (2, 4) else 0.8, radius=5)
    svg.text(low, top + 196, "bottom", 10, "middle", on_colour=True)
    svg.text(low, top + 210, "perceptron", 10, "middle", on_colour=True)
    svg.rect(left + 0.48 * wide, top + 180, 0.52 * wide, 38, look.colour, look.hatch, ON_COLOUR,
             stroke_width=2.8 if k in (1, 3) else 0.8)  # fmt: skip
    svg.rect(left + 0.52 * wide, top + 186, 0.44 * wide, 26, "#ffffff", stroke="none", radius=3)
    svg.text(high + 2, top + 196, "its part of", 9.5, "middle", on_colour=True)
    svg.text(high + 2, top + 208, "the tables", 9.5, "middle", on_colour=True)
    if k != 4:
        svg.text(low, top + 234, "in: dense", 9.5, "middle")
        svg.text(low, top + 246, "features", 9.5, "middle")
    if k == 1:
        svg.text(high, top + 234, "ids in,", 9.5, "middle")
        svg.text(high, top + 246, "rows out", 9.5, "middle")
    elif k == 3:
        svg.text(high, top + 234, "gradients", 9.5, "middle")
        svg.text(high, top + 246, "of rows in", 9.5, "middle")
    for x, y, to, what in (
        (low, 226, 219, ""), (low, 179, 109, "vector"), (high, 130, 109, "rows"), (middle, 81, 61, "products"),
    ) if k == 2 else ():  # fmt: skip
        svg.line(x, top + y, x, top + to, width=1.6)
        svg.arrow_head(x, top + to, 0, -1, 7)
        svg.text(x + (6 if what != "rows" else -11), top + (y + to) / 2 + (4 if what != "rows" else 22), what, 9.5)


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
        "Every pair of clients has agreed on a secret mask. The lower one adds it, and the higher one subtracts it.",
        "What the clients send looks random: each of these numbers would be possible for any secret number.",
        f"The server adds up what came. Every mask is there with + and with −: {' + '.join(map(str, sent))} = "
        f"{sum(sent)}, and modulo {modulus} that is {sum(sent) % modulus}, the sum of the numbers.",
        f"If client 2 drops out, its masks with the others stay in the sum: {sent[0]} + {sent[1]} gives {part}, and "
        f"not {(numbers[0] + numbers[1]) % modulus}.",
        f"The repair: clients 0 and 1 tell the server the masks that they shared with client 2. It subtracts both: "
        f"{part} − {first} − {second} is {repaired} modulo {modulus}, the sum of the two. The mask between clients "
        "0 and 1 has cancelled, and it stays secret.",
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
            svg.rect(x - 44, y - 22, 88, 44, "#ffffff" if lost else SERIES[c].colour, "" if lost else SERIES[c].hatch,
                     ON_COLOUR, radius=6, dash="5 4" if lost else "")  # fmt: skip
            if not lost:
                svg.rect(x - 38, y - 16, 76, 32, "#ffffff", stroke="none", radius=4)
            svg.text(x, y - 3, f"client {c}", 10.5, "middle", on_colour=True)
            svg.text(x, y + 11, "gone" if lost else f"has {numbers[c]}", 10.5, "middle", on_colour=True)
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
