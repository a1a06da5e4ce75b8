"""What chapter 13 says of its runs, in sentences that hold for their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit import book
from labkit.chapters.c13_embeddings import pictures, tables
from labkit.cost import ring_all_reduce_bytes_by_rank
from labkit.cost.units import format_bytes, format_seconds
from labkit.data import auc
from labkit.models import DLRMConfig

GPUS, TABLE, LINK, TOUCHED = 128, 10e12, 50e9, 1e-5  # bytes, bytes a second, and the part of the rows in a step


def less(dense: Any, sparse: Any) -> book.Conclusion:
    """Runs of a step: an all-reduce of the whole gradient, and pull and push. And both ways with 10 TB on 128 GPUs."""
    ring = 2 * TABLE * (GPUS - 1) / GPUS
    own = TOUCHED * TABLE / GPUS
    each = own * (GPUS - 1) / GPUS
    return book.conclude(
        {"ratio > 100": "If only the touched rows travel, a rank sends {ratio:,.0f} times less.",
         "ratio > 1.5": "If only the touched rows travel, a rank sends {ratio:.1f} times less, even with a table as "
         "small as this one.",
         "True": "On a table that is so small for its batches, sending only the touched rows is hardly an advantage "
         "({ratio:.1f} times less)."},
        "If the table gets more rows and the batches touch as many as before, only the all-reduce grows.\n\n"
        "Now take the table of 10 TB from the beginning. Its weights alone would fill {gpus:.0f} GPUs of 80 GB, "
        "so take 128. A ring all-reduce of the whole gradient would send {ring} from *every* rank. Over a link of "
        "50 GB/s this takes {dense_s}.\n\nSuppose that the batches of a step touch one row in 100,000. Together these "
        "rows have only {small}. If each is asked for once, and all ranks own equally many, a rank gives out {own} of "
        "them. It sends {each} in the pull, because one row in 128 stays on its rank. Without latency this takes "
        "{sparse_s}, and the push takes as long.",
        ratio=max(dense.trace.bytes_sent()) / max(pictures.in_step(sparse)), gpus=TABLE / 80e9,
        small=format_bytes(TOUCHED * TABLE), ring=format_bytes(ring), dense_s=format_seconds(ring / LINK, 2),
        own=format_bytes(own, 3), each=format_bytes(each, 3), sparse_s=format_seconds(each / LINK, 2),
    )  # fmt: skip


def asked_once(ids_of: Any, world_size: int) -> book.Conclusion:
    """What a rank sends in an even pull, and how many requests remain if each id is asked for once."""
    asked, unique = tables.asked(ids_of, world_size)
    return book.conclude(
        "A rank sends ids for the rows that it wants, and rows that *others* want. A row is longer than an id, so "
        "a rank that owns more of the popular rows than others sends most in the pull.\n\n"
        "If each of $N$ ranks asks for $d$ distinct rows of $w$ numbers, evenly spread, then a rank sends "
        "$d\\,(N-1)/N \\cdot (8 + 4w)$ bytes. The 8 is for an id, and $4w$ is for its row. (The counts add $8\\,(N-1)$ "
        "bytes.)",
        {"asked > 1.5 * unique": "\n\nAsking for each id once matters, too: it leaves {factor:.1f} times fewer "
         "requests from the batches of this chapter.",
         "True": "\n\nAsking for each id once leaves only {factor:.1f} times fewer requests here, because these "
         "batches have few ids for so many rows."},
        asked=asked, unique=unique, factor=asked / unique,
    )  # fmt: skip


def trained(run: Any, one: Mapping[int, float], unseen: Any) -> book.Conclusion:
    """A run of the recommender on its ranks, beside the AUC of one process by step, and the best that is possible."""
    many, sizes, n = run.results[0], tables.SIZES, run.trace.world_size
    numel = DLRMConfig(rows=sizes).num_parameters - sum(sizes) * 8
    return book.conclude(
        "In {last} batches the AUC on {n} ranks goes from {first:.3f} to {end:.3f}. The hidden model would reach "
        "{best:.3f}.",
        {"apart == 0": "Training in one process gives the same AUC in every digit, so cutting the tables has not "
         "changed the model.",
         "apart < 2e-3": "The AUC of training in one process differs by at most {apart:.1g}, so cutting the tables has "
         "hardly changed the model.",
         "True": "Rounding has grown in {last} steps, and the AUC of one process differs by up to {apart:.1g}."},
        "\n\nThe tables have {share:.0%} of this model's weights. In a step the busiest rank sends {sent}, and {mlp} "
        "of that is for the all-reduce of the perceptrons. If the tables were copied too, the all-reduce of their "
        "gradient would add {copied}. Mudigere et al. (2022) describe the same mixture, cut tables and copied "
        "perceptrons, for tables of terabytes.",
        apart=max(abs(one[s] - many[s]) for s in one), n=n, last=max(one), first=many[0], end=many[max(many)],
        share=sum(sizes) * 8 / (numel + sum(sizes) * 8), best=auc(unseen.p, unseen.y),
        sent=format_bytes(max(pictures.in_step(run, 5)), 3),
        mlp=format_bytes(max(ring_all_reduce_bytes_by_rank(numel, 4, n)), 3),
        copied=format_bytes(max(ring_all_reduce_bytes_by_rank(sum(sizes) * 8, 4, n)), 3),
    )  # fmt: skip
