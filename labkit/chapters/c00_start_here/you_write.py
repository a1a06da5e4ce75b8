"""What chapter 0 asks its reader to write: a sum with send and recv, and the average of gradients."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.grading.checks.student import NotRight, Slips, Student, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.wire import Group


def _overlooked(stopped: str) -> str:
    """What may have been overlooked where the ranks of a `total` stopped with this sentence."""
    if re.search(r"cannot (send to|recv from) itself", stopped):
        return " Every rank runs this function: what should rank 0 alone do, and what the others?"
    if "wait for each other" in stopped:
        return " Each `send` needs its `recv` on the other rank: while one of two sends, the other has to receive."
    if re.search(r"finished while others? waits? for (it|them)", stopped):
        return " Each `send` needs its `recv` on the other rank, and each `recv` its `send`: which one is missing?"
    return ""


def everyone_has_the_sum(student: Student) -> str:
    for n in student.sizes((2, 3, 5)):
        x = [student.tensor(4) for _ in range(n)]
        try:
            run = student.run("total", n, x)
        except StudentError as error:
            raise StudentError(f"{error}{_overlooked(str(error))}", error.detail) from None
        on_0_alone = [sum(x), *x[1:]]
        student.expect(None not in run.results, "A rank returned None: does each of them come to a `return`?")
        slips: Slips = {
            "Rank 0 has the sum, but the others returned their own vectors: rank 0 must send the sum back.": on_0_alone,
            "Every rank returned the vector that it brought: nothing was added.": x,
            "The sum lacks what rank 0 brought: did `recv` write over it?": [sum(x[1:])] * n,
            "`recv` writes into the tensor that you give it. You gave it `x`, so what rank 0 had is lost.": [2 * x[-1]]
            * n,
            "Rank 1 got a sum that was not finished: receive from all the others first, and then send.": [
                sum(x),
                *(sum(x[: rank + 1]) for rank in range(1, n)),
            ],
        }
        silent = "No rank sent a message, so nothing was added: who tells a rank what the others brought?"
        student.expect(any(run.messages) or not all(isinstance(r, Tensor) for r in run.results), silent)
        student.expect_results(run, [sum(x)] * n, slips)
        student.expect(not run.library, "The sum is right, but a function of labkit made it. Use send and recv alone.")
        text = (
            "The sum is right, but with {n} ranks the messages of rank {rank} are {got}, and the target is {expected}: "
            "rank 0 sends one to each of the others, and each of them sends one to rank 0."
        )
        student.expect_by_rank(run.messages, [n - 1] + [1] * (n - 1), text, n=n)
    return "With 2, 3 and 5 ranks everyone has the sum; rank 0 sent a message to each other rank, and each sent one."


@you_write(everyone_has_the_sum)
def total(x: Tensor, group: Group) -> Tensor:
    """Return the sum of all ranks' `x`, on every rank. Rank 0 adds up."""
    if group.rank == 0:
        for other in range(1, group.size):
            x = x + group.recv(torch.empty_like(x), source=other)
        for other in range(1, group.size):
            group.send(x, to=other)
    else:
        group.send(x, to=0)
        x = group.recv(torch.empty_like(x), source=0)
    return x


def everyone_has_the_average(student: Reader) -> str:
    for n in student.sizes((2, 3)):
        x = [[n * student.tensor(3, 2), n * student.tensor(5)] for _ in range(n)]
        try:
            run = student.in_place("share", n, x)
        except StudentError as error:
            if "moves tensors, and x is list" not in str(error):
                raise
            raise NotRight("`all_reduce` takes one tensor, and you gave it the list: call it once for each.") from None
        sums = [sum(tensors) for tensors in zip(*x, strict=True)]
        copied = (
            "The tensors that you were given are as they were, though something was sent: your average is in other "
            "tensors, which the optimizer never sees. `g /= group.size` changes one, `g = g / group.size` makes one."
        )
        same = (
            "The tensors that you were given are as they were, and nothing was sent: who knows the others' gradients?"
        )
        slips: Slips = {
            f"These are sums: with {n} ranks they are {n} times the average. (If you did divide: `g = g / group.size` "
            "makes a new tensor, and `g /= group.size` changes the one that you have.)": [sums] * n,
            copied if any(run.bytes_sent) else same: x,
            "Every rank divided its own gradients, and nothing was added: what do the others contribute?": [
                [g / n for g in mine] for mine in x
            ],
        }
        average = [g / n for g in sums]
        slips |= {
            "Only the last tensor is divided: should the division stand inside the loop?": [
                [*sums[:-1], average[-1]]
            ] * n,
            "Only the first tensor holds the average: is there a `return` inside the loop?": [
                [average[0], *mine[1:]] for mine in x
            ],
        }  # fmt: skip
        for k in set(range(2, 17)) - {n}:
            why = f"With {n} ranks you have divided the sum by {k}. "
            why += 'Did you divide twice (`op="avg"` divides, too), or by another number than `group.size`?'
            slips[why] = [[g / k for g in sums]] * n
        student.expect_results(run, [average] * n, slips, within=1e-6)
    return "With 2 and 3 ranks each tensor holds the average over all ranks, in place."


@you_write(everyone_has_the_average)
def share(gradients: list[Tensor], group: Group) -> None:
    """Replace each gradient by its average over all ranks, in place."""
    for g in gradients:
        all_reduce(g, group, op="avg")
