"""Whether a reader's `pull` has brought every id its row, and has sent no more than what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, StudentError
from labkit.grading.writing import Reader
from labkit.wire import Group

DIM = 3


def every_id_has_its_row(student: Reader) -> str:
    for n, sizes in ((3, (6, 4, 5)), (1, (4,)), (2, (5, 1)), (4, (3, 7, 2, 5))):
        g = torch.Generator().manual_seed(student.seed + n)
        table = torch.randn(5 * n, DIM, generator=g, dtype=torch.float64)
        ids = [torch.randint(0, 5 * n, (b,), generator=g) for b in sizes]
        if n == 2:  # one rank asks for the same id five times, and nobody asks rank 1 for anything
            ids = [torch.tensor([4, 4, 4, 4, 4]), torch.tensor([2])]
        if n == 3:  # unequal counts, with repeats, whatever the dice say
            ids = [torch.tensor([7, 1, 7, 12, 0, 1]), torch.tensor([3, 3, 9, 11]), torch.tensor([14, 2, 5, 2, 8, 8])]
        run = _pull(student, n, [(i, table[r::n].clone(), table) for r, i in enumerate(ids)])
        _rows_are_right(student, run, n, ids, table)
        _bytes_are_few(student, run, n, ids)
    return "On 1 to 4 ranks every id gets its row, even if it appears twice, and only rows that were asked for travel."


def _pull(student: Reader, n: int, inputs: Sequence[Any]) -> Evidence:
    def call(fn: Callable[..., Any], x: Any, group: Group) -> Any:
        return fn(x[0].clone(), x[1].clone(), group)

    try:
        return student.through("pull", n, inputs, call)
    except StudentError as error:
        text = f"{error}{error.detail}"
        why = ""
        if "out of bounds" in text or "out of range" in text:
            why = "A rank has row `id` in place `id // group.size` of its own rows: divide before you look up."
        elif any(
            f"rank {r} raised RefusedError: send_counts add up to {len(x[0].unique())} rows, but x has {len(x[0])}"
            in text
            and len(x[0].unique()) < len(x[0])
            for r, x in enumerate(inputs)
        ):
            why = (
                "`out` counts each id once, by owner: send `unique[order]` there. On the way back the lists change "
                "places, (into, out)."
            )
        elif "counts" in text or "sends" in text or "expects" in text:
            why = "Ids go out with (out, into); the rows come back with the lists swapped, (into, out)."
        raise StudentError(f"{error} {why}".rstrip(), error.detail) from None


def _rows_are_right(student: Reader, run: Evidence, n: int, ids: Sequence[Tensor], table: Tensor) -> None:
    ranks = f"With {n} rank{'s' * (n != 1)}"
    for rank, got in enumerate(run.results):
        student.expect(isinstance(got, Tensor), "{ranks} rank {rank} returned {got}: return the rows of its ids.",
                       ranks=ranks, rank=rank, got=type(got).__name__)  # fmt: skip
    others = any((i % n != r).any() for r, i in enumerate(ids))
    student.expect(not others or any(run.messages), "{ranks} nothing was sent, but most rows lie on other ranks.",
                   ranks=ranks)  # fmt: skip
    for rank, (got, mine) in enumerate(zip(run.results, ids, strict=True)):
        want = table[mine]
        if got.shape == want.shape and torch.equal(got, want):
            continue
        unique = mine.unique()
        order = (unique % n).argsort(stable=True)
        slips = (
            (table[unique[order]], "your rows are in the order in which the all-to-all brought them: sorted by "
             "owner, one for each different id. Bring them back into the order of `ids`: `found[order] = came`, and "
             "then `found[inverse]`."),
            (table[unique], "you returned a row for each *different* id. `inverse` says which of them each id needs: "
             "`found[inverse]`."),
            (table[unique[order]][_inverse(mine)], "you used `inverse` on rows in the order in which the all-to-all "
             "brought them, sorted by owner. First undo the sorting: `found[order] = came`."),
            (table[unique[order]][order][_inverse(mine)], "the sorting was done twice and not undone: write "
             "`found[order] = came`, and not `came[order]`."),
        )  # fmt: skip
        trials = [*slips, *((_pulled(ids, table, n, rank, **slip), said) for slip, said in PULL_SLIPS)]
        why = next((said for wrong, said in trials if got.shape == wrong.shape and torch.equal(got, wrong)), "")
        if not why and got.shape == want.shape and (lost := _lost_repeats(mine, got, want)) is not None:
            why = (
                f"id {lost} appears more than once in its batch, and only one of these places has its row. "
                "`inverse` has the place of every id, equal ones too: `found[inverse]`."
            )
        if not why and got.shape in (want.shape, table[unique].shape) and _same_rows(got, want):
            why = ("these are the rows of its ids, but in another order. After the all-to-all they are sorted by "
                   "owner: bring them back into the order of `ids`, with `found[order] = came` and "
                   "`found[inverse]`.")  # fmt: skip
        if not why and got.shape != want.shape:
            why = f"it has {len(mine)} ids, and you returned a tensor of shape {tuple(got.shape)}."
        where = [] if got.shape != want.shape else [k for k in range(len(mine)) if not torch.equal(got[k], want[k])]
        why = why or f"id {int(mine[where[0]])}, in place {where[0]}, has another row."
        student.expect(False, "{ranks}, rank {rank}: " + why, ranks=ranks, rank=rank)


PULL_SLIPS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"sort": False}, "you sent `unique` as it is. `all_to_all` sends the next out[s] ids to rank s, so they must "
     "be in the order of their owners: `unique[order]`."),
    ({"sort": False, "undo": False}, "the ids are not in the order of their owners. `all_to_all` sends the next out[s] "
     "of them to rank s: send `unique[order]`, where `order` must sort by owner, as `owner.argsort()` does."),
    ({"place": "%"}, "its ids came to the right ranks, but rows of other places came back. `%` says which rank has a "
     "row, and `//` in which place it lies there: `mine[asked // group.size]`."),
    ({"place": "len"}, "its ids came to the right ranks, but rows of other places came back. An owner counts its rows "
     "from 0, and `asked` has numbers of the whole table: `mine[asked // group.size]`."),
    ({"of_batch": True}, "you sent `ids[order]`, but `order` sorts the different ids: `unique[order]`."),
)  # fmt: skip


def _pulled(
    ids: Sequence[Tensor], table: Tensor, n: int, rank: int, sort: bool = True, undo: bool = True, place: str = "//",
    of_batch: bool = False,
) -> Tensor:  # fmt: skip
    """The rows that `rank` gets if ids leave unsorted, or are those of the batch, or if owners look in other places."""
    unique, inverse = ids[rank].unique(return_inverse=True)
    owner = unique % n
    order = owner.argsort(stable=True)
    sent = (ids[rank] if of_batch else unique)[order] if sort else unique
    came = torch.empty(len(unique), table.shape[1], dtype=table.dtype)
    for k, (to, i) in enumerate(zip(owner.sort().values.tolist(), sent.tolist(), strict=True)):
        shard = table[to::n]
        came[k] = shard[{"//": i // n, "%": i % n, "len": i % len(shard)}[place]]
    found = came.clone()
    if undo:
        found[order] = came
    return found[inverse]


def _lost_repeats(ids: Tensor, got: Tensor, want: Tensor) -> int | None:
    """An id whose row stands in one of its places and not in another, if all that is wrong is of that kind."""
    right = (got == want).all(1)
    have = set(ids[right].tolist())
    wrong = ids[~right].tolist()
    return wrong[0] if wrong and all(i in have for i in wrong) else None


def _same_rows(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.unique(dim=0), b.unique(dim=0))


def _inverse(ids: Tensor) -> Tensor:
    return ids.unique(return_inverse=True)[1]


def _bytes_are_few(student: Reader, run: Evidence, n: int, ids: Sequence[Tensor]) -> None:
    def sent(asked: list[list[int]], row: int = 8 * DIM) -> list[int]:
        return [8 * (n - 1) + sum(8 * asked[r][s] + row * asked[s][r] for s in range(n) if s != r) for r in range(n)]

    def asked(parts: Sequence[Tensor]) -> list[list[int]]:
        return [(i % n).bincount(minlength=n).tolist() for i in parts]

    due = sent(asked([i.unique() for i in ids]))
    by_bruck = 8 * (sum(i.bit_count() for i in range(n)) - (n - 1))  # counts, if their all-to-all takes this way
    if n == 1 or any(run.bytes_sent == [b + more for b in due] for more in (0, by_bruck)):
        return
    twice = [[b + more for b in sent(asked(ids))] for more in (0, by_bruck)]
    student.expect(run.bytes_sent not in twice, "The rows are right, but with {n} ranks an id that appears twice in a "
                   "batch was sent for twice: ask for `unique`, not for `ids`.", n=n)  # fmt: skip
    most = max(range(n), key=lambda r: run.bytes_sent[r] - due[r])
    student.expect(False, "The rows are right, but with {n} ranks rank {rank} sent {got} bytes, where counts, ids and "
                   "rows are {due}. {why}", n=n, rank=most, got=run.bytes_sent[most], due=due[most],
                   why="Whole shards travelled: only rows that were asked for should." if run.library and
                   "all_gather" in run.library else "Are equal ids asked for more than once?")  # fmt: skip
