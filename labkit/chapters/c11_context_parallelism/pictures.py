"""What chapter 11 shows of its runs: what is kept, who sets the pace, what is hidden, and what is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH as WIDE, heading, legend
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, plural, seconds_text
from labkit.chapters.c11_context_parallelism.attention import HEADS, LINKS, WIDTH as PER_HEAD, packed
from labkit.cost.planner import H100, MODELS
from labkit.cost.units import format_bytes, format_seconds
from labkit.parallel.context.masks import Mask

PAIR = 1e-6  # seconds that the stand-in kernel of the first workbench takes for a pair
FAST_PAIR = 1e-7  # and that of the workbench of links
Bytes = Mapping[int, int]


def kept(dense: Bytes, tiled: Bytes) -> book.Figure:
    """What autograd keeps of one attention, by tokens: all scores, or tiles of them."""
    most = max(dense)
    said = (
        f"At {most:,} tokens dense attention keeps {bytes_text(dense[most])}, and attention in tiles "
        f"{bytes_text(tiled[most])}."
    )
    values = {"dense": dense, "in tiles": tiled}
    return book.lines(
        {name: {float(t): n / 1e6 for t, n in one.items()} for name, one in values.items()},
        x="tokens", y="MB kept for the backward pass", title="What one layer's attention keeps", sentence=said,
    )  # fmt: skip


def pace(run: Any, layout: str) -> str:
    """Who has least and most to do, and how long the busiest makes the run."""
    positions, n = run.results, run.trace.world_size
    work = [int((p + 1).sum()) for p in positions]
    least, most, even = min(work), max(work), sum(work) / n
    took = format_seconds(run.trace.duration, 3)
    length = sum(map(len, positions))
    formula = cost.ring_attention_seconds(n, length, layout, PAIR, 0.0)
    if most > 1.02 * least:
        said = f"Rank {work.index(least)} computes {least} pairs of a query and a key, and rank {work.index(most)} "
        said += f"computes {most}. With even shares each rank would compute {even:g}. "
        said += f"So rank {work.index(least)} is idle for {1 - least / most:.0%} of the time."
    else:
        said = f"Every rank computes {even:g} pairs." if least == most else "Every rank computes nearly as many pairs."
    return f"{said} At 1 µs a pair the rounds take {format_seconds(formula, 3)}, and the run took {took} (emulated)."


def timeline(run: Any) -> book.Figure:
    """What each rank does. A rank that has nothing more to do is not there any more, so the parts are of all time."""
    works = [rank["compute"] / run.trace.duration for rank in run.trace.step_breakdown()]
    least, most = works.index(min(works)), works.index(max(works))
    said = f"{len(works)} ranks over {format_seconds(run.trace.duration, 3)}. "
    said += (
        f"Every rank computes for {works[0]:.0%} of it." if max(works) - min(works) < 0.005 else
        f"Rank {most} computes for {works[most]:.0%} of it, and rank {least} for {works[least]:.0%}."
    )  # fmt: skip
    return book.timeline(run.trace, title="When each rank computes", arrows=False, sentence=said)


def beside_limit(prediction: Any, ran: float) -> book.Table:
    """A prediction of the slowdown beside the run, and of its limit beside what the formula says of many ranks."""
    rows = prediction.compare(ran, 2, mark="emulated")
    first, second = (dict(row) for row in rows)
    first["by the formula"] = round(2 - 1 / 3, 2)  # of a long text on 3 ranks
    second["by the formula"] = second.pop("the run (emulated)")
    return book.Table([first, second], caption=rows.caption)


def in_order(run: Any, layout: Callable[[int, int, int], Tensor]) -> Tensor:
    """The results of all ranks, (b, h, t, d) each, in the order of the text. layout: as the page's `zigzag`."""
    n, length = len(run.results), sum(part.shape[2] for part in run.results)
    back = torch.cat([layout(rank, n, length) for rank in range(n)]).argsort()
    return torch.cat(run.results, dim=2)[:, :, back]


def kilobytes(*runs: Any) -> list[float]:
    """What the busiest rank of each run has sent."""
    return [max(run.trace.bytes_sent()) / 1e3 for run in runs]


def beside_ring(prediction: Any, *runs: Any) -> book.Table:
    """What was predicted of the kilobytes that leave a rank, beside the runs."""
    table: book.Table = prediction.compare(*kilobytes(*runs))
    return table


def beside_formula(run: Any) -> None:
    """Print what rank 0 sent in a ring over the chapter's small text, and what the formula says."""
    tokens = [part.shape[2] for part in run.results]
    formula = cost.ring_attention_bytes_by_rank(
        tokens, kv_heads=HEADS, head_width=PER_HEAD, itemsize=4, passes="forward"
    )[0]
    print(f"rank 0 sent {run.trace.bytes_sent()[0]:,} bytes; (N - 1) / N of all keys and values are {formula:,}")


def hidden(run: Any, per_rank: int, link: str, overlap: bool) -> str:
    """How long a block is computed and how long it travels, and what of that is seen."""
    n = run.trace.world_size
    block = 2 * 4 * PER_HEAD * per_rank / LINKS[link]
    work = FAST_PAIR * per_rank**2 / 2
    formula = cost.ring_attention_seconds(n, per_rank * n, "zigzag", FAST_PAIR, block, overlap=overlap)
    took, own = run.trace.duration, FAST_PAIR * per_rank * (per_rank + 1) / 2  # in round 0 a query reads its own place
    first, each = (max(pairs, block) if overlap else pairs + block for pairs in (own, work))
    rounds = f"{plural(n - 1, 'round')} of {format_seconds(each, 3)}"
    if format_seconds(first, 3) != format_seconds(each, 3):
        rounds = f"a first round of {format_seconds(first, 3)}"
        rounds += f", {n - 2} of {format_seconds(each, 3)}" if n > 2 else ""
    how = "Nothing is hidden, because a rank waits for the next block before it computes." if not overlap else (
        "Computing with a block takes as long or longer, so the transfer is hidden."
        if work >= block * (1 - 1e-9)
        else "Computing takes less time than the transfer, so for the rest of a round the ranks only send and receive."
    )  # fmt: skip
    return (
        f"A block travels {format_seconds(block, 3)}, and computing with it takes {format_seconds(work, 3)}. {how} "
        f"The run took {format_seconds(took, 3)}; by the formula it takes {format_seconds(formula, 3)} (emulated): "
        f"{rounds}, and a last one of {format_seconds(work, 3)}."
    )


LLAMA_8B = MODELS["Llama 3 8B"].hidden  # numbers of all query heads of a token


def tokens_needed(bandwidth: float, grouped: int, peak: int) -> book.Figure:
    """How long a rank computes with a block and how long a block travels, by its tokens, and where the two cross.

    bandwidth: GB/s of the link. grouped: query heads for a KV head. peak: percent of the GPU's peak.
    """
    speed, wire = H100.peak() * peak / 100, 1e9 * bandwidth
    least = cost.ring_attention_tokens_to_hide(speed, wire, heads=grouped, kv_heads=1)
    many = [10 * 2.0**k for k in range(16)]
    curves = {
        "computing": {t: 2 * LLAMA_8B * t**2 / speed for t in many},
        "a block travels": {t: 4 * LLAMA_8B / grouped * t / wire for t in many},
        "they cross": {least: 2 * LLAMA_8B * least**2 / speed},
    }
    said = (
        f"With {least:,.0f} tokens or more on each rank the transfer is hidden, and with fewer the ranks wait for it."
    )
    drawn = book.lines(
        curves, x="tokens of a rank", y="time of a round", title="One round of the ring on an H100, forward, 16 bits",
        badge="simulated", sentence="", log="xy", within=(5e-10, 20.0), y_text=seconds_text,
    )  # fmt: skip
    rows: list[Row] = [
        {"tokens of a rank": round(t)}
        | {f"{name} (ms)": 1e3 * at[t] if t in at else None for name, at in curves.items()}
        for t in sorted({t for at in curves.values() for t in at})
    ]
    return replace(drawn, sentence=said, rows=rows)  # the sentence stands above the picture, and so not in it


WAYS, SIZES = ("ring", "Ulysses", "both"), (2, 4, 8)
WAYS_TOKENS = 256  # of the text that the workbench of section 6 shares out


def formula_of(ulysses: int, size: int, per_rank: int, heads: int, kv_heads: int) -> int:
    """Bytes that each rank sends forward in float32, by `labkit.cost`: ring, Ulysses, or rings of Ulysses groups."""
    sent = 0
    if ulysses > 1:
        about = {"itemsize": 4, "passes": "forward"}
        sent += cost.ulysses_bytes_by_rank([per_rank] * ulysses, heads, kv_heads, PER_HEAD, **about)[0]
    if size > ulysses:
        held = kv_heads if kv_heads % ulysses == 0 else ulysses if ulysses % kv_heads == 0 else heads
        blocks = [per_rank * ulysses] * (size // ulysses)
        sent += cost.ring_attention_bytes_by_rank(
            blocks, held // ulysses, PER_HEAD, itemsize=4, passes="forward"
        )[0]  # fmt: skip
    return sent


PARTS = (("queries", GREEN, "x"), ("keys", BLUE, ""), ("values", ORANGE, "/"), ("results", GREY, "\\"))


def sent(run: Any, way: str, heads: int, kv_heads: int) -> book.Figure:
    """What a rank sent, beside what the formulas say of all ways and numbers of ranks, part by part."""
    n, measured = run.trace.world_size, max(run.trace.bytes_sent())
    if _possible(way, n, heads):
        formula, count = _formula(way, n, heads, kv_heads), run.trace.messages()[0]
        agree = "as the formula says" if measured == formula else f"where the formula says {format_bytes(formula, 3)}"
        said = (
            f"Each of {n} ranks sends {format_bytes(measured, 3)} in {count} message{'s' * (count != 1)}, {agree}. "
            f"{_why(_sharing(way, n), n, heads, kv_heads)}"
        )
    else:
        said = (
            f"Refused: with {way} each rank needs whole heads, and {n} ranks cannot share {heads} query heads. "
            "Choose the way both: two neighbours split the heads, and a ring joins these pairs."
        )
    cases = [(one, p) for one in WAYS for p in SIZES if _possible(one, p, heads)]
    parts = {case: _parts(*case, heads, kv_heads) for case in cases}
    title = f"What a rank sends forward: {heads} query heads, {kv_heads} KV heads"
    svg = Svg(WIDE, title, said)
    y = legend(svg, heading(svg, "simulated", said), [(*part, "") for part in PARTS]) + 6
    scale = (WIDE - 210.0) / max(sum(one.values()) for one in parts.values())
    for one, p in cases:
        y += 8 if p == SIZES[0] else 0
        x, mine = 120.0, (one, p) == (way, n)
        svg.text(x - 8, y + 14, f"{one}, {p} ranks", 11, "end", bold=mine)
        for name, colour, hatch in PARTS:
            nbytes = parts[one, p][name]
            svg.rect(x, y, nbytes * scale, 18, colour, hatch, ON_COLOUR, hover=f"{name}: {format_bytes(nbytes, 3)}")
            x += nbytes * scale
        if mine:
            svg.rect(118.0, y - 2, x - 116, 22, stroke_width=3)
        svg.text(x + 8, y + 14, f"{sum(parts[one, p].values()) / 1e3:.1f} kB", 11, bold=mine)
        y += 24
    rows: list[Row] = [
        {"way": one, "ranks": p} | {f"{name}, bytes": round(nbytes) for name, nbytes in parts[one, p].items()}
        | {"all, bytes": _formula(one, p, heads, kv_heads), "your run": measured if (one, p) == (way, n) else None}
        for one, p in cases
    ]  # fmt: skip
    return book.Figure(title, "simulated", said, rows, svg.render(y + 4))


def _parts(way: str, ranks: int, heads: int, kv_heads: int) -> dict[str, float]:
    """Bytes that a rank sends, by what they are: the all-to-all has all four, in proportion to their heads."""
    sharing, total = _sharing(way, ranks), _formula(way, ranks, heads, kv_heads)
    found = dict.fromkeys((name for name, *_ in PARTS), 0.0)
    if sharing > 1:
        per_rank, about = WAYS_TOKENS // ranks, {"itemsize": 4, "passes": "forward"}
        swapped = cost.ulysses_bytes_by_rank([per_rank] * sharing, heads, kv_heads, PER_HEAD, **about)[0]
        own = 4 * PER_HEAD * per_rank * heads * (sharing - 1) / sharing  # queries; and as many bytes of results
        found = {"queries": own, "keys": swapped / 2 - own, "values": swapped / 2 - own, "results": own}
        total -= swapped
    return found | {name: found[name] + total / 2 for name in ("keys", "values")}


def _possible(way: str, ranks: int, heads: int) -> bool:
    """Whether the query heads can be shared out in this way."""
    return heads % _sharing(way, ranks) == 0


def _sharing(way: str, ranks: int) -> int:
    return {"ring": 1, "Ulysses": ranks, "both": 2}[way]


def _formula(way: str, ranks: int, heads: int, kv_heads: int) -> int:
    return formula_of(_sharing(way, ranks), ranks, WAYS_TOKENS // ranks, heads, kv_heads)


def _why(ulysses: int, n: int, heads: int, kv_heads: int) -> str:
    if ulysses == 1:
        return f"In the ring only keys and values travel, {plural(kv_heads, 'head')} of each."
    copied = " KV heads are copied first, until each rank can have a whole one." if kv_heads % ulysses else ""
    among = "all" if ulysses == n else f"{ulysses} neighbouring"
    return f"Among {among} ranks queries, keys, values and results are exchanged.{copied}"


def left_alone(told: Tensor, untold: Tensor) -> book.Figure:
    """How much the logits of two packed texts change if the first one is replaced, token by token, (2 t,) each: with
    the border told to the ring, and without."""
    half = len(told) // 2
    strips = {"with the border": told[half:], "without it": untold[half:]}
    told, untold = strips.values()
    rest = {
        True: "If the ring knows the border, no logit of the second text changes",
        False: "Even if the ring knows the border, logits of the second text change",
    }
    count = int((untold > 0).sum())
    those = "all tokens" if count == len(untold) else f"{count} of the {len(untold)} tokens"
    said = f"{rest[not told.any()]}. If it does not, the logits of {those} of this text change."
    title = "The first text is replaced: what happens to the second?"
    svg = Svg(WIDE, title, said)
    y = heading(svg, "measured", said) + 22
    left, cell, most = 96.0, (WIDE - 110.0) / (2 * half), max(float(untold.max()), 1e-9)
    svg.text(left + half * cell / 2, y - 6, f"first text, {half} tokens", 11, "middle")
    svg.text(left + 1.5 * half * cell, y - 6, f"second text, {half} tokens", 11, "middle")
    for name, moved in strips.items():
        svg.text(8, y + 19, name, 11.5, bold=True)
        svg.rect(left, y, half * cell, 28, GREY, "/", ON_COLOUR, stroke_width=0.7)
        svg.rect(left + half * cell / 2 - 38, y + 6, 76, 16, "#ffffff", stroke="none", radius=3)
        svg.text(left + half * cell / 2, y + 18, "replaced", 11, "middle", on_colour=True)
        for i, far in enumerate(moved.tolist()):
            x = left + (half + i) * cell
            tall = 28 * far / most
            svg.rect(x, y, cell, 28, stroke_width=0.4, hover=f"token {i + 1} changes by {far:.2g}")
            if far:
                svg.rect(x, y + 28 - tall, cell, tall, ORANGE, "", ON_COLOUR, stroke_width=0.4)
        if not moved.any():
            svg.rect(left + 1.5 * half * cell - 22, y + 6, 44, 16, "#ffffff", stroke="none", radius=3)
            svg.text(left + 1.5 * half * cell, y + 18, "all 0", 11, "middle", on_colour=True)
        svg.line(left + half * cell, y - 3, left + half * cell, y + 31, width=2.5)
        y += 44
    svg.text(
        left, y + 2, f"orange: how much a token's logits change, at most by {most:.2g}   thick line: the border", 11
    )
    rows: list[Row] = [
        {"token of the second text": i + 1} | {name: float(moved[i]) for name, moved in strips.items()}
        for i in range(half)
    ]
    return book.Figure(title, "measured", said, rows, svg.render(y + 12))


def reads(run: Any, window: int, texts: int, layout: str) -> str:
    """How many rounds a mask leaves of the ring."""
    n, rounds = run.trace.world_size, run.trace.messages()[0] + 1
    where, back = run.results, rounds - 1
    mask = Mask(window=window, documents=packed(sum(map(len, where)), texts))
    if not back:
        return (
            f"With the {layout} layout a single round is enough: every rank reads its own keys only. Nothing is sent."
        )
    reader = next((r for r in range(n) if mask.allowed(where[r], where[(r - back) % n]).any()), 0)
    why = f"rank {reader} may read keys of rank {(reader - back) % n}, and their block has to go "
    why += "all the way around to it" if rounds == n > 2 else f"{plural(back, 'step')} to the right"
    left = "both rounds are needed" if rounds == n == 2 else "all rounds are needed"
    if rounds < n:
        left = f"{rounds} of {n} rounds are enough"
    return (
        f"With the {layout} layout {left}, because {why}. Each rank sends "
        f"{format_bytes(run.trace.bytes_sent()[0], 3)} of keys and values."
    )
