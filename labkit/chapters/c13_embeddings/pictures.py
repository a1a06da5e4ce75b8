"""What chapter 13 shows of its runs: touched rows, bytes beside the formula, tiers, moves, and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import book, cost
from labkit.book.drawing.units import bytes_text
from labkit.chapters.c13_embeddings.given import HELD, Told
from labkit.cost.units import format_bytes, format_seconds

BANDWIDTH, LATENCY = 100e6, 10e-6  # of the emulated links
ITEM = 4  # bytes of a number


def step_took(run: Any) -> str:
    """How long pull and push took on the virtual clock, and who sets the pace."""
    told: list[Told] = run.results
    begin, end = run.trace.during_step(1)
    served = [one.served for one in told]
    n, busy = len(told), served.index(max(served))
    pace = (
        "all ranks have nearly the same load" if max(served) <= 1.05 * sum(served) / n else
        f"rank {busy} has {max(served) * n / sum(served):.2f} times the mean load"
    )  # fmt: skip
    return (
        f"Pull and push take {format_seconds(end - begin, 3)} on links of {format_bytes(BANDWIDTH, 3)}/s (emulated); "
        f"{pace}."
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
    agree = "exactly as the formula says" if measured == formula else "which is not what the formula says"
    most = measured.index(max(measured))
    return book.bars(
        {"measured": dict(zip(ranks, measured, strict=True)), "formula": dict(zip(ranks, formula, strict=True))},
        title="What a rank sends in one step", ticks=True, badge=run.trace.badge,
        sentence=f"Most is sent by rank {most}, {bytes_text(measured[most])}, {agree}.",
    )  # fmt: skip


def unique(measured: Mapping[float, Mapping[int, int]], rows: int) -> book.Figure:
    """Different rows by draws, for some skews: drawn, and by the formula."""
    lines: dict[str, dict[float, float]] = {}
    for skew, one in measured.items():
        lines[f"skew {skew:g}, drawn"] = {float(b): float(n) for b, n in one.items()}
        lines[f"skew {skew:g}, formula"] = {float(b): cost.zipf_unique(rows, skew, b) for b in one}
    most = max(next(iter(measured.values())))
    told = "; ".join(f"with skew {skew:g} {one[most]:,}" for skew, one in measured.items())
    return book.lines(lines, x="ids in the batch", y="different rows", title="How many rows a batch touches",
                      sentence=f"{most:,} ids touch, of {rows:,} rows: {told}.")  # fmt: skip


def dense_or_sparse(dense: Any, sparse: Any) -> book.Figure:
    """Bytes that a rank sends for one step's gradients: of the whole table, or of touched rows."""
    whole, some = in_step(dense), in_step(sparse)
    return book.bars(
        {"most that a rank sends": {"all-reduce of the table": max(whole), "touched rows, pull and push": max(some)}},
        title="One step of one table", sentence=f"The all-reduce sends {bytes_text(max(whole))}, and pull and push "
        f"together {bytes_text(max(some))}: {max(whole) / max(some):.1f} times less.",
    )  # fmt: skip


def pulled(run: Any, counts: Sequence[Sequence[int]], dim: int, rows: int) -> book.Figure:
    """What the reader's pull sent, beside the formula without the word by which labkit's ranks agree."""
    n = run.trace.world_size
    formula = cost.embedding_bytes_by_rank([counts], [[dim] * n], passes=1)
    formula = [b - (n - 1) * 8 for b in formula]
    measured, ranks = run.trace.bytes_sent(), [f"rank {r}" for r in range(n)]
    agree = "as the formula says" if measured == formula else "where the formula says something else"
    whole = rows * dim * ITEM * (n - 1) // n
    return book.bars(
        {"measured": dict(zip(ranks, measured, strict=True)), "formula": dict(zip(ranks, formula, strict=True))},
        title="What your pull sends", ticks=True,
        sentence=f"Rank {measured.index(max(measured))} sends most, {bytes_text(max(measured))}, {agree}. An "
        f"all-gather of the table would send {bytes_text(whole)} from each rank.",
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
        sentence=f"{bytes_text(weights)} of weights in rows of {dim}: row-wise Adagrad adds "
        f"{bytes_text(both['row-wise Adagrad'] - weights)}, Adagrad {bytes_text(both['Adagrad'] - weights)}, and Adam "
        f"{bytes_text(both['Adam'] - weights)}.",
    )  # fmt: skip


def rare_row(values: Mapping[str, Sequence[float]], touched: Sequence[int]) -> book.Figure:
    """One weight by step, under dense and lazy Adam."""
    last = {name: line[-1] for name, line in values.items()}
    told = " and ".join(f"{name} {x:.3f}" for name, x in last.items())
    rest = {name: sum(line[s - 2] - line[s - 1] for s in range(2, len(line) + 1) if s not in touched)
            for name, line in values.items()}  # fmt: skip
    more = " and ".join(f"{name} by {x:.3f}" for name, x in rest.items())
    return book.lines(
        values, y="the weight", title="A row that only some steps touch",
        sentence=f"Touched in steps {', '.join(map(str, touched))}. At the end: {told}. In steps without a "
        f"gradient the weight has moved down: {more}.",
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


def hit_rates(run: Any) -> book.Figure:
    """The hit rate of each rank's fast tier, beside that of the law."""
    rates, capacity, policy, skew, rows, batch, moved = zip(*run.results, strict=True)
    law = cost.zipf_hit_rate(rows[0], skew[0], capacity[0], policy[0], batch[0])
    ranks = [f"rank {r}" for r in range(len(rates))]
    return book.bars(
        {"measured": dict(zip(ranks, rates, strict=True)), "formula": dict.fromkeys(ranks, law)},
        unit="", ticks=True, title="Look-ups that the fast tier answers",
        sentence=f"A fast tier for {capacity[0]:,} of {rows[0]:,} rows ({capacity[0] / rows[0]:.1%}) answers "
        f"{sum(rates) / len(rates):.0%} of the look-ups; the formula says {law:.0%}. "
        f"{format_bytes(max(moved), 3)} of rows moved between the tiers of a rank.",
    )  # fmt: skip


def moved(run: Any) -> book.Figure:
    """Rows asked for by rank, before and after buckets were given away. Ranks returned both, and bytes sent."""
    (before, after, _), sent = run.results[0], [nbytes for *_, nbytes in run.results]
    n = len(before)
    ranks = [f"rank {r}" for r in range(n)]
    worst = [max(one) * n / sum(one) for one in (before, after)]
    return book.bars(
        {"before": dict(zip(ranks, before, strict=True)), "after": dict(zip(ranks, after, strict=True))},
        unit="", title="Rows asked for, before and after buckets moved",
        sentence=f"The fullest rank has {worst[0]:.2f} times the mean before, and {worst[1]:.2f} times after. "
        f"{bytes_text(sum(sent))} of rows moved, each with its optimizer's state.",
    )  # fmt: skip


def aucs(one: Mapping[int, float], many: Mapping[int, float], best: float, ranks: int) -> book.Figure:
    """AUC on examples that were not trained on, by step."""
    last = max(one)
    flat = {float(s): best for s in one}
    lines: dict[str, Mapping[Any, float]] = {"one process": one, f"{ranks} ranks": many, "the hidden model": flat}
    return book.lines(
        {name: {float(s): a for s, a in line.items()} for name, line in lines.items()}, y="AUC",
        title="Clicks that were not trained on",
        sentence=f"AUC goes from {one[min(one)]:.3f} to {one[last]:.3f} in one process, and to {many[last]:.3f} on "
        f"{ranks} ranks. Whoever knew the hidden model would reach {best:.3f}.",
    )  # fmt: skip


def curve(run: Any) -> dict[int, float]:
    """Accuracy by round, as a client saw it that lived to the end."""
    return next(seen for seen in run.results[1:] if seen is not None)


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
    share = {"a language model": "all weights", "a recommender": "0.001 % of the rows",
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
        table, caption=f"Three jobs (computed). A language model of 70 billion weights on {RANKS} GPUs, with 16 bytes "
        "of training state a weight and 16-bit gradients; the table of 10 TB on as many, with row-wise Adagrad; a "
        "MobileNet of 4.2 million weights on a phone that sends 10 Mbit/s"
    )  # fmt: skip
