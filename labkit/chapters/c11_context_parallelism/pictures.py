"""What chapter 11 shows of its runs: what is kept, who sets the pace, what is hidden, and what is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book, cost
from labkit.book.drawing.units import bytes_text, plural
from labkit.chapters.c11_context_parallelism.attention import WIDTH
from labkit.cost.units import format_bytes, format_seconds

PAIR = 1e-6  # seconds that the stand-in kernel of the first workbench takes for a pair
FAST_PAIR = 1e-7  # and that of the workbench of links
Bytes = Mapping[int, int]


def kept(dense: Bytes, tiled: Bytes) -> book.Figure:
    """What autograd keeps of one attention, by tokens: all scores, or tiles of them."""
    most = max(dense)
    said = (
        f"At {most:,} tokens dense attention keeps {bytes_text(dense[most])}, and the tiled one "
        f"{bytes_text(tiled[most])}."
    )
    values = {"dense": dense, "in tiles": tiled}
    return book.lines(
        {name: {float(t): n / 1e6 for t, n in one.items()} for name, one in values.items()},
        x="tokens", y="MB kept for the backward pass", title="What one layer's attention keeps", sentence=said,
    )  # fmt: skip


def pace(run: Any) -> str:
    """Who has least and most to do, and how long the busiest makes the run."""
    positions, n = [p for p, *_ in run.results], run.trace.world_size
    work = [int((p + 1).sum()) for p in positions]
    least, most, even = min(work), max(work), sum(work) / n
    took = format_seconds(run.trace.duration, 3)
    layout = run.results[0][2]
    length = sum(map(len, positions))
    formula = cost.ring_attention_seconds(n, length, layout, PAIR, 0.0)
    if most > 1.02 * least:
        said = f"Rank {work.index(least)} computes {least} pairs and rank {work.index(most)} {most}; evenly shared, it "
        said += f"would be {even:g} each. So rank {work.index(least)} is idle for {1 - least / most:.0%} of the time."
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
    second["by the formula"] = second.pop("the run (emulated)")
    return book.Table([first, second], caption=rows.caption)


def hidden(run: Any) -> str:
    """How long a block is computed and how long it travels, and what of that is seen."""
    per_rank, bandwidth, overlap = run.results[0]
    n = run.trace.world_size
    block = 2 * 4 * WIDTH * per_rank / bandwidth
    work = FAST_PAIR * per_rank**2 / 2
    least = FAST_PAIR * (per_rank * n) * (per_rank * n + 1) / 2 / n
    formula = cost.ring_attention_seconds(n, per_rank * n, "zigzag", FAST_PAIR, block, overlap=overlap)
    took, share = run.trace.duration, least / run.trace.duration
    how = "Nothing is hidden, because a rank waits for the next block before it computes." if not overlap else (
        "Computing with a block takes as long or longer, so the transfer is hidden."
        if work >= block * (1 - 1e-9)
        else "Computing with a block is shorter, so the ranks wait for the rest."
    )  # fmt: skip
    return (
        f"A block travels {format_seconds(block, 3)}, and computing with it takes {format_seconds(work, 3)}. {how} "
        f"The run took {format_seconds(took, 3)}; by the formula it takes {format_seconds(formula, 3)} (emulated). "
        f"Ranks compute {share:.0%} of that time, with {per_rank * n:,} tokens of context."
    )


NEAR, FAR = 450e9, 50e9  # bytes per second of NVLink, and of a network card of 400 Gb/s
H100 = 989e12  # bf16 operations per second without sparsity, of NVIDIA's data sheet


def tokens_needed() -> book.Figure:
    """How many tokens a GPU needs so that the ring is hidden, by the bandwidth of its link and by its heads of keys."""
    cases = {"as many heads of keys": (1, 1), "one for 16 heads of queries": (16, 1)}
    values = {
        name: {b / 1e9: cost.ring_attention_tokens_to_hide(H100, b, heads=h, kv_heads=g) for b in
               (25e9, FAR, 100e9, 200e9, NEAR, 900e9)}
        for name, (h, g) in cases.items()
    }  # fmt: skip
    (near, far), (few_near, few_far) = ((one[NEAR / 1e9], one[FAR / 1e9]) for one in values.values())
    said = (
        f"With the 450 GB/s of NVLink a GPU needs {near:,.0f} tokens, and over 50 GB/s of network {far:,.0f}. If 16 "
        f"heads of queries share a head of keys, {few_near:,.0f} and {few_far:,.0f} are enough."
    )
    return book.lines(
        values, x="GB/s of the link", y="tokens of a GPU", title="Tokens that hide the ring (H100, causal, bf16)",
        badge="simulated", sentence=said, log="xy",
    )  # fmt: skip


WAYS, SIZES = ("ring", "Ulysses", "both"), (2, 4, 8)
WAYS_TOKENS = 256  # of the text that the workbench of section 6 shares out


def formula_of(ulysses: int, size: int, per_rank: int, heads: int, kv_heads: int) -> int:
    """Bytes that each rank sends forward in float32, by `labkit.cost`: ring, Ulysses, or rings of Ulysses groups."""
    sent = 0
    if ulysses > 1:
        about = {"itemsize": 4, "passes": "forward"}
        sent += cost.ulysses_bytes_by_rank([per_rank] * ulysses, heads, kv_heads, WIDTH, **about)[0]
    if size > ulysses:
        held = kv_heads if kv_heads % ulysses == 0 else ulysses if ulysses % kv_heads == 0 else heads
        blocks = [per_rank * ulysses] * (size // ulysses)
        sent += cost.ring_attention_bytes_by_rank(
            blocks, held // ulysses, WIDTH, itemsize=4, passes="forward"
        )[0]  # fmt: skip
    return sent


def sent(run: Any) -> book.Figure:
    """What a rank sent, on the curves of what the formulas say of all ways and numbers of ranks."""
    way, heads, kv_heads = run.results[0]
    n, measured = run.trace.world_size, max(run.trace.bytes_sent())
    formula = _formula(way, n, heads, kv_heads)
    agree = "as the formula says" if measured == formula else f"where the formula says {format_bytes(formula, 3)}"
    count = run.trace.messages()[0]
    said = (
        f"Each of {n} ranks sends {format_bytes(measured, 3)} in {count} message{'s' * (count != 1)}, {agree}. "
        f"{_why(_sharing(way, n), n, heads, kv_heads)}"
    )
    curves = {
        f"{one}, formula": {
            float(p): _formula(one, p, heads, kv_heads) / 1e3 for p in SIZES if _possible(one, p, heads)
        }
        for one in WAYS
    }
    return book.lines(
        {**curves, f"{way}, your run": {float(n): measured / 1e3}}, x="ranks", y="kB that a rank sends", sentence=said,
        title=f"What a rank sends forward: {heads} heads of queries, {kv_heads} of keys",
    )  # fmt: skip


def _possible(way: str, ranks: int, heads: int) -> bool:
    """Whether the heads of queries can be shared out in this way."""
    return heads % _sharing(way, ranks) == 0


def _sharing(way: str, ranks: int) -> int:
    return {"ring": 1, "Ulysses": ranks, "both": 2}[way]


def _formula(way: str, ranks: int, heads: int, kv_heads: int) -> int:
    return formula_of(_sharing(way, ranks), ranks, WAYS_TOKENS // ranks, heads, kv_heads)


def _why(ulysses: int, n: int, heads: int, kv_heads: int) -> str:
    if ulysses == 1:
        return f"In the ring only keys and values travel, {plural(kv_heads, 'head')} of each."
    copied = " Heads of keys are copied first, until each rank can have a whole one." if kv_heads % ulysses else ""
    among = "all" if ulysses == n else f"{ulysses} neighbouring"
    return f"Among {among} ranks queries, keys, values and results change places.{copied}"


def by_ranks(tokens: int = 65_536, heads: int = 64, width: int = 128) -> book.Figure:
    """What a rank sends forward for one long text, by the number of ranks: the ring with two numbers of heads of keys,
    and Ulysses with both."""
    sizes = [2, 4, 8, 16, 32, 64]
    lines: dict[str, dict[float, float]] = {}
    for g in (heads, 8):
        lines[f"ring, {g} heads of keys"] = {
            float(n): cost.ring_attention_bytes_by_rank([tokens // n] * n, g, width, passes="forward")[0] / 1e6
            for n in sizes
        }
        lines[f"Ulysses, {g} heads of keys"] = {
            float(n): cost.ulysses_bytes_by_rank([tokens // n] * n, heads, g, width, passes="forward")[0] / 1e6
            for n in sizes
        }
    first, second, third, last = (line[64.0] for line in lines.values())
    said = (
        f"A text of {tokens:,} tokens, {heads} heads of queries. At 64 ranks a rank of the ring sends {first:,.0f} MB, "
        f"or {third:,.0f} MB with 8 heads of keys, and a rank of Ulysses {second:,.0f} MB"
        + (" with either." if round(second) == round(last) else f", or {last:,.0f} MB with 8 heads of keys.")
    )
    return book.lines(lines, x="ranks", y="MB that a rank sends", title="Bytes by ranks", badge="simulated",
                      sentence=said, log="xy")  # fmt: skip


def reads(run: Any) -> str:
    """How many rounds a mask leaves of the ring."""
    n, rounds = run.trace.world_size, run.trace.messages()[0] + 1
    _, mask, layout = run.results[0]
    where, back = [positions for positions, *_ in run.results], rounds - 1
    if not back:
        return (
            f"With the {layout} layout a single round is enough: every rank reads its own keys only. Nothing is sent."
        )
    reader = next((r for r in range(n) if mask.allowed(where[r], where[(r - back) % n]).any()), 0)
    why = f"rank {reader} may read keys of rank {(reader - back) % n}, and this block has to go "
    why += "all the way around to it" if rounds == n > 2 else f"{plural(back, 'step')} to the right"
    left = "both rounds are needed" if rounds == n == 2 else "all rounds are needed"
    if rounds < n:
        left = f"{rounds} of {n} rounds are enough"
    return (
        f"With the {layout} layout {left}, because {why}. Each rank sends "
        f"{format_bytes(run.trace.bytes_sent()[0], 3)} of keys and values."
    )


def like_one(losses: Sequence[float], one: Sequence[float]) -> str:
    """Whether losses are those of one device."""
    apart = max(abs(x - y) for x, y in zip(losses, one, strict=False))
    same = "follows one device" if apart < 1e-4 else "does not follow one device"
    steps = plural(min(len(losses), len(one)), "step")
    return f"FSDP over the ranks that share texts {same}: the losses of {steps} are at most {apart:.0e} apart."
