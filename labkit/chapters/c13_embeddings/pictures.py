"""What chapter 13 shows of its runs: bytes beside the formula, equal ids, tiers, and three jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text
from labkit.chapters.c13_embeddings.tables import DIM, Requests
from labkit.cost.units import format_bytes, format_seconds

BANDWIDTH, LATENCY = 100e6, 10e-6  # of the emulated links
ITEM = 4  # bytes of a number


def step_took(run: Any) -> str:
    """How many rows the batches ask for, and how long pull and push took on the virtual clock."""
    told: list[Requests] = run.results
    begin, end = run.trace.during_step(1)
    n = len(told)
    each = f" Each of them goes to {'both' if n == 2 else f'all {n}'} ranks." if _cut_by_columns(told) else ""
    return (
        f"The {n} batches have {sum(one.draws for one in told):,} ids. A rank asks only once for an id that comes "
        f"several times, so {sum(len(one.asked) for one in told):,} requests for a row remain.{each} Pull and push "
        f"take {format_seconds(end - begin, 3)} on links of {format_bytes(BANDWIDTH, 3)}/s (emulated)."
    )


def _cut_by_columns(told: Sequence[Requests]) -> bool:
    return all(0 < width < DIM for width in told[0].widths)


def formula_of(told: Sequence[Requests]) -> list[int]:
    """Bytes that each rank sends in pull and push, by `labkit.cost`."""
    return cost.embedding_bytes_by_rank([[one.counts for one in told]], [told[0].widths])


def in_step(run: Any, step: int = 1) -> list[int]:
    """Bytes that each rank sent in a step."""
    sent = [0] * run.trace.world_size
    for m in run.trace.sends:
        if m.step == step:
            sent[m.src] += m.nbytes
    return sent


EVEN = 1.1  # of the mean: a rank with more to do than this is called the jam
PULL = 4  # collectives of a pull: two of counts, one of ids, one of rows. What follows in a step is the push


def sent(run: Any) -> book.Figure:
    """What goes through each rank's link one after the other: what it sends in the pull, and receives in the push."""
    n = run.trace.world_size
    pull, push = [0] * n, [0] * n
    for r in range(n):
        mine = [m for m in run.trace.sends if m.step == 1 and m.src == r]
        order = sorted({m.collective for m in mine})
        for m in mine:
            if order.index(m.collective) < PULL:
                pull[r] += m.nbytes
            else:
                push[m.dst] += m.nbytes
    both = [a + b for a, b in zip(pull, push, strict=True)]
    most, mean = both.index(max(both)), sum(both) / n
    jam = max(both) > EVEN * mean
    if jam:
        who = f"Rank {most} has most to do: it"
    elif min(both) == max(both):
        who = "All ranks have the same to do. Each of them"
    else:
        who = f"All ranks have nearly the same to do. Rank {most} has a little more than the others: it"
    said = (
        f"{who} sends {bytes_text(pull[most])} in the pull and receives {bytes_text(push[most])} in the push, which "
        f"takes its link {format_seconds(both[most] / BANDWIDTH, 3)} (emulated). In the rest of the step this link "
        "waits for messages of others, and for their latency."
    )
    rows: list[Row] = [
        {"rank": r, "sent in the pull (bytes)": pull[r], "received in the push (bytes)": push[r]} for r in range(n)
    ]
    title = "What a rank's link does in one step"
    return book.Figure(title, "measured", said, rows, svg=_stacked(title, said, pull, push, jam))


def _stacked(title: str, said: str, pull: Sequence[int], push: Sequence[int], jam: bool) -> str:
    svg = Svg(WIDTH, title, said)
    looks = {"sent in the pull": SERIES[0], "received in the push": SERIES[1]}
    items = [(name, look.colour, look.hatch, "") for name, look in looks.items()]
    top = legend(svg, heading(svg, "measured", said), items) + 8
    most = max(1, *(a + b for a, b in zip(pull, push, strict=True)))
    for r, parts in enumerate(zip(pull, push, strict=True)):
        x, y = 66.0, top + 27 * r
        svg.text(8, y + 15, f"rank {r}", 12, bold=True)
        for (name, look), nbytes in zip(looks.items(), parts, strict=True):
            wide = 540.0 * nbytes / most
            svg.rect(
                x, y, wide, 21, look.colour, look.hatch, ON_COLOUR, stroke_width=0.7, hover=f"{name}: {nbytes:,} B"
            )
            x += wide
        svg.text(x + 8, y + 15, bytes_text(sum(parts)), 11)
        if jam and sum(parts) == most:
            svg.rect(66, y, x - 66, 21, stroke_width=2.8)
            svg.text(x + 62, y + 15, "the jam", 11.5, bold=True)
    return svg.render(top + 27 * len(pull) + 6)


COLUMNS = 150  # of the strip for a table


def dense_or_sparse(dense: Any, sparse: Any, rows: int) -> book.Figure:
    """Two strips for the table: all of its rows travel, or those that a batch touched. sparse: ranks return which.

    A column of a strip stands for `rows` / 150 rows, and is filled as far as its rows travel.
    """
    whole, some, ids = max(dense.trace.bytes_sent()), max(in_step(sparse)), sparse.results[0]
    each = torch.bincount(ids * COLUMNS // rows, minlength=COLUMNS) * COLUMNS / rows
    title = "Which rows travel in one step"
    said = (
        f"The all-reduce takes every row of the gradient, and a rank sends {bytes_text(whole)}. The batch of rank 0 "
        f"touches {len(ids):,} of {rows:,} rows. If only touched rows travel, a rank sends {bytes_text(some)} at most."
    )
    svg = Svg(WIDTH, title, said)
    top, left, wide, high = heading(svg, "measured", said) + 10, 8.0, 600.0, 46.0
    for k, (name, shares, nbytes) in enumerate(
        (("all-reduce of the whole gradient", [1.0] * COLUMNS, whole), ("pull and push", each.tolist(), some))
    ):
        y, look = top + 18 + k * (high + 36), SERIES[k]
        svg.text(left, y - 6, name, 12, bold=True)
        for c, share in enumerate(shares):
            tall = high * min(1.0, share)
            if tall:
                svg.rect(left + wide * c / COLUMNS, y + high - tall, wide / COLUMNS, tall, look.colour, stroke_width=0)
        svg.rect(left, y, wide, high, stroke_width=1)
        svg.text(left + wide + 10, y + high / 2 + 5, bytes_text(nbytes), 13, bold=True)
    y = top + 18 + 2 * high + 36 + 15
    svg.text(left, y, "row 0", 10.5)
    svg.text(left + wide, y, f"row {rows - 1:,}", 10.5, "end")
    svg.text(left + wide / 2, y, "height: the part of these rows that travels", 10.5, "middle")
    table: list[Row] = [
        {"way": "all-reduce of the whole gradient", "rows of rank 0": rows, "the busiest rank sends (bytes)": whole},
        {"way": "pull and push", "rows of rank 0": len(ids), "the busiest rank sends (bytes)": some},
    ]
    return book.Figure(title, "measured", said, table, svg=svg.render(y + 8))


def same_table(mine: Any, labkits: Any, table: Tensor) -> str:
    """Whether two runs ended with the same shards of `table`, dealt out by modulo, and how many rows have changed."""
    n = len(mine.results)
    close = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(mine.results, labkits.results, strict=True))
    moved = sum(int((a != table[r::n]).any(1).sum()) for r, a in enumerate(mine.results))
    return (
        f"Your table is {'' if close else 'not '}labkit's table.\n"
        f"In three steps {moved:,} of {len(table):,} rows have changed."
    )


SHOWN = 12  # ids whose gradients are drawn


def lost(kept: Any, careless: Any) -> book.Figure:
    """How much arrives for the most popular ids if equal ones are added, and if they are assigned. A rank returned
    its different ids, and the sums of gradients that are ones."""
    (ids, right), (_, wrong) = kept.results[0], careless.results[0]
    right, wrong = right[:, 0], wrong[:, 0]
    came, left = int(right.sum()), int(wrong.sum())
    most = sorted(range(len(ids)), key=lambda k: -right[k])[:SHOWN]
    top = most[0]
    named = {f"id {int(ids[k])}": k for k in most}
    return book.bars(
        {"your sum": {name: float(right[k]) for name, k in named.items()},
         "assigned": {name: float(wrong[k]) for name, k in named.items()}},
        unit="", title="What arrives for the most popular ids",
        sentence=f"The batch of rank 0 has {came:,} gradients. With your sum all of them arrive. The careless sum "
        f"keeps {left:,}, one for each different id, and loses {1 - left / came:.0%}. Id {int(ids[top])} appears "
        f"{int(right[top]):,} times, so with plain SGD its row should move {int(right[top]):,} times as far as it "
        "does.",
    )  # fmt: skip


def rare_row(dense: Iterable[float], lazy: Iterable[float]) -> book.Figure:
    """One weight by step, under dense and lazy Adam; every tenth step touches it, the first one too."""
    values = {"dense Adam": [*dense], "lazy Adam": [*lazy]}
    steps = len(values["dense Adam"])
    touched = range(1, steps + 1, 10)
    by_dense, by_lazy = (
        sum(line[s - 2] - line[s - 1] for s in range(2, steps + 1) if s not in touched) for line in values.values()
    )
    return book.lines(
        values | {"lazy Adam": _stairs(values["lazy Adam"])}, y="the weight",
        title="A row that only some steps touch",
        sentence=f"Steps {', '.join(map(str, touched))} touch the row. The other {steps - len(touched)} steps move the "
        f"weight down by {by_dense:.3f} with dense Adam, and "
        + (f"by {by_lazy:.3f} with lazy Adam." if by_lazy else "lazy Adam leaves it where it is."),
    )  # fmt: skip


def _stairs(line: Sequence[float]) -> list[tuple[float, float]]:
    """The corners of a line that rests between its steps, by step from 1."""
    corners = [(1.0, line[0])]
    for step, (old, new) in enumerate(zip(line, line[1:], strict=False), 2):
        if new != old:
            corners += [(float(step), old), (float(step), new)]
    return [*corners, (float(len(line)), line[-1])]


TIER = 4000  # rows of a rank before which the fast tier stands
SIZES = (20, 100, 400, 1000, 2000)  # of the fast tier


def hit_rates(cached: Callable[..., float]) -> Callable[..., book.Figure]:
    """A view of `cached`: its hit rate by the size of the fast tier, and where the run stands.

    The lines come of the same function for the same ids, those of rank 0, run here once for each size and policy.
    """

    @cache
    def line(policy: str, skew: float) -> dict[float, float]:
        return {float(size): cached(SimpleNamespace(rank=0), size, policy, skew) for size in SIZES}

    def drawn(run: Any, capacity: int, policy: str, skew: float) -> book.Figure:
        lines = {name.upper(): line(name, skew) for name in ("lru", "lfu")}
        here, other = run.results[0], "lfu" if policy == "lru" else "lru"
        instead = lines[other.upper()][float(capacity)]
        return book.lines(
            lines | {f"this run, {policy.upper()}": {float(capacity): here}}, x="rows in the fast tier",
            y="hit rate", log="x", within=(0.0, 1.0), title="Look-ups that the fast tier answers",
            sentence=f"The fast tier has room for {capacity / TIER:.1%} of the rows. Under {policy.upper()} it "
            f"answers {here:.0%} of the look-ups, and under {other.upper()} {instead:.0%}. The lines count the hits "
            f"for other sizes, with the ids of rank 0. {_half(lines)}",
        )  # fmt: skip

    return drawn


def _half(lines: Mapping[str, Mapping[float, float]]) -> str:
    """How large the fast tier must be under each policy for half of the look-ups, among the sizes that were counted."""
    need = {name: next((f"{s:,}" for s in SIZES if line[float(s)] >= 0.5), "") for name, line in lines.items()}
    if not any(need.values()):
        return f"Under neither do {max(SIZES):,} rows answer half of the look-ups."
    lfu, lru = (need[name] or f"more than {max(SIZES):,}" for name in ("LFU", "LRU"))
    return f"Of these sizes, LFU needs {lfu} rows for half of the look-ups, and LRU {lru}."


def curve(run: Any) -> dict[int, float]:
    """Accuracy by round, as a client saw it that lived to the end."""
    return dict(enumerate(next(seen for seen in run.results[1:] if seen is not None)))


def rounds(values: Mapping[str, Mapping[int, float]]) -> book.Figure:
    """Accuracy on digits that no client has, by round."""
    last = max(next(iter(values.values())))
    told = ", and ".join(f"{line[last]:.0%} of the test digits ({name})" for name, line in values.items())
    return book.lines({name: {float(r): a for r, a in line.items()} for name, line in values.items()}, x="rounds done",
                      y="accuracy", within=(0.0, 1.0), title="Federated rounds",
                      sentence=f"After {last} rounds the model recognizes {told}.")  # fmt: skip


MODEL, TABLE, ROW, PHONE = 70e9, 10e12, 256, 4.2e6  # weights; bytes of a table and of a row; weights of a MobileNet
LINKS = {"a language model": 50e9, "a recommender": 50e9, "phones, federated": 1.25e6}  # bytes a second
RANKS = 128


def archetypes() -> book.Table:
    """Three jobs: what is held, what a step touches, what travels, and for how long."""
    table: list[dict[str, object]] = []
    touched = 1e-5 * TABLE  # bytes of the rows of all batches of a step
    ids = touched / ROW
    sent = {
        "a language model": max(cost.ring_all_reduce_bytes_by_rank(int(MODEL), 2, RANKS)),
        "a recommender": int((2 * touched + ids * cost.ID_BYTES) / RANKS * (RANKS - 1) / RANKS),
        "phones, federated": cost.fed_avg_round_bytes(int(4 * PHONE), 1, 1)[1],
    }
    held = {"a language model": 16 * MODEL, "a recommender": TABLE * (1 + 1 / 64), "phones, federated": 4 * PHONE}
    share = {"a language model": "all weights", "a recommender": "one row in 100,000",
             "phones, federated": "all weights, some clients"}  # fmt: skip
    answer = {
        "a language model": "cut the state and the layers, sum dense gradients",
        "a recommender": "cut the tables, pull and push touched rows, copy the dense part",
        "phones, federated": "keep the data, average weights once a round",
    }
    for job, nbytes in sent.items():
        table.append({
            "job": job, "to be held": format_bytes(held[job], 3), "a step touches": share[job],
            "sent by a rank or client": format_bytes(nbytes, 3), "on a link of": f"{format_bytes(LINKS[job], 3)}/s",
            "takes": format_seconds(nbytes / LINKS[job], 3), "so": answer[job],
        })  # fmt: skip
    return book.Table(table, caption="Three jobs (simulated)")
