"""How chapter 15 checks what its reader writes about a mesh: groups of ranks, and a norm that counts once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from labkit.grading.checks.student import NotRight
from labkit.grading.writing import Reader
from labkit.parallel import Layout
from labkit.wire import Group

# Who works with whom ---------------------------------------------------------------------------------------------


def everybody_finds_his_groups(student: Reader) -> str:
    for sizes in ({"dp": 2, "pp": 1, "tp": 2}, {"pp": 2, "dp": 3}, {"dp": 2, "pp": 2, "tp": 2}):
        n, layout = math.prod(sizes.values()), Layout(sizes)

        def call(fn: Callable[..., Any], mine: Mapping[str, int], group: Group) -> Any:
            return _data(fn(group.rank, dict(mine)))

        got = student.through("my_groups", n, [sizes] * n, call).results
        written = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        for rank, one in enumerate(got):
            why = _what_is_wrong(one, rank, layout)
            student.expect(not why, "On a mesh of {written}, rank {rank}: {why}", written=written, rank=rank, why=why)
    return "On meshes of 4, 6 and 8 ranks, with sizes of 1, 2 and 3, every rank found its coordinates and its groups."


def _data(got: Any) -> Any:
    if isinstance(got, tuple) and len(got) == 2 and all(isinstance(x, Mapping) for x in got):
        at, groups = got
        coordinates = {str(k): _list(v) if isinstance(v, list | range) else v for k, v in at.items()}
        return coordinates, {str(k): _list(v) for k, v in groups.items()}
    return repr(got)[:60]


def _list(ranks: Any) -> Any:
    return [int(r) for r in ranks] if isinstance(ranks, (list, tuple, range)) else repr(ranks)[:40]


def _what_is_wrong(got: Any, rank: int, layout: Layout) -> str:
    """In a clause, what is wrong with the coordinates and groups of a rank; "" if nothing is."""
    axes, sizes = layout.axes, layout.sizes
    if not isinstance(got, tuple):
        nothing = "None was returned" if got == "None" else f"{got} was returned"
        return f"{nothing}, and two dicts are expected: `at` and `groups`, both with an entry for each axis."
    at, groups = got
    for name, one in (("at", at), ("groups", groups)):
        if set(one) != set(axes):
            return f"`{name}` has the axes {', '.join(one) or '(none)'}, and should have {', '.join(axes)}."
    wanted = layout.coordinates(rank)
    if all(isinstance(one, list) for one in at.values()):
        return "the two dicts are the wrong way round: `at`, with a number for each axis, comes first."
    if at != wanted:
        return _coordinates(at, rank, layout, wanted)
    for axis in axes:
        right, mine = layout.group_of(rank, axis), groups[axis]
        if mine == right:
            continue
        if not isinstance(mine, list):
            return f"the group of {axis} is {mine}, and should be a list of ranks."
        if sorted(mine) == right:
            return f"the group of {axis} has the right ranks, but in the order {mine}: take them by their coordinate."
        backwards = Layout(dict(reversed(list(sizes.items()))))
        if all(groups[a] == backwards.group_of(rank, a) for a in axes):
            return (
                f"its group of {axis} is {mine}, as if the *first* axis were the innermost. The last one is: its ranks "
                "are neighbours."
            )
        if len(mine) != sizes[axis]:
            some = f"{len(mine)} rank{'s' * (len(mine) != 1)}"
            return f"its group of {axis} has {some}, {mine}, and that axis has a size of {sizes[axis]}."
        if rank not in mine:
            return (
                f"its own number is not in its group of {axis}, {mine}. From rank {rank}, go back in steps of the "
                f"stride to the first member, and from there forward."
            )
        if mine == list(range(min(mine), min(mine) + len(mine))) and layout.stride(axis) > 1 and sizes[axis] > 1:
            return (
                f"its group of {axis} is {mine}, which are neighbours. Neighbours along {axis} are "
                f"{layout.stride(axis)} ranks apart: the product of the sizes of the axes after it."
            )
        if mine == [rank + i * layout.stride(axis) for i in range(sizes[axis])]:
            return (
                f"its group of {axis} begins with itself, {mine}. From rank {rank}, go back in steps of the stride to "
                "the first member, and from there forward."
            )
        return f"its group of {axis} is {mine}, and should be {right}: the ranks that differ in {axis} alone."
    return ""


def _coordinates(at: Mapping[str, Any], rank: int, layout: Layout, wanted: Mapping[str, int]) -> str:
    sizes = layout.sizes
    backwards = Layout(dict(reversed(list(sizes.items())))).coordinates(rank)
    if at == backwards:
        return (
            f"its coordinates are {_pairs(at)}, as if the *first* axis were the innermost. The last one is: its "
            f"coordinate changes from each rank to the next, so this should be {_pairs(wanted)}."
        )
    if at == {axis: rank % size for axis, size in sizes.items()}:
        return (
            "each coordinate is `rank % size`, which is right for the last axis alone. Divide by the stride of the "
            "axis first."
        )
    if at == {axis: rank // layout.stride(axis) for axis in sizes}:
        return (
            f"its coordinates are {_pairs(at)}, and some are too large: after the division by the stride take what "
            f"is left modulo the size of the axis."
        )
    return f"its coordinates are {_pairs(at)}, and should be {_pairs(wanted)}."


def _pairs(at: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis} {n}" for axis, n in at.items())


# A norm that counts everything once -------------------------------------------------------------------------------


def everything_counts_once(student: Reader) -> str:
    for dp, tp in ((2, 2), (1, 3), (3, 1)):
        n = dp * tp
        matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(student.seed + n), dtype=torch.float64)
        vector = torch.randn(4, generator=torch.Generator().manual_seed(student.seed + 7 * n), dtype=torch.float64)
        inputs = [
            [*((row.clone(), dp) for row in matrix.tensor_split(tp)[r % tp]), (vector.clone(), dp * tp)]
            for r in range(n)
        ]  # fmt: skip

        def call(fn: Callable[..., Any], mine: Any, group: Group) -> Any:
            given = [(g.clone(), copies) for g, copies in mine]
            got = fn(list(given), group)
            changed = any(not torch.equal(g, was) for (g, _), (was, _) in zip(given, mine, strict=True))
            return float(got) if isinstance(got, (int, float)) else repr(got)[:40], changed

        run = student.through("grad_norm", n, inputs, call)
        right = float((matrix.square().sum() + vector.square().sum()).sqrt())
        for rank, (got, changed) in enumerate(run.results):
            _say_why(student, got, right, inputs, rank, dp, tp)
            student.expect(
                not changed,
                "The norm is right, but your function has changed the gradients of rank {rank}, and the update still "
                "needs them. `square_`, `mul_` and `/=` change a tensor; `square`, `*` and `/` make a new one.",
                rank=rank,
            )  # fmt: skip
        sent = max(run.bytes_sent)
        student.expect(
            sent <= 16 * (n - 1),  # one number to everybody and one back; a sum for each piece is more
            "The norm is right, but rank {rank} sent {sent} bytes. One number of 8 bytes is enough: square and add "
            "up all {pieces} pieces before you send. (Stages hold different numbers of pieces, so with a sum for each "
            "piece they would wait for each other forever.)",
            rank=run.bytes_sent.index(sent), sent=sent, pieces=len(inputs[0]),
        )  # fmt: skip
    return (
        "On meshes of 2 x 2, 1 x 3 and 3 x 1 ranks all of them have the norm of one device, and one number travelled."
    )


def _say_why(student: Reader, got: Any, right: float, inputs: Any, rank: int, dp: int, tp: int) -> None:
    if isinstance(got, float) and abs(got - right) <= 1e-12 * right:
        return
    student.expect(
        not isinstance(got, float) or abs(got - right) > 1e-6 * right,
        "With {dp} x {tp} ranks the norm is right to about 7 digits only: somewhere the sum has 32 bits. Make tensors "
        "with `dtype=torch.float64`; without that `torch.zeros` and `torch.tensor` have 32.",
        dp=dp, tp=tp,
    )  # fmt: skip
    student.expect(isinstance(got, float), "Return one number, the norm, and not {got}.{hint}", got=got,
                   hint=" `.item()` makes a number of a tensor." if str(got).startswith("tensor") else "")  # fmt: skip
    squares = [[float(g.square().sum()) for g, _ in mine] for mine in inputs]
    copies = [[c for _, c in mine] for mine in inputs]
    once = [sum(s / c for s, c in zip(a, b, strict=True)) for a, b in zip(squares, copies, strict=True)]
    slips = {
        math.sqrt(sum(map(sum, squares))): "every rank added all that it holds, so what {copies} ranks hold was "
        "counted {copies} times. Divide each square sum by the copies.",
        math.sqrt(once[rank]): "this is the part of one rank. Add up the square sums of all ranks with `all_reduce`.",
        math.sqrt(sum(squares[rank])): "these are the pieces of one rank alone. Add up over the ranks with "
        "`all_reduce`, each piece divided by its copies.",
        sum(map(math.sqrt, once)): "norms were added. Add up *squares*, and take the root of the sum at the end.",
        right**2: "this is the square of the norm. Take the root.",
        math.sqrt(sum(s / c**2 for a, b in zip(squares, copies, strict=True) for s, c in zip(a, b, strict=True))):
        "pieces were divided by their copies *before* they were squared. Divide the square sums.",
        math.sqrt(sum(map(sum, squares)) / (dp * tp)): "the sum was divided by the number of ranks. Each piece has "
        "its own number of copies, and a piece that only {dp} of {n} ranks hold counts too little then.",
        math.sqrt(right**2 / (dp * tp)): "the sum was divided by the number of ranks at the end. It is complete "
        "without that: each piece has been divided by its copies.",
    }  # fmt: skip
    why = next((said for wrong, said in slips.items() if abs(got - wrong) <= 1e-6 * wrong), "")
    raise NotRight(
        f"With {dp} x {tp} ranks, rank {rank} has a norm of {got:.4g}, and one device has {right:.4g}: "
        + (why or "the sum of all squares, each piece divided by its copies, and the root of that.").format(
            copies=dp * tp, dp=dp, n=dp * tp
        )
    )
