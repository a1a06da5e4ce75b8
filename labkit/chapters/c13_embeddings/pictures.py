"""What chapter 13 shows of its runs: bytes beside the formula, equal ids, tiers, and three jobs."""

from __future__ import annotations

import math
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
    alone = 2 * ITEM * DIM * sum(len(one.asked) for one in run.results[1:])  # if rank 0 owned every row
    return book.Figure(title, "measured", said, rows, svg=_stacked(title, said, pull, push, jam, alone))


def _stacked(title: str, said: str, pull: Sequence[int], push: Sequence[int], jam: bool, alone: int) -> str:
    """alone: bytes through the busiest link of the worst placement, so that all placements are drawn to one scale."""
    svg = Svg(WIDTH, title, said)
    looks = {"sent in the pull": SERIES[0], "received in the push": SERIES[1]}
    items = [(name, look.colour, look.hatch, "") for name, look in looks.items()]
    top = legend(svg, heading(svg, "measured", said), items) + 8
    busiest = max(1, *(a + b for a, b in zip(pull, push, strict=True)))
    most = max(alone, busiest)
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
        if jam and sum(parts) == busiest:
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


def lost(kept: Any, careless: Any, sum_equal: Callable[..., Any]) -> book.Figure:
    """How much arrives for the most popular ids if equal ones are added, and if they are assigned. A rank returned
    its different ids, and the sums of gradients that are ones. sum_equal: what made the first of the runs."""
    (ids, right), (_, wrong) = kept.results[0], careless.results[0]
    counts, left = right[:, 0].long().tolist(), wrong[:, 0].long().tolist()
    came, whose = sum(counts), book.whose(sum_equal)
    most = sorted(range(len(ids)), key=lambda k: -counts[k])[:SHOWN]
    top = most[0]
    title, said = "What an assignment loses", (
        f"The batch of rank 0 has {came:,} gradients. With {whose} sum all of them arrive. The careless sum keeps "
        f"{sum(left):,}, one for each different id, and loses {1 - sum(left) / came:.0%}. Id {int(ids[top])} appears "
        f"{counts[top]:,} times, so with plain SGD its row should move {counts[top]:,} times as far as it does."
    )  # fmt: skip
    svg = Svg(WIDTH, title, said)
    y = legend(
        svg,
        heading(svg, "measured", said),
        [("kept", SERIES[0].colour, SERIES[0].hatch, ""), ("lost", "none", "", "5 3")],
    )
    scale = 520.0 / counts[top]
    rows: list[Row] = []
    for k in most:
        y += 19
        kept_wide, name = max(2.5, scale * left[k]), f"id {int(ids[k])}"
        svg.text(62, y + 11, name, 11, "end", bold=k == top)
        svg.rect(70, y, scale * counts[k], 14, dash="5 3", stroke_width=0.9)
        svg.rect(70, y, kept_wide, 14, SERIES[0].colour, SERIES[0].hatch, ON_COLOUR, stroke_width=0.6)
        svg.text(78 + scale * counts[k], y + 11, f"{left[k]:,} of {counts[k]:,}", 11)
        rows.append({"": name, "gradients in the batch": counts[k], "kept by the careless sum": left[k]})
    return book.Figure(title, "measured", said, rows, svg=svg.render(y + 26))


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
    if need["LFU"] == need["LRU"]:
        return f"Of these sizes, both need {need['LFU']} rows for half of the look-ups."
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


def archetypes() -> book.Figure:
    """Three jobs, on one scale of tenfolds: what each holds, and what a rank or client sends in a step or round."""
    ids = 1e-5 * TABLE / ROW
    sent = {
        "a language model": max(cost.ring_all_reduce_bytes_by_rank(int(MODEL), 2, RANKS)),
        "a recommender": int((2 * 1e-5 * TABLE + ids * cost.ID_BYTES) / RANKS * (RANKS - 1) / RANKS),
        "phones, federated": cost.fed_avg_round_bytes(int(4 * PHONE), 1, 1)[1],
    }
    held = {"a language model": 16 * MODEL, "a recommender": TABLE * (1 + 1 / 64), "phones, federated": 4 * PHONE}
    touched = {"a language model": "all weights", "a recommender": "one row in 100,000",
               "phones, federated": "all weights, some clients"}  # fmt: skip
    answer = {
        "a language model": "cut the state and the layers, all-reduce dense gradients",
        "a recommender": "cut the tables, pull and push touched rows, copy the dense part",
        "phones, federated": "keep the data at home, average weights once a round",
    }
    told = {
        job: f"sends {format_bytes(n, 3)} in {format_seconds(n / LINKS[job], 3)} over {format_bytes(LINKS[job], 3)}/s"
        for job, n in sent.items()
    }
    title = "Three jobs: what is held, and what travels"
    said = " ".join(
        f"{job[0].upper()}{job[1:]}: {format_bytes(held[job], 3)} are held, a step touches {touched[job]}, and a "
        f"{'client' if 'phones' in job else 'rank'} {told[job]}."
        for job in sent
    )  # fmt: skip
    rows: list[Row] = [
        {"job": job, "to be held": format_bytes(held[job], 3), "a step touches": touched[job],
         "sent by a rank or client": format_bytes(n, 3), "on a link of": f"{format_bytes(LINKS[job], 3)}/s",
         "takes": format_seconds(n / LINKS[job], 3), "so": answer[job]}
        for job, n in sent.items()
    ]  # fmt: skip
    return book.Figure(title, "simulated", said, rows, svg=_jobs(title, said, held, sent, touched, told, answer))


def _jobs(
    title: str, said: str, held: Mapping[str, float], sent: Mapping[str, float], touched: Mapping[str, str],
    told: Mapping[str, str], answer: Mapping[str, str],
) -> str:  # fmt: skip
    """A square dot for what is held and a round one for what is sent, with an arrow from one to the other."""
    svg = Svg(WIDTH, title, said)
    y = heading(svg, "simulated", said) + 26
    left, wide, low, high = 30.0, WIDTH - 70.0, 6.0, 14.0  # from 1 MB to 100 TB

    def at(nbytes: float) -> float:
        return left + wide * (math.log10(nbytes) - low) / (high - low)

    bottom = y + 76 * len(sent) - 4
    for power, name in ((6, "1 MB"), (9, "1 GB"), (12, "1 TB")):
        svg.line(at(10.0**power), y - 14, at(10.0**power), bottom, faint=True)
        svg.text(at(10.0**power), y - 18, name, 10.5, "middle")
    for k, (job, nbytes) in enumerate(sent.items()):
        row, look = y + 76 * k + 34, SERIES[k]
        svg.text(8, row - 24, job, 12.5, bold=True)
        svg.text(8 + 8.2 * len(job), row - 24, f"a step touches {touched[job]}", 11)
        x, end = at(held[job]), at(nbytes)
        if x - end > 12:
            svg.line(x - 9, row, end + 12, row, width=2)
            svg.arrow_head(end + 10, row, -1, 0, 8)
        svg.rect(x - 9, row - 9, 18, 18, look.colour, look.hatch, ON_COLOUR)
        svg.rect(end - 7, row - 7, 14, 14, look.colour, "", ON_COLOUR, radius=7)
        svg.text(min(x + 14, WIDTH - 100), row + 4, f"holds {format_bytes(held[job], 3)}", 11)
        svg.text(8, row + 24, f"{told[job]}: {answer[job]}", 11)
    svg.text(
        8, bottom + 14, "square: bytes that the job holds   circle: bytes that a rank or client sends in a step", 11
    )
    return svg.render(bottom + 24)
