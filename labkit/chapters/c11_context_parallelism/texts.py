"""What the checks of chapter 11 compare with where texts end and windows reach: packed texts, keys that are borrowed.

Both are computed on one rank that has the whole sequence; mistakes as in `checks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from labkit.chapters.c11_context_parallelism.checks import (
    ByRank,
    Causes,
    attended,
    contiguous,
    distances,
    too_much,
)
from labkit.chapters.c11_context_parallelism.given import token_losses
from labkit.grading.checks.student import Evidence, Student

# Where texts end ------------------------------------------------------------------------------------------------------


def packed_loss(tokens: Tensor, lengths: Sequence[int], n: int) -> tuple[ByRank, Causes]:
    """[positions, loss] of `my_packed_loss` by rank."""
    whole = torch.arange(len(tokens))
    positions = torch.cat([torch.arange(length) for length in lengths])
    inside = positions < torch.cat([torch.full((length,), length - 1) for length in lengths])
    after, count = tokens.roll(-1), len(tokens) - len(lengths)

    def total(where: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
        return token_losses(where, tokens, targets)[counted].sum()

    own = [tokens[r::n].roll(-1) for r in range(n)]  # the next token of the same rank
    same = tokens.clone()
    for r, part in enumerate(own):
        same[r::n] = part
    unshifted = after.clone()
    unshifted[n - 1 :: n] = tokens[::n][: len(tokens[n - 1 :: n])]
    right = total(positions, after, inside) / count
    ranks = [token_losses(positions, tokens, after)[r::n][inside[r::n]] for r in range(n)]
    means = torch.stack([one.mean() for one in ranks]).mean() if all(map(len, ranks)) else right
    causes: Causes = {
        "positions": {
            "It counts its own tokens from 0. A rank has every n-th token, beginning with its own number.": [
                torch.arange(len(whole[r::n])) for r in range(n)
            ],
            "Those are places in the whole sequence. Each text begins at 0 again.": [whole[r::n] for r in range(n)],
        },
        "loss": {
            "The last token of a text is counted, with the first one of the next text as its target.": (
                [total(positions, after, whole < len(whole) - 1) / (len(whole) - 1)] * n
            ),
            "The last token of a text is left out, and still counted: divide by the number of targets.": (
                [right * count / len(whole)] * n
            ),
            "That is the mean of the ranks' means. Ranks have different numbers of targets, and each target counts "
            "alike.": [means] * n,
            "That is its own mean: nothing was summed over the ranks.": [
                one.mean() if len(one) else right for one in ranks
            ],
            "That is its own part of the sum. Sum it over the ranks.": [one.sum() / count for one in ranks],
            "The losses are summed, but not divided by the number of targets.": [right * count] * n,
            "The last rank takes the first rank's tokens as they come. Behind its token stands the first rank's next "
            "one.": [total(positions, unshifted, inside) / count] * n,
            "Its targets are the next tokens of its own stripe. The next token of the text lies on the next rank.": (
                [total(positions, same, inside) / count] * n
            ),
        },
    }
    return [[positions[r::n], right] for r in range(n)], causes


# A window and the way home --------------------------------------------------------------------------------------------


def windowed(
    q: Tensor, k: Tensor, v: Tensor, dy: Tensor, lengths: Sequence[int], window: int
) -> tuple[ByRank, Causes]:  # fmt: skip
    """[y, dq, dk, dv] of `my_window` by rank."""
    far = distances(q.shape[1])
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    apart, begin = owner[:, None] - owner[None, :], torch.searchsorted(owner, owner)  # begin: of the query's rank
    read = (far >= 0) & (far < window)
    right = _both_ways(q, k, v, dy, read, lengths)
    alone = _both_ways(q, k, v, dy, read, lengths, own_queries=True)
    mistakes = {
        "It has read its own keys and no others.": read & (apart == 0),
        "It has read the keys of its left neighbour, but its window reaches further.": read & (apart <= 1),
        "The furthest key is missing that its first query reads: window - 1 keys stand before that query.": (
            read & ((apart == 0) | (far < far.gather(1, begin[:, None]) + window - 1))
        ),
    }
    wrong = {
        "It has the part of its own queries alone. Later ranks have read its keys, too, and their part comes home.": (
            alone
        ),
        "The part of later ranks stands in the place of its own: add the two.": [
            [*whole[:2], *map(_replaced, whole[2:], own[2:])] for whole, own in zip(right, alone, strict=True)
        ],
    }
    wrong |= {why: _both_ways(q, k, v, dy, other, lengths) for why, other in mistakes.items()}
    causes = {
        name: {why: [rank[place] for rank in ranks] for why, ranks in wrong.items()}
        for place, name in enumerate(WINDOWED)
    }
    return right, causes


WINDOWED = ["y", "dq", "dk", "dv"]


def _replaced(whole: Tensor, own: Tensor) -> Tensor:
    return torch.where(torch.isclose(whole, own, atol=1e-12), own, whole - own)


def _both_ways(
    q: Tensor, k: Tensor, v: Tensor, dy: Tensor, read: Tensor, lengths: Sequence[int], own_queries: bool = False
) -> ByRank:
    """[y, dq, dk, dv] by rank. own_queries: in dk and dv only what the queries of the same rank add."""
    leaves = q, k, v = [x.clone().requires_grad_() for x in (q, k, v)]
    y = attended(q, k, v, read)
    whole = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    parts = [contiguous(x, lengths) for x in (y.detach(), *whole)]
    if own_queries:
        for r, (begin, length) in enumerate(zip(accumulate(lengths, initial=0), lengths, strict=False)):
            rows = slice(begin, begin + length)
            share = torch.autograd.grad(y[:, rows], leaves, dy[:, rows], retain_graph=True)
            parts[2][r], parts[3][r] = (x[:, rows].contiguous() for x in share[1:])
    return [list(rank) for rank in zip(*parts, strict=True)]


def expect_borrowed(student: Student, run: Evidence, lengths: Sequence[int], window: int, numbers: int) -> None:
    """Only keys that a rank reads have come to it, and their gradients went home. numbers: of a key and a value."""
    n = len(lengths)
    far = distances(sum(lengths))
    rows = ((far >= 0) & (far < window)).split(list(lengths))
    keys = [[int(part.any(0).sum()) for part in row.split(list(lengths), 1)] for row in rows]  # [reader][owner]
    parts = [[bool(m) * lengths[owner] for owner, m in enumerate(row)] for row in keys]

    def sent(table: Sequence[Sequence[int]], home: bool = True) -> list[int]:
        out = [sum(table[o][r] for o in range(r + 1, n)) + home * sum(table[r][:r]) for r in range(n)]
        return [8 * numbers * each for each in out]

    due, whole, ahead = sent(keys), sent(parts), sent(keys, home=False)
    for nbytes, why in (
        (whole, "Whole parts travel. Of an earlier part only the last keys are read."),
        (ahead, "Keys travel to those who read them, but no gradient of them comes home."),
    ):
        text = "With {n} ranks and a window of {window}: {why}"
        student.expect(run.bytes_sent != nbytes or nbytes == due, text, n=n, window=window, why=why)
    text = (
        "With {n} ranks and a window of {window} rank {rank} sent {got:bytes}. The keys and values that later ranks "
        "read, and the gradients of those that it has read itself, are {expected:bytes}. {why}"
    )
    student.expect_by_rank(run.bytes_sent, due, text, n=n, window=window, why=too_much)
