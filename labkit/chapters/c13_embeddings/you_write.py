"""What chapter 13 asks its reader to write: sparse pull, sums of equal ids, row-wise Adagrad, masked numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_to_all
from labkit.grading.checks.student import Evidence, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.optim.synchrony.masking import stream
from labkit.wire import Group

DIM = 3
NEAR = 1e-9


def _explained(
    student: Reader, name: str, x: Any, call: Callable[[Callable[..., Any], Any, Group], Any], causes: Mapping[str, str]
) -> Any:  # fmt: skip
    """What `call` returned on one rank. Where PyTorch has refused shapes, the sentence of the first cause that fits."""
    try:
        return student.through(name, 1, [x], call).results[0]
    except StudentError as error:
        text = f"{error} {error.detail}"
        why = next((said for sign, said in causes.items() if re.search(sign, text)), str(error))
        raise StudentError(why, error.detail) from None


# Sparse pull ---------------------------------------------------------------------------------------------------------


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
     "of them to rank s, so `order` must sort by owner: `owner.argsort()`."),
    ({"place": "%"}, "its ids came to the right ranks, but rows of other places came back. `%` says which rank has a "
     "row, and `//` in which place it lies there: `rows[asked // group.size]`."),
    ({"place": "len"}, "its ids came to the right ranks, but rows of other places came back. An owner counts its rows "
     "from 0, and `asked` has numbers of the whole table: `rows[asked // group.size]`."),
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


@you_write(every_id_has_its_row)
def pull(ids: Tensor, rows: Tensor, group: Group) -> Tensor:
    """The row of each id (b,). Row i is rows[i // N] of rank i % N."""
    unique, inverse = ids.unique(return_inverse=True)
    owner = unique % group.size
    order, counts = owner.argsort(stable=True), owner.bincount(minlength=group.size)
    out = counts.tolist()
    into = all_to_all(counts, group, algorithm="pairwise").tolist()
    asked = all_to_all(unique[order], group, out, into)
    came = all_to_all(rows[asked // group.size], group, into, out)
    found = torch.empty_like(came)
    found[order] = came
    return found[inverse]


# Equal ids -----------------------------------------------------------------------------------------------------------


SUM_CAUSES = {
    r"self\.shape = \[\d+\] ": "The total has one number for each id, and needs a row for each: make it with "
    "`gradients.new_zeros(len(unique), gradients.shape[1])`.",
    "must have the same scalar type": "The total has another dtype than the gradients: make it with "
    "`gradients.new_zeros(...)`.",
    "out of bounds": "An id was used as a place. `inverse` says for each entry of `ids` its place among the different "
    "ids.",
    "Number of indices": "`index_add_` needs a place for each gradient, so as many as `ids` has: that is `inverse`.",
    "non-empty TensorList|expected a non-empty list": "The usual batches are right, but a batch without ids has "
    "nothing to stack. A total from `gradients.new_zeros(...)`, into which you add, fits that batch, too.",
    "size of tensor a": "Two tensors do not fit together, one with a row for each id and one with other rows. To "
    "divide or multiply rows by one number each, give the numbers a second dimension: `[:, None]`.",
}


def equal_ids_are_added(student: Reader) -> str:
    g = torch.Generator().manual_seed(student.seed)
    cases = [
        (torch.tensor([7, 2, 7, 5, 7]), torch.randn(5, DIM, generator=g)),
        (torch.tensor([4, 1, 3]), torch.randn(3, DIM, generator=g)),
        (torch.randint(0, 6, (40,), generator=g), torch.randn(40, 2, generator=g)),
    ]
    nothing = [(torch.empty(0, dtype=torch.int64), torch.empty(0, DIM))]
    doubles = [(ids, gradients.double()) for ids, gradients in cases]
    for some in (cases, nothing, doubles):  # what is seldom comes last, when the usual batches are right
        _one_lot(student, some)
    return "Gradients of equal ids are added, however often an id appears, and every id comes once."


def _one_lot(student: Reader, cases: Sequence[tuple[Tensor, Tensor]]) -> None:
    got = _explained(student, "sum_equal", cases, _all_cases, SUM_CAUSES)
    for (pair, kept), (ids, gradients) in zip(got, cases, strict=True):
        fits = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, Tensor) for x in pair)
        student.expect(fits, "Return two tensors: the different ids, and the sum of the gradients of each.")
        _sums_are_right(student, pair[0], pair[1], ids, gradients)
        student.expect(kept, "The sums are right, but the gradients that came in were changed: add into a new tensor.")


def _all_cases(fn: Callable[..., Any], cases: Any, group: Group) -> Any:
    found = []
    for ids, gradients in cases:
        mine = gradients.clone()
        pair = fn(ids.clone(), mine)
        found.append((tuple(pair) if isinstance(pair, (tuple, list)) else pair, torch.equal(mine, gradients)))
    return found


def _sums_are_right(student: Reader, got_ids: Tensor, got: Tensor, ids: Tensor, gradients: Tensor) -> None:
    unique, inverse, times = ids.unique(return_inverse=True, return_counts=True)
    total = torch.zeros(len(unique), gradients.shape[1], dtype=gradients.dtype).index_add_(0, inverse, gradients)
    told = ids.tolist()
    student.expect(got_ids.tolist() != told or torch.equal(unique, ids), "For ids {ids} you returned all of them: each "
                   "different id should come once.", ids=told[:8])  # fmt: skip
    student.expect(not got_ids.is_floating_point(), "You returned the sums first: return the ids, and then the sums.")
    student.expect(torch.equal(got_ids, unique), "For ids {ids} the different ones are {want}, in ascending order, and "
                   "you returned {got}.", ids=told[:8], want=unique.tolist()[:8], got=got_ids.tolist()[:8])  # fmt: skip
    each_number = len(ids) and got.shape[:1] == (int(ids.max()) + 1,) and got.shape != total.shape
    why = " You made a place for each number up to the largest id: you need one for each different id."
    student.expect(got.shape == total.shape, "For {b} ids, {u} of them different, the sums should have shape {want}, "
                   "have {got}." + why * bool(each_number), b=len(ids), u=len(unique), want=tuple(total.shape),
                   got=tuple(got.shape))  # fmt: skip
    near = 1e-5  # of sums in float32
    if not len(ids) or bool((got - total).abs().max() < near):
        student.expect(got.dtype == total.dtype, "The sums are right, but of {got} where the gradients are of {want}: "
                       "make the total with `gradients.new_zeros(...)`.", got=str(got.dtype),
                       want=str(total.dtype))  # fmt: skip
        return
    first, last, seen = torch.zeros_like(total), torch.zeros_like(total), set()
    for place, g in zip(inverse.tolist(), gradients, strict=True):
        last[place] = g
        if place not in seen:
            first[place] = g
            seen.add(place)
    slips = (
        (last, "only one of its gradients is there. `total[inverse] += g` reads each place once and writes it again "
         "and again, so equal ids overwrite one another: use `index_add_`."),
        (first, "only its first gradient is there: equal ids are to be added."),
        (total / times[:, None], "its gradients were averaged. The row was used several times, and its gradient "
         "is the sum of what comes back from each use."),
        (torch.zeros_like(total), "nothing was added up: does your tensor change?"),
    )  # fmt: skip
    why = next((said for wrong, said in slips if bool((got - wrong).abs().max() < near)), "the sum is another one.")
    bad = int((got - total).abs().sum(1).argmax())
    student.expect(False, "Id {i} appears {times} times, and " + why, i=int(unique[bad]), times=int(times[bad]))


@you_write(equal_ids_are_added)
def sum_equal(ids: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Each distinct id once, in ascending order, and the sum of its gradients."""
    unique, inverse = ids.unique(return_inverse=True)
    total = gradients.new_zeros(len(unique), gradients.shape[1])
    total.index_add_(0, inverse, gradients)
    return unique, total


# Row-wise Adagrad ----------------------------------------------------------------------------------------------------


STEP_CAUSES = {  # six rows of four numbers, and the first step touches two
    r"a \(4\) must match the size of tensor b \(2\)": "`g` has two dimensions, and the root has one number for each "
    "row: give it a second dimension, `.sqrt()[:, None]`.",
    r"a \(2\) must match the size of tensor b \(4\) at non-singleton dimension 1": "`squares` has one number for each "
    "row, and `g.square()` has one for each weight: take the mean over the columns, `.mean(1)`.",
    r"a \(2\) must match the size of tensor b \(4\)": "That is the mean over the rows, one number for each column. "
    "Each row needs its own, the mean over its columns: `.mean(1)`.",
    r"tensor [ab] \(6\)": "`g` has a row for each touched row only: use `rows[places]` and `squares[places]`, and not "
    "all rows.",
    "doesn't match the broadcast shape": "`squares[places]` has one dimension, and what you add to it has two: use "
    "`.mean(1)` without `keepdim`.",
}


def only_touched_rows_move(student: Reader) -> str:
    g = torch.Generator().manual_seed(student.seed)
    rows = torch.randn(6, 4, generator=g, dtype=torch.float64)
    squares = torch.rand(6, generator=g, dtype=torch.float64) + 0.5
    places = [torch.tensor([1, 4]), torch.tensor([0, 4, 5]), torch.tensor([1])]
    steps = [(p, torch.randn(len(p), 4, generator=g, dtype=torch.float64)) for p in places]
    got = _explained(student, "step_rows", (rows, squares, steps, 0.3), _steps, STEP_CAUSES)
    want_rows, want_squares = rows.clone(), squares.clone()
    for p, gradient in steps:
        step_rows(want_rows, want_squares, p, gradient, 0.3)
    _state_is_right(student, got, rows, squares, steps, want_rows, want_squares)
    return (
        "Three steps touch four of six rows. Each sum of squares grew before its row moved, and the two other rows did "
        "not change."
    )


def _steps(fn: Callable[..., Any], x: Any, group: Group) -> Any:
    rows, squares = x[0].clone(), x[1].clone()
    for places, gradient in x[2]:
        fn(rows, squares, places.clone(), gradient.clone(), x[3])
    return rows, squares


def _state_is_right(
    student: Reader, got: Any, rows: Tensor, squares: Tensor, steps: Sequence[Any], want_rows: Tensor,
    want_squares: Tensor,
) -> None:  # fmt: skip
    new, state = got
    still = torch.equal(new, rows)
    student.expect(not (still and torch.equal(state, squares)), "Nothing changed: `rows` and `squares` are to be "
                   "changed in place, as in `rows[places] -= ...`.")  # fmt: skip
    by_state = (
        ("sum", "You added the sum of g² over the columns. Row-wise Adagrad adds their mean."),
        ("mean", ""),
        ("whole", "You added one mean for all rows together. Each row has its own: `.mean(1)`."),
        ("set", "The sum of squares was replaced. It should grow from step to step: `+=`."),
        ("none", "`squares` is as before. Each step adds the mean of g² to those of the touched rows."),
        ("unsquared", "You added the mean of g and not that of g²."),
        ("late", "You added the square of the mean. Square first, and then take the mean: `g.square().mean(1)`."),
    )
    for name, why in by_state:
        trial = squares.clone()
        for p, g in steps:
            add = {"sum": g.square().sum(1), "mean": g.square().mean(1), "none": torch.zeros(len(p)).double(),
                   "unsquared": g.mean(1), "late": g.mean(1).square(), "whole": g.square().mean().expand(len(p)),
                   "set": g.square().mean(1) - trial[p]}[name]  # fmt: skip
            trial[p] += add
        if why and bool((state - trial).abs().max() < NEAR):
            student.expect(False, why)
    untouched = [r for r in range(len(rows)) if not any(r in p.tolist() for p, _ in steps)]
    student.expect(torch.equal(state[untouched], squares[untouched]), "The sum of a row that no step touched has "
                   "changed: change only `squares[places]`.")  # fmt: skip
    student.expect(bool((state - want_squares).abs().max() < NEAR), "`squares` should grow by the mean of g² of each "
                   "touched row, and has other values.")  # fmt: skip
    student.expect(not still, "`squares` is right, but no weight has moved: subtract from `rows[places]`.")
    student.expect(torch.equal(new[untouched], rows[untouched]), "A row that no step touched has moved: change only "
                   "`rows[places]`.")  # fmt: skip
    for name, why in (
        ("old", "The step was divided by the old sum. First add the new mean of squares, then divide by its root."),
        ("unrooted", "The step was divided by the sum of squares itself, and not by its root."),
        ("up", "The rows moved uphill: subtract the step."),
        ("sgd", "The step is that of SGD: divide it by the root of the row's sum."),
        ("unscaled", "The learning rate is missing."),
    ):
        if bool((new - _other_steps(name, rows, squares, steps)).abs().max() < 1e-7):
            student.expect(False, why)
    student.expect(bool((new - want_rows).abs().max() < 1e-7), "`squares` is right, and the rows are not: a step is "
                   "lr · g / (√squares + 1e-8), with one root for each row.")  # fmt: skip


def _other_steps(name: str, rows: Tensor, squares: Tensor, steps: Sequence[Any]) -> Tensor:
    new, state, lr = rows.clone(), squares.clone(), 0.3
    for p, g in steps:
        old = state[p].clone()
        state[p] += g.square().mean(1)
        root = {"old": old.sqrt(), "unrooted": state[p], "sgd": torch.ones_like(old)}.get(name, state[p].sqrt())
        factor = {"up": -lr, "unscaled": 1.0}.get(name, lr)
        new[p] -= factor * g / (root[:, None] + 1e-8)
    return new


@you_write(only_touched_rows_move)
def step_rows(rows: Tensor, squares: Tensor, places: Tensor, g: Tensor, lr: float) -> None:
    """Row-wise Adagrad on rows[places], whose gradients are g (u, dim), in place."""
    squares[places] += g.square().mean(1)
    rows[places] -= lr * g / (squares[places].sqrt()[:, None] + 1e-8)


# Masks ---------------------------------------------------------------------------------------------------------------


def masks_cancel(student: Reader) -> str:
    for n in (2, 3, 5):
        g = torch.Generator().manual_seed(student.seed + n)
        numbers = [torch.randint(-1000, 1000, (6,), generator=g).int() for _ in range(n)]
        inputs = [(numbers[c], {p: _secret(student.seed, c, p) for p in range(n) if p != c}, c) for c in range(n)]
        try:
            run = student.through("masked", n, inputs, _masked)
        except StudentError as error:
            raw = ("buffer API", "cannot unpack", "'int' and 'bytes'")
            said = "`secrets` is a dict, partner -> secret: go through `secrets.items()`, which has both."
            student.expect(not any(words in f"{error}" for words in raw), said)
            student.expect("'Tensor' and 'bytes'" not in f"{error}", "A secret is not yet a mask: `stream(secret, "
                           "len(numbers))` makes the mask of it.")  # fmt: skip
            raise
        _masks_are_right(student, run, n, numbers, inputs)
    return "For 2, 3 and 5 clients what each sends looks like noise, and the sum is exact to the last bit."


def _secret(seed: int, a: int, b: int) -> bytes:
    return f"{seed} {min(a, b)} {max(a, b)}".encode()


def _masked(fn: Callable[..., Any], x: tuple[Tensor, Mapping[int, bytes], int], group: Group) -> Any:
    mine = x[0].clone()
    return fn(mine, dict(x[1]), x[2]), torch.equal(mine, x[0])


def _masks_are_right(student: Reader, run: Evidence, n: int, numbers: Sequence[Tensor], inputs: Sequence[Any]) -> None:
    about = f"With {n} clients"
    sent = []
    for c, (got, _) in enumerate(run.results):
        student.expect(isinstance(got, Tensor) and got.shape == numbers[c].shape, "{about} client {c} returned {got}: "
                       "return a tensor like `numbers`.", about=about, c=c, got=type(got).__name__)  # fmt: skip
        student.expect(not got.is_floating_point(), "{about} the result has floating point numbers. In them large "
                       "masks round the numbers away: compute in int32, which wraps around.", about=about)  # fmt: skip
        student.expect(got.dtype == torch.int32, "{about} the result is {got}, which does not wrap around at 32 bits "
                       "as the masks do: keep int32.", about=about, got=str(got.dtype))  # fmt: skip
        sent.append(got)
    total = torch.stack(sent).sum(0, dtype=torch.int32)
    right = torch.stack(list(numbers)).sum(0, dtype=torch.int32)

    def trial(sign: Callable[[int, int], int], own: bool = True) -> Tensor:
        out = torch.zeros_like(right)
        for c, (x, secrets, _) in enumerate(inputs):
            out += x * own
            for p, secret in secrets.items():
                out += sign(c, p) * stream(secret, len(x))
        return out

    slips = (
        (trial(lambda c, p: 1), "every client adds every mask, so each is in the sum twice. In a pair one must add it "
         "and the other take it away."),
        (trial(lambda c, p: -1), "every client takes every mask away, so none of them cancel. In a pair one must add."),
        (trial(lambda c, p: int(c < p)), "the lower client of a pair adds the mask, but the higher one does not take "
         "it away."),
        (trial(lambda c, p: (1 if c < p else -1) * (p == min(inputs[c][1]))), "each client has used the mask of its "
         "first partner only. Does your `return` stand inside the loop? Then it ends the function in the first round: "
         "move it to the left, below the loop."),
        (trial(lambda c, p: (1 if c < p else -1) * (p == max(inputs[c][1]))), "each client has used the mask of its "
         "last partner only. Does each round begin again with `numbers`? Add to what the round before has left."),
        (trial(lambda c, p: 0, own=False), "the masks cancel, but the numbers are missing: add the masks *to* them."),
    )  # fmt: skip
    if not torch.equal(total, right):
        why = next((said for wrong, said in slips if torch.equal(total, wrong)), "the masks do not cancel. Which of "
                   "two clients adds the mask of their pair?")  # fmt: skip
        student.expect(False, "{about} the sum of what was sent is not the sum of the numbers: " + why, about=about)
    for c, (x, secrets, _) in enumerate(inputs):
        student.expect(not torch.equal(sent[c], x), "{about} client {c} sends its numbers as they are: the server can "
                       "read them.", about=about, c=c)  # fmt: skip
        one = x + sum((1 if c < p else -1) * stream(secret, 1) for p, secret in secrets.items())
        student.expect(not torch.equal(sent[c], one), "{about} the sum is exact, but each mask is one number, the same "
                       "for all of `numbers`. Every number needs its own: `stream(secret, len(numbers))`.",
                       about=about)  # fmt: skip
        full = x.clone()
        for p, secret in secrets.items():
            full += (1 if c < p else -1) * stream(secret, len(x))
        down = x.clone()
        for p, secret in secrets.items():
            down += (-1 if c < p else 1) * stream(secret, len(x))
        student.expect(not torch.equal(sent[c], down) or n == 1, "{about} the sum is exact, but the signs are the "
                       "other way round. All must agree: the lower client adds.", about=about)  # fmt: skip
        student.expect(torch.equal(sent[c], full), "{about} the sum is exact, but client {c} has not used the mask of "
                       "every partner.", about=about, c=c)  # fmt: skip
    student.expect(all(kept for _, kept in run.results), "The sum is right, but `numbers` was changed: begin with "
                   "`numbers.clone()`.")  # fmt: skip


@you_write(masks_cancel)
def masked(numbers: Tensor, secrets: Mapping[int, bytes], me: int) -> Tensor:
    """`numbers` (int32) + the mask of each higher partner, - that of each lower one."""
    total = numbers.clone()
    for partner, secret in secrets.items():
        mask = stream(secret, len(numbers))
        total += mask if me < partner else -mask
    return total
