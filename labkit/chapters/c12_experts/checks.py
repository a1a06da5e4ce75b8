"""What the checks of chapter 12 give to its first two programs, and how they judge what came back.

Inputs are small whole numbers over powers of two, so that sums are exact in every order. What ranks must return is
computed on one device that has the tokens of all and every expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import cost
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.grading.known import Answers

answers = Answers("12_experts")  # what only instructors can compute

Draw = Callable[..., Tensor]
Inputs = list[dict[str, Tensor]]


def ranks(n: int) -> str:
    return f"With {n} rank{'s' * (n != 1)}"


# A queue that turns ---------------------------------------------------------------------------------------------------

EXPERTS = 6
QUEUE_SLIPS = {
    "ties": "of equal logits you take the expert with the higher number first, or leave it to chance. The lower number "
    "comes first.",
    "rank 0": "your queue begins with rank 0. It begins with rank `first`, and goes on with the next one.",
    "backwards": "your queue begins with rank `first`, but goes on with the rank before it, and not with the next.",
    "ranks": "your queue serves all choices of a rank together. First choices of all ranks come before second ones.",
    "tokens": "your queue serves all choices of a token together. First choices of all ranks come before second ones.",
    "own": "each rank's tokens have a queue of their own. An expert has one queue for the tokens of all ranks.",
    "one more": "each expert takes one choice too many. Places count from 0, so the last one is `slots` - 1.",
    "wanted": "`taken` counts all choices of an expert. It should count those that are not dropped.",
    "scores": "the weights do not add up to 1. Divide the probabilities of what is kept by their sum.",
    "before": "the weights were divided before the drops. Drop first, so that those of what is kept add up to 1.",
    "all": "a dropped choice still has a weight. It is 0, and those of what is kept add up to 1.",
}


def crowd(draw: Draw, tokens: Sequence[int]) -> list[Tensor]:
    """By rank the logits of so many tokens: whole numbers, many of them equal, and low experts have more of them."""
    tilt = torch.tensor([5.0, 3.0, 1.0] + [0.0] * (EXPERTS - 3), dtype=torch.float64)
    return [draw(few, EXPERTS, dtype=torch.float64) + tilt for few in tokens]


def expect_routing(
    student: Student, run: Evidence, logits: Sequence[Tensor], k: int, slots: int, first: int
) -> None:  # fmt: skip
    """Every rank returned its tokens' experts and weights, and how many choices each expert takes."""
    n = len(logits)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, (list, tuple)) and len(result) == 3
        text = f"{ranks(n)}: rank {rank} returned no list of three tensors: experts, weights, taken."
        student.expect(fine, text)
        lost = isinstance(result[1], Tensor) and bool(result[1].isnan().any())
        text = f"{ranks(n)}: on rank {rank} a token that lost all of its choices has weights of 0 / 0. They are all 0."
        student.expect(not lost, text)
    told = list(logits)
    right = answers.routed(told, k, slots, first)
    slips: Slips = {
        f"{ranks(n)}: {why}": answers.routed(told, k, slots, first, mistake) for mistake, why in QUEUE_SLIPS.items()
    }
    student.expect_results(run, right, slips, within=1e-9)


def expect_counts_only(student: Student, run: Evidence, k: int) -> None:
    """No rank sent more than its counts of every choice and expert, in one all-gather."""
    n = len(run.results)
    most, got = cost.routing_bytes(n, EXPERTS, k), max(run.bytes_sent)
    why = "Neither the choices of each token nor the places taken need to travel: the counts say it all."
    text = "{who} rank {rank} sent {got:bytes}; {k} x {experts} counts for each other rank are {most:bytes}. {why}"
    student.expect(got <= most, text, who=ranks(n), rank=run.bytes_sent.index(got), got=got, k=k, experts=EXPERTS,
                   most=most, why=why)  # fmt: skip


# Sixteen bits on the way there ----------------------------------------------------------------------------------------

WIDTH, PER_ROW, PER_BACK, COUNT = 5, 2, 4, cost.COUNT_BYTES  # numbers of a token; bytes of one there, and back


def chosen(draw: Draw, tokens: int, experts: int, k: int, never: int, dtype: torch.dtype) -> Tensor:
    """The k different experts of each token, low numbers more often, and `never` not at all."""
    score = draw(tokens, experts, dtype=dtype)
    score[:, never] = 99
    return score.sort(dim=-1, stable=True).indices[:, :k]


def dispatched(draw: Draw, tokens: Sequence[int], per_rank: int, k: int, thirds: bool = False) -> Inputs:
    """By rank x, experts, weights (0 where a choice is dropped) and A, the matrices of the rank's experts, in float32.

    thirds: numbers that 16 bits cannot hold.
    """
    size = per_rank * len(tokens)
    found = []
    for few in tokens:
        x, weights, luck = draw(few, WIDTH), draw(few, k).abs() / 8, draw(few, k)
        experts = chosen(draw, few, size, k, size - 2, torch.float32)
        matrices = draw(per_rank, WIDTH, WIDTH) / 8
        found.append({"x": x / 3 if thirds else x, "experts": experts, "weights": weights * (luck < 5), "A": matrices})
    return found


def through_all(inputs: Inputs, per_rank: int, bits: int = 16, weighted: bool = True, first: bool = False) -> list[Any]:
    """By rank [y, seen], on one device. bits: of a row on its way. first: the first expert of a rank computes all."""
    every = torch.cat([mine["A"] for mine in inputs])
    seen = torch.zeros(len(every), dtype=torch.int64)
    results = []
    for mine in inputs:
        x = mine["x"].bfloat16().float() if bits == 16 else mine["x"]
        which = mine["experts"] // per_rank * per_rank if first else mine["experts"]
        kept = mine["weights"] != 0
        share = mine["weights"] if weighted else kept.to(x.dtype)
        results.append((share[..., None] * torch.einsum("nd,nkdf->nkf", x, every[which])).sum(1))
        seen += mine["experts"][kept].bincount(minlength=len(every))
    return [[y, own] for y, own in zip(results, seen.view(-1, per_rank), strict=True)]


def expect_layer(student: Student, run: Evidence, inputs: Inputs, per_rank: int) -> None:
    """Every rank returned the results of its tokens, and how many rows each of its experts has computed."""
    n = len(inputs)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, (list, tuple)) and len(result) == 2
        student.expect(fine, f"{ranks(n)}: rank {rank} returned no list of two tensors: y, seen.")
    right = through_all(inputs, per_rank)
    every = torch.stack([torch.cat([m["experts"] for m in inputs]).flatten().bincount(minlength=per_rank * n)])
    slips: Slips = {
        f"{ranks(n)}: {why}": wrong
        for why, wrong in {
            "the results are added up without their weights.": through_all(inputs, per_rank, weighted=False),
            "the first expert of a rank has computed all of its rows. The counts say for whom a row came.": through_all(
                inputs, per_rank, first=True
            ),
            "experts have computed rows whose weight is 0. A dropped choice stays at home.": [
                [y, own] for (y, _), own in zip(right, every.view(n, per_rank), strict=True)
            ],
            "the rows were not rounded to bfloat16 on the way to their experts.": through_all(
                inputs, per_rank, bits=32
            ),
        }.items()
    }
    student.expect_results(run, right, slips)


def rows_between(inputs: Inputs, per_rank: int, dropped: bool = False) -> list[list[int]]:
    """How many rows each rank (row) sends to each rank. dropped: also those of dropped choices."""
    found = []
    for mine in inputs:
        experts = mine["experts"][(mine["weights"] != 0) | dropped]
        found.append((experts // per_rank).bincount(minlength=len(inputs)).tolist())
    return found


def layer_bytes(
    inputs: Inputs, per_rank: int, there: int = PER_ROW * WIDTH, back: int = PER_BACK * WIDTH, dropped: bool = False,
    counts: bool = True,
) -> list[int]:  # fmt: skip
    """Bytes that each rank sends: counts for each expert of the others, rows, and results for the others' rows."""
    n, rows = len(inputs), rows_between(inputs, per_rank, dropped)
    ahead = (n - 1) * (per_rank if counts else 1) * COUNT
    return [
        ahead + sum(rows[r][s] * there + rows[s][r] * back for s in range(n) if s != r) for r in range(n)
    ]  # fmt: skip


def expect_layer_bytes(student: Student, run: Evidence, inputs: Inputs, per_rank: int) -> None:
    """Every rank sent what it must, to the byte."""
    row, result = PER_ROW * WIDTH, PER_BACK * WIDTH
    causes = {
        "The rows travel in 32 bits, there and back. They need 16 on the way there.": {"there": result},
        "The results travel in 16 bits, too. They come back in 32.": {"back": row},
        "The choices that are dropped travel, too: their weight is 0.": {"dropped": True},
        "The number of its expert travels with each row. The counts that go ahead say it already.": {
            "there": row + COUNT
        },
        "The number of its expert travels with each row. Counts of each expert, and not only of each rank, say it.": {
            "there": row + COUNT, "counts": False,
        },
    }  # fmt: skip
    for cause, how in causes.items():
        wrong = layer_bytes(inputs, per_rank, **how)  # type: ignore[arg-type]
        right = layer_bytes(inputs, per_rank)
        text = "{who} the ranks sent {got:bytes} together, in place of {want:bytes}. {cause}"
        student.expect(run.bytes_sent != wrong or wrong == right, text, who=ranks(len(inputs)), got=sum(wrong),
                       want=sum(right), cause=cause)  # fmt: skip
    text = "{who} rank {rank} sent {got:bytes}; its counts, rows and results are {expected:bytes}. {why}"
    why = "Is everything sent by all_to_all, pairwise, and only where it must go?"
    student.expect_by_rank(run.bytes_sent, layer_bytes(inputs, per_rank), text, who=ranks(len(inputs)), why=why)
