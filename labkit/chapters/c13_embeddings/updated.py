"""Whether a reader's `sum_equal` adds up gradients of equal ids, and whether `step_rows` moves only touched rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import StudentError
from labkit.grading.writing import Reader
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


# Row-wise Adagrad ----------------------------------------------------------------------------------------------------


STEP_CAUSES = {  # six rows of four numbers, and the first step touches two
    r"a \(4\) must match the size of tensor b \(2\)": "`g` has two dimensions, and the root has one number for each "
    "row: give it a second dimension, `.sqrt()[:, None]`.",
    r"a \(2\) must match the size of tensor b \(4\) at non-singleton dimension 1": "`squares` has one number for each "
    "row, and `g.square()` has one for each weight: take the mean over the columns, `.mean(1)`.",
    r"a \(2\) must match the size of tensor b \(4\)": "That is the mean over the rows, one number for each column. "
    "Each row needs its own, the mean over its columns: `.mean(1)`.",
    r"tensor [ab] \(6\)": "`g` has a row for each touched row only: use `mine[places]` and `squares[places]`, and not "
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
    want_squares = squares.clone()
    for p, gradient in steps:
        want_squares[p] += gradient.square().mean(1)
    want_rows = _other_steps("", rows, squares, steps)  # without a slip
    _state_is_right(student, got, rows, squares, steps, want_rows, want_squares)
    quiet = [(torch.tensor([1, 4]), torch.zeros(2, 4, dtype=torch.float64))]  # a gradient may be zero
    new, _ = _explained(student, "step_rows", (rows, torch.zeros_like(squares), quiet, 0.3), _steps, STEP_CAUSES)
    student.expect(torch.equal(new, rows), "The usual rows are right. But a touched row may have a gradient of 0 "
                   "before it has had any other, and your step then divides 0 by 0: add 1e-8 to the root.")  # fmt: skip
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
    student.expect(not (still and torch.equal(state, squares)), "Nothing changed: `mine` and `squares` are to be "
                   "changed in place, as in `mine[places] -= ...`.")  # fmt: skip
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
    student.expect(not still, "`squares` is right, but no weight has moved: subtract from `mine[places]`.")
    student.expect(torch.equal(new[untouched], rows[untouched]), "A row that no step touched has moved: change only "
                   "`mine[places]`.")  # fmt: skip
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
    """The rows after steps with the slip of this name; after the right steps, if it is none."""
    new, state, lr = rows.clone(), squares.clone(), 0.3
    for p, g in steps:
        old = state[p].clone()
        state[p] += g.square().mean(1)
        root = {"old": old.sqrt(), "unrooted": state[p], "sgd": torch.ones_like(old)}.get(name, state[p].sqrt())
        factor = {"up": -lr, "unscaled": 1.0}.get(name, lr)
        new[p] -= factor * g / (root[:, None] + 1e-8)
    return new
