"""What chapter 3 asks its reader to write: the two halves of the ring, and recursive doubling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.cost.units import format_bytes
from labkit.grading.checks.student import Student
from labkit.grading.writing import Reader, you_write
from labkit.wire import Group

Rows = list[list[Tensor]]
MIXED = "numbers of different chunks were added up. What a rank sends, its right neighbour must add to the same chunk."
ONWARD = "In each round a rank passes on the chunk that it has just added to."
BYTES = (
    "The chunks are right. But rank {rank} sent {got} bytes, and one chunk in each of {rounds} rounds is {expected}."
)


def finished_first(student: Reader) -> str:
    for n in (2, 3, 5):
        run = student.in_place("add_around", n, _coded(n))
        _same_shapes(student, run.results, _coded(n), "add_around")
        for rank, row in enumerate(run.results):
            want = (rank + 1) % n
            why = _not_the_sum(row, want, rank)
            student.expect(not why, "With {n} ranks rank {rank} should end with the whole sum in chunk {want}: {why}",
                           n=n, rank=rank, want=want, why=why)  # fmt: skip
        expected = [sum(c.nbytes for c in row) - row[(rank + 1) % n].nbytes for rank, row in enumerate(_coded(n))]
        student.expect_by_rank(run.bytes_sent, expected, BYTES, rounds=n - 1)
    return "With 2, 3 and 5 ranks every rank has one chunk of the whole sum, and sent each of the others once."


@you_write(finished_first)
def add_around(chunks: Sequence[Tensor], group: Group) -> None:
    """First half: add up around the ring, until rank r has the sum in chunk r + 1."""
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    for step in range(n - 1):
        out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]
        into += group.exchange(out, right, torch.empty_like(into), left)


def everyone_has_all(student: Reader) -> str:
    for n in (2, 3, 5):
        whole, mine = _fresh(student, n)[0], _fresh(student, n)
        for rank, row in enumerate(mine):
            row[(rank + 1) % n] = whole[(rank + 1) % n].clone()
        run = student.in_place("copy_around", n, [[chunk.clone() for chunk in row] for row in mine])
        _same_shapes(student, run.results, mine, "copy_around")
        pairs = [pair for row, had in zip(run.results, mine, strict=True) for pair in zip(row, had, strict=True)]
        same = all(torch.equal(a, b) for a, b in pairs)
        student.expect(
            not same,
            "No chunk has changed. Let `exchange` receive into the chunk itself: `like=into`.",
        )
        for rank, row in enumerate(run.results):
            for c in range(n):
                if torch.equal(row[c], whole[c]):
                    continue
                if torch.equal(row[c], mine[rank][c]):
                    why = "it still has its own numbers there. Which chunk arrives last?"
                elif torch.equal(row[c], mine[rank][c] + whole[c]):
                    why = "its own numbers were added to the sum. Here what arrives replaces what was there."
                else:
                    why = "there is something else. A rank may only pass on what is finished: chunk r + 1 comes first."
                student.expect(
                    False, "With {n} ranks chunk {c} on rank {rank} is not the sum: {why}", n=n, c=c, rank=rank, why=why
                )
        expected = [sum(c.nbytes for c in row) - row[(rank + 2) % n].nbytes for rank, row in enumerate(mine)]
        student.expect_by_rank(run.bytes_sent, expected, BYTES, rounds=n - 1)
    return "With 2, 3 and 5 ranks every rank has every chunk of the sum, and each chunk came to it once."


@you_write(everyone_has_all)
def copy_around(chunks: Sequence[Tensor], group: Group) -> None:
    """Second half: pass complete chunks on, until every rank has all of them."""
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    for step in range(n - 1):
        out, into = chunks[(me - step + 1) % n], chunks[(me - step) % n]
        group.exchange(out, right, into, left)


def few_rounds(student: Student) -> str:
    for n in (2, 4, 8):
        x = [student.tensor(6) + 100 * rank for rank in range(n)]
        run = student.run("my_recursive_doubling", n, x)
        total, rounds = sum(x), n.bit_length() - 1
        student.expect(None not in run.results, "A rank returned None: return `x` when it holds the sum.")
        student.expect_results(
            run,
            [total] * n,
            {
                "Every rank still has its own numbers.": x,
                "Every rank has the numbers of one partner only: what arrives must be added.": [
                    x[r ^ 1] for r in range(n)
                ],
                "Every rank has the sum over its pair: go on with partners 2, 4, ... ranks away.": (
                    [x[r] + x[r ^ 1] for r in range(n)] if n > 2 else []
                ),
                "All hold the sum several times: the distance must double in each round, 1, 2, 4.": (
                    [total * (n // 2)] * n if n > 2 else []
                ),
            },
        )
        student.expect(not run.library, "The sum is right, but a function of labkit made it. Use exchange alone.")
        text = "The sum is right. But with {n} ranks rank {rank} sent {got} bytes; {rounds} times {one} are {expected}."
        one = format_bytes(x[0].nbytes)
        student.expect_by_rank(run.bytes_sent, [rounds * x[0].nbytes] * n, text, n=n, rounds=rounds, one=one)
        student.expect(
            run.rounds <= rounds,
            "The sum is right. But with {n} ranks {got} messages follow one another, and {rounds} are enough: let both "
            "partners send at the same time.",
            n=n, got=run.rounds, rounds=rounds,
        )  # fmt: skip
    return "With 2, 4 and 8 ranks all hold the sum after 1, 2 and 3 rounds."


@you_write(few_rounds)
def my_recursive_doubling(x: Tensor, group: Group) -> Tensor:
    """Return the sum of all ranks' `x`. The number of ranks is a power of two."""
    distance = 1
    while distance < group.size:
        partner = group.rank ^ distance
        x += group.exchange(x, partner, torch.empty_like(x), partner)
        distance *= 2
    return x


def _fresh(student: Student, n: int) -> Rows:
    """For each rank its chunks, of two lengths if n is 5, and all numbers different from rank to rank."""
    return [[student.tensor(2 + (n == 5 and c == 0)) + 100 * (rank + 1) for c in range(n)] for rank in range(n)]


def _coded(n: int) -> Rows:
    """As above, with numbers whose sums tell what is in them: rank r's chunk c has 10^r, and then (c + 2) 10^r."""
    return [
        [torch.tensor([1, *[c + 2] * (1 + (n == 5 and c == 0))], dtype=torch.float64) * 10**rank for c in range(n)]
        for rank in range(n)
    ]


def _not_the_sum(row: Sequence[Tensor], want: int, rank: int) -> str:
    """What is in this chunk of coded numbers in place of each rank's once; "" if nothing is."""
    n, ones, (first, second) = len(row), (10 ** len(row) - 1) // 9, row[want][:2].tolist()
    times = [int(first) // 10**r % 10 for r in range(n)]
    if times == [int(r == rank) for r in range(n)]:
        found = [c for c in range(n) if row[c][:2].tolist() == [ones, ones * (c + 2)]]
        if found:
            return f"it has it in chunk {found[0]}. Which chunk does a rank send first?"
        again = [(c, r) for c in range(n) for r in range(n) if int(row[c][0]) // 10**r % 10 > 1]
        if again:
            return "nothing was added to it, and chunk {} has the numbers of rank {} twice. ".format(*again[0]) + ONWARD
        if any(row[c][1] != row[c][0] * (c + 2) for c in range(n)):
            return MIXED
        other = [c for c in range(n) if row[c][0] != 10**rank]
        if other:
            return f"nothing was added to it, but to chunk {other[0]}. Both chunk numbers go down by one in each round."
        return (
            "nothing was added to it. Does what arrives change the chunk itself? `into += x` does; `into = into + x` "
            "makes another tensor."
        )
    if second != first * (want + 2):
        return MIXED
    if times == [1] * n:
        return ""
    if not times[rank]:
        return "its own numbers are gone. What arrives must be added to the chunk, and not written over it."
    twice = [r for r in range(n) if times[r] > 1]
    if twice:
        return f"the numbers of rank {twice[0]} are in it {times[twice[0]]} times. {ONWARD}"
    missing = " and ".join(str(r) for r in range(n) if not times[r])
    return f"the numbers of rank {missing} are missing. {ONWARD}"


def _same_shapes(student: Student, held: Rows, mine: Rows, name: str) -> None:
    fits = [[c.shape for c in row] for row in held] == [[c.shape for c in row] for row in mine]
    student.expect(fits, "{name} must leave chunks of the same lengths: change their numbers, not the list.", name=name)
