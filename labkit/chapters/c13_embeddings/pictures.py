"""What chapter 13 shows of its runs: bytes beside the formula, hot rows, tiers, moves, and training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.units import bytes_text
from labkit.chapters.c13_embeddings.given import DIM, HELD, Told
from labkit.cost.units import format_bytes, format_seconds
from labkit.data import Clicks, auc

BANDWIDTH, LATENCY = 100e6, 10e-6  # of the emulated links
ITEM = 4  # bytes of a number


def step_took(run: Any) -> str:
    """How many rows the batches ask for, who is asked most, and how long pull and push took on the virtual clock."""
    told: list[Told] = run.results
    begin, end = run.trace.during_step(1)
    served = [one.served for one in told]
    n, busy = len(told), served.index(max(served))
    pace = (
        "All ranks are asked for nearly equally many." if max(served) <= 1.05 * sum(served) / n else
        f"Rank {busy} is asked for {max(served) * n / sum(served):.2f} times as many as the mean."
    )  # fmt: skip
    each = f", and each of them goes to all {n} ranks" if all(0 < w < DIM for w in told[0].widths) else ""
    return (
        f"The {n} batches have {sum(one.draws for one in told):,} ids. A rank asks only once for an id that comes "
        f"several times, so {sum(len(one.asked) for one in told):,} requests for a row remain{each}. {pace} On links "
        "of "
        f"{format_bytes(BANDWIDTH, 3)}/s pull and push take {format_seconds(end - begin, 3)} (emulated)."
    )


def formula_of(told: Sequence[Told]) -> list[int]:
    """Bytes that each rank sends in pull and push, by `labkit.cost`."""
    return cost.embedding_bytes_by_rank([[one.counts for one in told]], [told[0].widths])


def in_step(run: Any, step: int = 1) -> list[int]:
    """Bytes that each rank sent in a step."""
    sent = [0] * run.trace.world_size
    for m in run.trace.sends:
        if m.step == step:
            sent[m.src] += m.nbytes
    return sent


def sent(run: Any) -> book.Figure:
    """What each rank sent in pull and push, beside the formula."""
    told: list[Told] = run.results
    measured, formula = in_step(run), formula_of(told)
    ranks = [f"rank {r}" for r in range(len(told))]
    agree = "as the formulas of sections 2 and 3 say" if measured == formula else "which is not what the formulas say"
    most = measured.index(max(measured))
    return book.bars(
        {"measured": dict(zip(ranks, measured, strict=True)), "formula": dict(zip(ranks, formula, strict=True))},
        title="What a rank sends in one step", ticks=True, badge="measured",
        sentence=f"Most is sent by rank {most}, {bytes_text(measured[most])}, {agree}.",
    )  # fmt: skip


def dense_or_sparse(dense: Any, sparse: Any) -> book.Figure:
    """Bytes that a rank sends for one step's gradients: of the whole table, or of touched rows."""
    whole, some = in_step(dense), in_step(sparse)
    return book.bars(
        {"most that a rank sends": {"all-reduce of the table": max(whole), "touched rows, pull and push": max(some)}},
        title="One step of one table", sentence=f"The all-reduce sends {bytes_text(max(whole))}, and pull and push "
        f"together {bytes_text(max(some))}: {max(whole) / max(some):.1f} times less.",
    )  # fmt: skip


def state(dim: int = 64, rows: int = 39_062_500_000) -> book.Figure:
    """Bytes of a table by the optimizer: weights and state."""
    weights = rows * dim * ITEM
    names = {"SGD": "sgd", "row-wise Adagrad": "rowwise_adagrad", "Adagrad": "adagrad", "Adam": "adam"}
    table: dict[str, dict[str, float]] = {"weights": {}, "with the optimizer's state": {}}
    for label, name in names.items():
        column, row = cost.OPTIMIZER_STATE[name]
        table["weights"][label] = weights
        table["with the optimizer's state"][label] = weights + rows * (dim * column + row) * ITEM
    both = table["with the optimizer's state"]
    return book.bars(
        table, title="The table and the optimizer's state", badge="simulated",
        sentence=f"To {bytes_text(weights)} of weights Adam adds {bytes_text(both['Adam'] - weights)} of state. "
        f"Adagrad adds {bytes_text(both['Adagrad'] - weights)}. Row-wise Adagrad adds "
        f"{bytes_text(both['row-wise Adagrad'] - weights)}, if a row has {dim} numbers.",
    )  # fmt: skip


def same_table(mine: Any, labkits: Any, table: Tensor) -> str:
    """Whether two runs ended with the same shards of `table`, dealt out by modulo, and how many rows have moved."""
    n = len(mine.results)
    close = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(mine.results, labkits.results, strict=True))
    moved = sum(int((a != table[r::n]).any(1).sum()) for r, a in enumerate(mine.results))
    return (
        f"Your table is {'' if close else 'not '}labkit's table.\n"
        f"In three steps {moved:,} of {len(table):,} rows have moved."
    )


def rare_row(dense: Iterable[float], lazy: Iterable[float]) -> book.Figure:
    """One weight by step, under dense and lazy Adam; every tenth step touches it, the first one too."""
    values = {"dense Adam": [*dense], "lazy Adam": [*lazy]}
    touched = range(1, len(values["dense Adam"]) + 1, 10)
    rest = {name: sum(line[s - 2] - line[s - 1] for s in range(2, len(line) + 1) if s not in touched)
            for name, line in values.items()}  # fmt: skip
    more = " and ".join(f"{name} by {x:.3f}" for name, x in rest.items())
    return book.lines(
        values, y="the weight", title="A row that only some steps touch",
        sentence=f"Steps {', '.join(map(str, touched))} touch the row. In the others the weight moves down, {more}.",
    )  # fmt: skip


def hot_rows(run: Any) -> book.Figure:
    """Time of a step by the number of rows that all ranks hold, for tables cut by range and by modulo: `HELD`."""
    took: dict[str, dict[str, float]] = {"range": {}, "modulo": {}}
    for by, line in took.items():
        for hot in HELD:
            spans = run.trace.spans(f"{by} {hot}")
            line[f"{hot:,} hot rows"] = max(s.end for s in spans) - min(s.start for s in spans)
    told = []
    for by, line in took.items():
        none, best = line["0 hot rows"], min(line, key=lambda h: line[h])
        saved = 1 - line[best] / none
        told.append(
            f"By {by} a step takes {format_seconds(none, 3)} without hot rows, "
            + (f"and {format_seconds(line[best], 3)} with {best[:-9]}: {saved:.0%} less." if saved >= 0.005 else
               "and hot rows save nothing.")
        )  # fmt: skip
    return book.bars(took, unit="seconds", badge=run.trace.badge,
                     title="A step, by the number of rows that every rank holds", sentence=" ".join(told))  # fmt: skip


def holding(run: Any, width: int) -> str:
    """What hot rows cost each rank in a step, and what they spare the busiest port: bytes, by range."""
    took = {hot: max(s.end for s in spans) - min(s.start for s in spans)
            for hot in HELD for spans in [run.trace.spans(f"range {hot}")]}  # fmt: skip
    n, best = run.trace.world_size, min(took, key=lambda hot: took[hot])
    costs = {hot: max(cost.ring_all_reduce_bytes_by_rank(hot * (width + 1), ITEM, n)) if hot else 0 for hot in HELD}
    port = {hot: max(_through_ports(run, f"range {hot}")) - 2 * costs[hot] for hot in (0, best)}
    told = (
        f"For a hot row every rank sends {2 * (n - 1) * (width + 1) * ITEM / n:.0f} B in each step, asked for or not: "
        "its gradient, and a number that says whether it was touched. "
        f"By range, pull and push move {bytes_text(port[0])} in and out of the busiest rank. "
    )
    if best == 0:
        return told + "Here hot rows cost more than they spare it."
    return (
        told
        + f"With {best:,} hot rows they move {bytes_text(port[best])}, and the all-reduce adds "
        + f"{bytes_text(2 * costs[best])} in and out."
    )


def _through_ports(run: Any, span: str) -> list[int]:
    """Bytes that each rank sent and received in messages of the span of this name."""
    moved = [0] * run.trace.world_size
    when = {s.rank: (s.start, s.end) for s in run.trace.spans(span)}
    for m in run.trace.sends:
        begin, end = when[m.src]
        if begin <= m.start < end:
            moved[m.src] += m.nbytes
            moved[m.dst] += m.nbytes
    return moved


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
            lines | {f"this run, {policy.upper()} (measured)": {float(capacity): here}}, x="rows in the fast tier",
            y="hit rate", log="x", within=(0.0, 1.0), title="Look-ups that the fast tier answers", badge="simulated",
            sentence=f"The fast tier has room for {capacity / TIER:.1%} of the rows, and under {policy.upper()} it "
            f"answers {here:.0%} of the look-ups. Under {other.upper()} it would answer {instead:.0%}. The lines "
            "replay the ids of rank 0 for other sizes.",
        )  # fmt: skip

    return drawn


def moved(run: Any) -> book.Figure:
    """Rows asked for by rank, before and after buckets were given away. Ranks returned the loads and the owners of the
    buckets, both before and after, and bytes sent."""
    n, sent = len(run.results), [nbytes for *_, nbytes in run.results]
    before, after = (_by_rank(loads, owners, n) for loads, owners in run.results[0][:2])
    ranks = [f"rank {r}" for r in range(n)]
    worst = [max(one) * n / sum(one) for one in (before, after)]
    return book.bars(
        {"before": dict(zip(ranks, before, strict=True)), "after": dict(zip(ranks, after, strict=True))},
        unit="", title="Rows asked for, before and after buckets moved",
        sentence=f"The fullest rank has {worst[0]:.2f} times the mean before, and {worst[1]:.2f} times after. "
        f"{bytes_text(sum(sent))} of rows moved, each with its optimizer's state.",
    )  # fmt: skip


def _by_rank(loads: Sequence[int], owners: Sequence[int], size: int) -> list[int]:
    return [sum(n for n, owner in zip(loads, owners, strict=True) if owner == r) for r in range(size)]


def aucs(run_one: Any, run_many: Any, unseen: Clicks) -> book.Figure:
    """AUC by step on clicks that were not trained on, in one process and on many ranks; beside the hidden model's."""
    one, many = run_one.results[0], run_many.results[0]
    best, ranks, last = auc(unseen.p, unseen.y), len(run_many.results), max(one)
    flat = {float(s): best for s in one}
    lines: dict[str, Mapping[Any, float]] = {"one process": one, f"{ranks} ranks": many, "the hidden model": flat}
    return book.lines(
        {name: {float(s): a for s, a in line.items()} for name, line in lines.items()}, y="AUC",
        title="Clicks that were not trained on",
        sentence=f"After {last} batches the AUC is {one[last]:.3f} in one process, and {many[last]:.3f} on {ranks} "
        f"ranks. It began at {one[min(one)]:.3f}. Whoever knew the hidden model would reach {best:.3f}.",
    )  # fmt: skip


def curve(run: Any) -> dict[int, float]:
    """Accuracy by round, as a client saw it that lived to the end."""
    return dict(enumerate(next(seen for seen in run.results[1:] if seen is not None)))


def rounds(values: Mapping[str, Mapping[int, float]]) -> book.Figure:
    """Accuracy on digits that no client has, by round."""
    last = max(next(iter(values.values())))
    told = ", ".join(f"{line[last]:.0%} ({name})" for name, line in values.items())
    return book.lines({name: {float(r): a for r, a in line.items()} for name, line in values.items()}, x="rounds done",
                      y="accuracy", title="Federated rounds", sentence=f"Test digits that the model reads after {last} "
                      f"rounds: {told}.")  # fmt: skip


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
        "a recommender": "cut the tables, pull and push touched rows, copy the rest",
        "phones, federated": "keep the data, average weights once a round",
    }
    for job, nbytes in sent.items():
        table.append({
            "job": job, "to be held": format_bytes(held[job], 3), "a step touches": share[job],
            "sent by a rank or client": format_bytes(nbytes, 3), "on a link of": f"{format_bytes(LINKS[job], 3)}/s",
            "takes": format_seconds(nbytes / LINKS[job], 3), "so": answer[job],
        })  # fmt: skip
    return book.Table(
        table, caption=f"Three jobs (computed). The language model has 70 billion weights on {RANKS} GPUs, with 16 "
        "bytes of training state a weight and 16-bit gradients. The recommender has the table of 10 TB on as many "
        "GPUs, with row-wise Adagrad. Each phone has a MobileNet of 4.2 million weights, and sends 10 Mbit/s."
    )  # fmt: skip
