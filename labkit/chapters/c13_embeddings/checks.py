"""What the checks of chapter 13 give to its first two programs, and how they judge what came back.

Inputs are small whole numbers, and learning rates are powers of two, so that sums are exact in every order. What ranks
must return is computed on one device, with the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.cost import ID_BYTES
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.grading.known import Answers

answers = Answers("13_embeddings")  # what only instructors can compute

Draw = Callable[..., Tensor]
Inputs = list[dict[str, Any]]

DIM, ITEM = 3, 8  # numbers of a row, and bytes of one


def ranks(n: int) -> str:
    return f"With {n} rank{'s' * (n != 1)}"


def drawn_ids(draw: Draw, *shape: int, below: int) -> Tensor:
    """Ids, low ones more often: a product of two small numbers and a third one, cut at `below`."""
    return (draw(*shape, dtype=torch.int64).abs() * draw(*shape, dtype=torch.int64).abs() - 1) % below


# Sums come home -------------------------------------------------------------------------------------------------------


def bags(draw: Draw, examples: Sequence[int], k: int, rows: int) -> Inputs:
    """By rank ids (b, k), in which some ids come twice in an example, and the rank's rows of a table of `rows` rows."""
    n = len(examples)
    table = draw(rows, DIM, dtype=torch.float64)
    return [{"ids": drawn_ids(draw, b, k, below=rows), "rows": table[r::n].clone()} for r, b in enumerate(examples)]


def whole_table(inputs: Inputs) -> Tensor:
    n = len(inputs)
    table = torch.zeros(sum(len(mine["rows"]) for mine in inputs), DIM, dtype=torch.float64)
    for r, mine in enumerate(inputs):
        table[r::n] = mine["rows"]
    return table


def expect_sums_home(student: Student, run: Evidence, inputs: Inputs) -> None:
    """Every rank returned the sum of the k rows of each of its examples."""
    n, table = len(inputs), whole_table(inputs)

    def summed(kept: Callable[[int, list[int]], list[int]]) -> list[Tensor]:
        """The sums over those ids of an example that `kept`(rank, ids) leaves."""
        found = []
        for r, mine in enumerate(inputs):
            parts = [table[kept(r, ids)].sum(0) for ids in mine["ids"].tolist()]
            found.append(torch.stack(parts) if parts else table[:0])
        return found

    right = summed(lambda r, ids: ids)
    k = inputs[0]["ids"].shape[1]
    causes = {
        "an id that appears twice in an example is added once. It counts as often as it appears.": summed(
            lambda r, ids: sorted(set(ids))
        ),
        "only the rows of the rank itself were added.": summed(lambda r, ids: [i for i in ids if i % n == r]),
        "the rows of the rank itself are missing.": summed(lambda r, ids: [i for i in ids if i % n != r]),
        "the rows were averaged, and not summed.": [x / k for x in right],
        "the sums that came home belong to other examples. They come in the order of the ranks, and of one rank in "
        "the order of your examples; a rank sends nothing for an example that did not ask it.": _home_in_turn(
            table, inputs
        ),
    }
    slips: Slips = {f"{ranks(n)}: {why}": wrong for why, wrong in causes.items()}
    student.expect_results(run, right, slips)


def _home_in_turn(table: Tensor, inputs: Inputs) -> list[Tensor]:
    """What comes of it if the sums of a rank are added to the first examples, whoever asked."""
    n, found = len(inputs), []
    for mine in inputs:
        total = torch.zeros(len(mine["ids"]), DIM, dtype=torch.float64)
        for owner in range(n):
            theirs = [[i for i in ids if i % n == owner] for ids in mine["ids"].tolist()]
            for place, ids in enumerate([ids for ids in theirs if ids]):
                total[place] += table[ids].sum(0)
        found.append(total)
    return found


def bags_between(inputs: Inputs) -> tuple[list[list[int]], list[list[int]]]:
    """How many ids, and how many different examples, each rank (row) sends to each rank."""
    n = len(inputs)
    ids = [(mine["ids"] % n).flatten().bincount(minlength=n).tolist() for mine in inputs]
    asking = [[int((mine["ids"] % n == s).any(1).sum()) for s in range(n)] for mine in inputs]
    return ids, asking


def pooled_bytes(inputs: Inputs, summed: bool = True) -> list[int]:
    """Bytes that each rank sends: counts, ids with their examples, and sums for others (or a row for each id)."""
    n = len(inputs)
    ids, asking = bags_between(inputs)
    back = asking if summed else ids
    return [
        sum(ID_BYTES + 2 * ID_BYTES * ids[r][s] + DIM * ITEM * back[s][r] for s in range(n) if s != r) for r in range(n)
    ]  # fmt: skip


def expect_pooled_bytes(student: Student, run: Evidence, inputs: Inputs) -> None:
    """No rank sent more than counts, its ids with their examples, and a sum for each example that asked it."""
    n, due, each = len(inputs), pooled_bytes(inputs), pooled_bytes(inputs, summed=False)
    rank = max(range(n), key=lambda r: run.bytes_sent[r] - due[r])
    got = run.bytes_sent[rank]
    why = "Does more travel than the counts, each id with its example, and one sum for each example?"
    everyone = due[rank] + DIM * ITEM * sum(
        len(mine["ids"]) - bags_between(inputs)[1][s][rank] for s, mine in enumerate(inputs) if s != rank
    )
    if got in (everyone, everyone + (n - 1) * ID_BYTES):
        why = "A sum also comes back for examples that did not ask this rank for anything."
    elif "all_gather" in run.library or "all_reduce" in run.library:
        why = "Something is sent to everybody. An id goes to the owner of its row, and the sum goes back."
    elif got in (each[rank], each[rank] - 8 * sum(bags_between(inputs)[0][rank])):
        why = "A row comes back for each id. Let its owner add up the rows of one example, and send the sum."
    text = "{who} rank {rank} sent {got:bytes}, and {due:bytes} are enough. {why}"
    student.expect(got <= due[rank], text, who=ranks(n), rank=rank, got=got, due=due[rank], why=why)


# A row that rested ----------------------------------------------------------------------------------------------------


def lessons(draw: Draw, counts: Sequence[Sequence[int]], rows: int) -> Inputs:
    """By rank: rows (its part of a table), and for each step ids (b,) and gradients (b, dim). counts[r][t]: b."""
    n = len(counts)
    table = draw(rows, DIM, dtype=torch.float64)
    found = []
    for r, by_step in enumerate(counts):
        ids = [drawn_ids(draw, b, below=rows) for b in by_step]
        gradients = [draw(b, DIM, dtype=torch.float64) for b in by_step]
        found.append({"rows": table[r::n].clone(), "ids": ids, "gradients": gradients})
    return found


def dense_momentum(
    inputs: Inputs, lr: float, beta: float, last_wins: bool = False, mean: bool = False, raw: bool = False
) -> list[list[Tensor]]:
    """By rank [rows, velocity, last] of SGD with momentum, which goes through *every* row in every step.

    What is returned of a row is how it stood after the last step that touched it. Mistakes: last_wins: of equal ids;
    mean: gradients are averaged over the ranks; raw: rows as they stand at the end, touched or not.
    """
    n, w = len(inputs), whole_table(inputs)
    v, last = torch.zeros_like(w), torch.zeros(len(w), dtype=torch.int64)
    rows, velocity = w.clone(), v.clone()
    for t in range(1, 1 + len(inputs[0]["ids"])):
        ids = torch.cat([mine["ids"][t - 1] for mine in inputs])
        gradients = torch.cat([mine["gradients"][t - 1] for mine in inputs]) / (n if mean else 1)
        g = torch.zeros_like(w)
        if last_wins:
            for i, one in zip(ids.tolist(), gradients, strict=True):
                g[i] = one
        else:
            g.index_add_(0, ids, gradients)
        v = beta * v + g
        w = w - lr * v
        last[ids] = t
        rows[ids], velocity[ids] = w[ids], v[ids]
    if raw:
        rows, velocity = w, v
    return [[rows[r::n], velocity[r::n], last[r::n]] for r in range(n)]


def expect_rested(student: Student, run: Evidence, inputs: Inputs, lr: float, beta: float) -> None:
    """Rows and velocities are those of the dense optimizer after the last step that touched each of them."""
    n = len(inputs)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, (list, tuple)) and len(result) == 3
        student.expect(fine, f"{ranks(n)}: rank {rank} returned no list of three tensors: rows, velocity, last.")
    never = all(not bool(result[2].any()) for result in run.results if isinstance(result[2], Tensor))
    student.expect(not never, f"{ranks(n)}: `last` is 0 everywhere. It is the number of the last step that touched a "
                   "row, and steps count from 1.")  # fmt: skip

    causes = {
        "a row that rested goes on as if no step had passed. In the dense optimizer it moved on in each of them, and "
        "its velocity decayed.": answers.rested(inputs, lr, beta, "none"),
        "a row that rested catches up one step too many. The step that touches it is not one of rest.": (
            answers.rested(inputs, lr, beta, "more")
        ),
        "a row that rested catches up one step only, however long it rested.": (
            answers.rested(inputs, lr, beta, "one")
        ),
        "the velocity of a row that rested has decayed, but the row has not moved meanwhile.": (
            answers.rested(inputs, lr, beta, "still")
        ),
        "every row was carried on to the last step. A row that no step touches stays as it is, until it is touched "
        "again.": dense_momentum(inputs, lr, beta, raw=True),
        "of equal ids only one gradient was applied. They are summed, in a batch and over the ranks.": (
            dense_momentum(inputs, lr, beta, last_wins=True)
        ),
        "the gradients were averaged over the ranks, and not summed.": dense_momentum(inputs, lr, beta, mean=True),
    }
    slips: Slips = {f"{ranks(n)}: {why}": wrong for why, wrong in causes.items()}
    student.expect_results(run, dense_momentum(inputs, lr, beta), slips, within=1e-9)


def push_bytes(inputs: Inputs, once: bool = True) -> list[int]:
    """Bytes that each rank sends over all steps: counts, ids, gradients. once: each different id of a batch."""
    n, row = len(inputs), ID_BYTES + DIM * ITEM
    sent = []
    for r, mine in enumerate(inputs):
        total = 0
        for ids in mine["ids"]:
            told = ids.unique() if once else ids
            total += (n - 1) * ID_BYTES + row * int((told % n != r).sum())
        sent.append(total)
    return sent


def expect_push_bytes(student: Student, run: Evidence, inputs: Inputs) -> None:
    """No rank sent more than counts, each different id of its batches, and a sum for each of them."""
    n, due, twice = len(inputs), push_bytes(inputs), push_bytes(inputs, once=False)
    rank = max(range(n), key=lambda r: run.bytes_sent[r] - due[r])
    got = run.bytes_sent[rank]
    why = "Only counts, touched ids and their gradients need to travel."
    if "all_reduce" in run.library or "all_gather" in run.library:
        why = "Something is sent to everybody. A gradient goes to the owner of its row."
    elif run.bytes_sent == twice:
        why = "An id that appears twice in a batch is sent twice. Sum its gradients before they leave."
    text = "{who} rank {rank} sent {got:bytes} in all steps, and {due:bytes} are enough. {why}"
    student.expect(got <= due[rank], text, who=ranks(n), rank=rank, got=got, due=due[rank], why=why)
