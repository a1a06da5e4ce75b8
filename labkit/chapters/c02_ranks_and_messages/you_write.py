"""What chapter 2 asks its reader to write: a text of unknown length, and a letter for each neighbour."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, combinations

import torch
from torch import Tensor

from labkit.data import decode, encode
from labkit.grading.checks.student import Slips, Student, StudentError, same
from labkit.grading.writing import Reader, you_write
from labkit.wire import Group

TEXTS = [
    "Beautiful is better than ugly.",
    "Sparse is better than dense, and short is not always better.",
    "Zoë, où es-tu?",  # with two ranks, so that a third one is never its trouble
]


def the_text_arrives(student: Student) -> str:
    for text, (n, source, to) in zip(TEXTS, ((2, 0, 1), (3, 2, 0), (2, 1, 0)), strict=True):
        mine = [text if rank == source else f"text of rank {rank}" for rank in range(n)]
        try:
            run = student.run("whisper", n, mine, source=source, to=to)
        except StudentError as stopped:
            said = f"{stopped}\n{stopped.detail}"
            idle = next((r for r in range(n) if r not in (source, to) and f"rank {r}: receive" in said), None)
            why = "With {n} ranks rank {idle} also receives: only rank {to}, which is `to`, has anything to receive."
            student.expect(idle is None, why, n=n, idle=idle, to=to)
            letters = len(text) < len(encode(text)) and re.search(rf"rank {to} receives uint8\[{len(text)}\]", said)
            why = "A text of plain letters arrives, but {text!r} does not: it has more bytes than letters."
            student.expect(not letters, why, text=text)
            raise
        got = run.results[to]
        student.expect(got is not None, "Rank {to} returned None: return the text that it heard.", to=to)
        student.expect(isinstance(got, str), "Rank {to} returned no text: `decode` makes one of the bytes.", to=to)
        student.expect(got != mine[to], "Rank {to} returned the text that it had: nothing was received.", to=to)
        student.expect(got == text, "Rank {s} sent {text!r}, and rank {to} heard {got!r}.", s=source, to=to, text=text,
                       got=got)  # fmt: skip
        sent, enough = run.bytes_sent[source], 8 + len(encode(text))
        words = (
            "The text arrives, but rank {s} sent {sent} bytes for it; a length of 8 bytes and the text are {enough}."
        )
        student.expect(sent == enough, words, s=source, sent=sent, enough=enough)
        others = [run.results[r] == mine[r] for r in range(n) if r != to]
        student.expect(all(others), "The text arrives. But ranks other than {to} must return their own text.", to=to)
    return "Three texts of different lengths arrived, each as a length of 8 bytes and then its bytes."


@you_write(the_text_arrives)
def whisper(text: str, group: Group, source: int, to: int) -> str:
    """Rank `source` sends its text to rank `to`; return what this rank then knows."""
    if group.rank == source:
        words = encode(text)
        group.send(torch.tensor([len(words)]), to)
        group.send(words, to)
    if group.rank == to:
        length = group.recv(torch.zeros(1, dtype=torch.int64), source)
        room = torch.zeros(int(length), dtype=torch.uint8)
        text = decode(group.recv(room, source))
    return text


LOST = "It works, but what came was written over a `mine`: receive into a tensor of its own, `torch.empty_like(mine)`."
OVERWRITTEN = "You overwrote `mine` before you sent it: receive into a tensor of its own, `torch.empty_like(mine)`."


def some_ranks(n: int) -> Iterable[tuple[int, ...]]:
    """Every choice of ranks out of n, at least one and not all."""
    return chain.from_iterable(combinations(range(n), k) for k in range(1, n))


def passed_on(x: Sequence[Tensor], first: Collection[int]) -> list[Tensor]:
    """What every rank has if the ranks of `first` pass on what they receive, in place of their own."""
    got: list[Tensor] = []
    for rank in range(len(x)):
        left = (rank - 1) % len(x)
        while left in first:
            left = (left - 1) % len(x)
        got.append(x[left])
    return got


def everybody_has_a_letter(student: Reader) -> str:
    for n in student.sizes((2, 4, 3, 5)):
        x = [student.tensor(6) + 10 * rank for rank in range(n)]
        run = student.run("pass_right", n, x)
        student.expect(None not in run.results, "A rank returned None: return the tensor that you received.")
        slips: Slips = {
            "Every rank returned its own tensor: return the one that came from the left.": x,
            "Every rank has the tensor of its right neighbour: send to the right, and receive from the left.": [
                x[(rank + 1) % n] for rank in range(n)
            ],
        }
        student.expect(not any(same(run.results, passed_on(x, first)) for first in some_ranks(n)), OVERWRITTEN)
        student.expect_results(run, [x[(rank - 1) % n] for rank in range(n)], slips)
        text = "With {n} ranks rank {rank} sent {got} messages, and {expected} is enough."
        student.expect_by_rank(run.messages, [1] * n, text, n=n)
        at_once = (
            "It works, but all ranks send and receive at once, as `exchange` and handles do. Use `send` and `recv`."
        )
        student.expect(run.rounds > 1, at_once)
    mine = [student.tensor(6) + 10 * rank for rank in range(2)]
    student.expect(same(student.in_place("pass_right", 2, mine).results, mine), LOST)
    return "With 2, 3, 4 and 5 ranks nobody waits for ever, and each rank sends one message."


@you_write(everybody_has_a_letter)
def pass_right(mine: Tensor, group: Group) -> Tensor:
    """Send `mine` to the right neighbour, and return what the left neighbour sends."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    theirs = torch.empty_like(mine)
    if group.rank == 0:
        group.recv(theirs, source=left)
        group.send(mine, to=right)
    else:
        group.send(mine, to=right)
        group.recv(theirs, source=left)
    return theirs
