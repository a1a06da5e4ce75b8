"""What the checks of chapter 11 compare with: attention over a whole text on one rank, and what known mistakes read.

Which pairs of query and key a program has read is a square of booleans here, and so is each mistake. Results are by
rank, as in chapter 9: what is right, and for some names wrong values by their cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, Slips, Student

ByRank = list[list[Any]]
Causes = dict[str, dict[str, list[Any]]]


def attended(q: Tensor, k: Tensor, v: Tensor, read: Tensor) -> Tensor:
    """(h, s, d) each, and which keys each query reads, (s, s): their weighted mean, (h, s, d)."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~read, -math.inf).softmax(-1) @ v


def distances(length: int) -> Tensor:
    """(s, s): how far a key lies before a query; negative for a later one."""
    place = torch.arange(length)
    return place[:, None] - place


def wider(x: Tensor, heads: int) -> Tensor:
    """(g, s, d) -> (h, s, d): the head of keys that each head of queries reads."""
    return x.repeat_interleave(heads // len(x), 0)


def contiguous(x: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """(h, s, d) by rank, cut at the positions."""
    return [part.contiguous() for part in x.split(list(lengths), 1)]


# Half of every block --------------------------------------------------------------------------------------------------


def early_and_late(x: Tensor, n: int) -> list[Tensor]:
    """(h, s, d) by rank, in the zigzag layout."""
    chunks = x.chunk(2 * n, 1)
    return [torch.cat((chunks[r], chunks[2 * n - 1 - r]), 1) for r in range(n)]


def zigzag_attention(q: Tensor, k: Tensor, v: Tensor, n: int) -> tuple[ByRank, Causes]:
    """[out] of `my_zigzag` by rank."""
    far = distances(q.shape[1])
    chunk = torch.arange(len(far)) * 2 * n // len(far)
    owner = torch.minimum(chunk, 2 * n - 1 - chunk)
    mine, theirs = owner[:, None], owner[None, :]
    late_query, late_key = (chunk >= n)[:, None], (chunk >= n)[None, :]
    causal, own, before, behind = far >= 0, mine == theirs, theirs < mine, theirs > mine
    mistakes = {
        "It has read its own block and no other. What `exchange` returns is the next block.": own & causal,
        "It has read all keys of earlier ranks. The late chunk of an earlier rank comes later than all its queries.": (
            causal | before
        ),
        "Its early queries have read blocks of later ranks. To them those lie in the future.": causal | behind,
        "The two cases are exchanged: which ranks have an early chunk that all your queries may read?": (
            own & causal | before & late_query | behind & ~late_key
        ),
        "Of earlier ranks it has read the late chunk in place of the early one.": (
            own & causal | before & late_key | behind & causal
        ),
        "The last block is missing. There are n blocks to read and n - 1 messages.": (
            causal & ((theirs != (mine + 1) % n) | own)
        ),
        "It has read its own block without a mask.": causal | own,
    }
    k, v = wider(k, len(q)), wider(v, len(q))
    wrong = {why: early_and_late(attended(q, k, v, read), n) for why, read in mistakes.items()}
    return [[out, []] for out in early_and_late(attended(q, k, v, causal), n)], {"out": wrong}


def expect_work(student: Student, run: Evidence, n: int, c: int) -> None:
    """No rank has scored more than its own block and half of every other one. c: tokens of a chunk."""
    whole, half = 4 * c * c, 2 * c * c
    least, most = n * half + c, whole + (n - 1) * half
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and len(result) == 2 and isinstance(result[1], list)
        student.expect(fine, f"With {n} ranks rank {rank} returned no [out, scored]: leave the last line as it is.")
        got = sum(result[1])
        text = (
            "With {n} rank{s}: rank {rank} has scored {got} pairs with `attend`, but its queries must read {least}. "
            "Compute all scores with the given `attend`, and leave the last line."
        )
        student.expect(got >= least, text, n=n, s="s" * (n > 1), rank=rank, got=got, least=least)
        why = "In which round does it score more than half of a block?"
        if got == n * whole:
            why = "It scores every block whole. Which chunk of a block can none of its queries read?"
        text = (
            "With {n} ranks: rank {rank} has scored {got} pairs of query and key. Its own block and half of each other "
            "block are {most}. {why}"
        )
        student.expect(got <= most, text, n=n, rank=rank, got=got, most=most, why=why)


def expect_ring(student: Student, run: Evidence, block: int) -> None:
    """Every rank has passed n - 1 blocks on to one neighbour, by plain messages. block: bytes of keys and values."""
    n = len(run.results)
    text = "With {n} ranks {name} was called. It gives each rank the keys of the whole text at once: use the ring."
    student.expect(not run.library, text, n=n, name=" and ".join(run.library))
    for rank, row in enumerate(run.bytes_between):
        to = [r for r, nbytes in enumerate(row) if nbytes]
        text = "With {n} ranks rank {rank} sent to the ranks {to}. In a ring each sends to one neighbour."
        student.expect(len(to) <= 1, text, n=n, rank=rank, to=to)
    text = "With {n} ranks rank {rank} sent {got:bytes}; n - 1 blocks of keys and values are {expected:bytes}. {why}"
    student.expect_by_rank(run.bytes_sent, [(n - 1) * block] * n, text, n=n, why=too_much)


def too_much(got: int, want: int) -> str:
    """The question behind a wrong number of bytes."""
    return "What travels that nobody reads?" if got > want else "Which block does not come?"


# Heads for positions --------------------------------------------------------------------------------------------------


def heads_read(n: int, heads: int, kv_heads: int) -> list[list[int]]:
    """By rank: the heads of keys that its heads of queries read."""
    share = heads // kv_heads
    return [sorted({head // share for head in range(heads) if head * n // heads == r}) for r in range(n)]


def ulysses(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> tuple[list[Tensor], Slips]:
    """What `my_ulysses` returns, by rank."""
    n, heads, groups = len(lengths), len(q), len(k)
    causal, read = distances(q.shape[1]) >= 0, heads_read(n, heads, groups)
    each, share = heads // n, heads // groups
    first = [read[head // each][0] for head in range(heads)]
    mistakes = {
        "Heads of queries read keys in turn. Neighbours share one: head i reads key i // (heads // kv_heads).": [
            head % groups for head in range(heads)
        ],
        "On a rank whose first head stands inside a group, the keys are counted from that head on. Head i of all reads "
        "key i // (heads // kv_heads).": [
            min(first[head] + head % each // share, groups - 1) for head in range(heads)
        ],
        "Every head of queries on a rank reads the first of its keys.": first,
    }  # fmt: skip
    slips: Slips = {why: contiguous(attended(q, k[keys], v[keys], causal), lengths) for why, keys in mistakes.items()}
    return contiguous(attended(q, wider(k, heads), wider(v, heads), causal), lengths), slips


def swapped_bytes(lengths: Sequence[int], heads: int, keys: Sequence[int], width: int) -> list[int]:
    """Bytes that each rank sends in float64, if rank r gets `keys[r]` heads of keys, and as many of values."""
    n, each = len(lengths), heads // len(lengths)
    return [8 * width * (lengths[r] * sum(each + 2 * keys[o] for o in range(n) if o != r)
                         + each * sum(lengths[o] for o in range(n) if o != r)) for r in range(n)]  # fmt: skip


def expect_heads(
    student: Student, run: Evidence, lengths: Sequence[int], heads: int, kv_heads: int, width: int
) -> None:
    """Every rank has sent its queries, the keys and values that are read, and results, each once."""
    n = len(lengths)
    read = [len(keys) for keys in heads_read(n, heads, kv_heads)]
    due = swapped_bytes(lengths, heads, read, width)
    others = {
        "A rank gets one head of keys for each head of queries. It needs each only once: copy it after it has come.": (
            [heads // n] * n
        ),
        "Every rank gets all heads of keys. It needs those that its own heads of queries read.": [kv_heads] * n,
    }
    for why, keys in others.items():
        same = run.bytes_sent == swapped_bytes(lengths, heads, keys, width) != due
        student.expect(not same, "With {n} ranks: {why}", n=n, why=why)
    text = (
        "With {n} ranks rank {rank} sent {got:bytes}; its part of queries, keys and values for the others, and their "
        "part of the results, are {expected:bytes}. {why}"
    )
    student.expect_by_rank(run.bytes_sent, due, text, n=n, why=too_much)
