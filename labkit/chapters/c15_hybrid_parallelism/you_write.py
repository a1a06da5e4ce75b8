"""What chapter 15 asks its reader to write: groups on a mesh, a norm that counts once, a step's seconds, a search."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import labkit
from labkit import cost
from labkit.collectives import all_reduce
from labkit.cost.units import format_seconds
from labkit.grading.checks.student import NotRight
from labkit.grading.writing import Reader, you_write
from labkit.parallel import Layout
from labkit.wire import Group, Link, Network

# 1: who works with whom ------------------------------------------------------------------------------------------


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
            return f"its group of {axis} has {len(mine)} ranks, {mine}, and that axis has a size of {sizes[axis]}."
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


@you_write(everybody_finds_his_groups)
def my_groups(rank: int, sizes: Mapping[str, int]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """My coordinate along each axis, and the ranks that differ from me in it alone."""
    at, groups, stride = {}, {}, math.prod(sizes.values())
    for axis, size in sizes.items():
        stride //= size
        at[axis] = rank // stride % size
        first = rank - at[axis] * stride
        groups[axis] = [first + i * stride for i in range(size)]
    return at, groups


# 2: a norm that counts everything once ---------------------------------------------------------------------------


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


@you_write(everything_counts_once)
def grad_norm(pieces: Sequence[tuple[Tensor, int]], group: Group) -> float:
    """The norm of the whole gradient. pieces: (gradient, how many ranks hold it)."""
    total = torch.zeros(1, dtype=torch.float64)
    for gradient, copies in pieces:
        total += gradient.double().square().sum() / copies
    return all_reduce(total, group).sqrt().item()


# 3: the seconds of a step -----------------------------------------------------------------------------------------

BANDWIDTH = 1e9  # of every link; messages have no latency
LAYER, SUM, GRADIENTS = 6e-3, 400_000, 2_000_000  # seconds of a whole layer; bytes of a sum, and of the gradients


def a_step(group: Group, t: int, p: int, d: int, m: int, layers: int) -> None:
    """Forward passes of all microbatches and then their backward passes, on the virtual clock; and the gradients."""
    layout = Layout({"pp": p, "dp": d, "tp": t})
    stage = layout.coordinates(group.rank)["pp"]
    ranks = {axis: layout.group_of(group.rank, axis) for axis in layout.axes}
    tensor, data = (group.subgroup(ranks[axis]) for axis in ("tp", "dp"))
    activation = torch.zeros(1)
    for part, way in ((1 / 3, 1), (2 / 3, -1)):  # forward, backward
        before, after = stage - way, stage + way
        for _ in range(m):
            if 0 <= before < p:
                group.recv(activation, ranks["pp"][before])
            for _ in range(layers // p):
                group.compute(part * LAYER / t)
                if t > 1:
                    all_reduce(torch.zeros(SUM // 4), tensor, algorithm="ring")
            if 0 <= after < p:
                group.send(activation, ranks["pp"][after])
    if d > 1:
        all_reduce(torch.zeros(GRADIENTS // 4), data, algorithm="ring")


def the_step_takes_that_long(student: Reader) -> str:
    runs = ((1, 1, 1, 2, 2), (2, 1, 1, 3, 3), (1, 3, 1, 4, 6), (2, 2, 1, 5, 2), (1, 2, 2, 3, 4))  # t, p, d, m, layers
    asked, took = [], []
    for t, p, d, m, layers in runs:
        network = Network(intra=Link(BANDWIDTH, 0.0))
        run = labkit.launch(a_step, t * p * d, t, p, d, m, layers, clock="virtual", network=network)
        sums, gradients = (
            cost.ring_all_reduce_time(nbytes, n, 0.0, 1 / BANDWIDTH) if n > 1 else 0.0
            for nbytes, n in ((SUM, t), (GRADIENTS, d))
        )
        asked.append((t, p, m, layers, LAYER, 2 * sums, gradients))
        took.append(run.trace.duration)
    said = student.through("step_seconds", 1, [asked], lambda fn, rows, group: [fn(*row) for row in rows]).results[0]
    for row, seconds, got in zip(asked, took, said, strict=True):
        student.expect(isinstance(got, int | float), "Return a number of seconds: you returned {got!r}.", got=got)
        t, p, m, layers, layer, sums, gradients = row
        why = next((text for wrong, text in _slips(*row) if abs(got - wrong) < 1e-4 * wrong), "")
        told = f"{m} microbatches through {p} stage{'s' * (p > 1)} of {t} rank{'s' * (t > 1)}, {layers} layers in all"
        told += f", a layer of {format_seconds(layer, 3)}"
        told += f", sums of {format_seconds(sums, 3)} in a layer" if sums else ""
        told += f", gradients of {format_seconds(gradients, 3)}" if gradients else ""
        student.expect(
            abs(got - seconds) < 1e-4 * seconds,
            f"A real step ({{told}}) took {{took}}, and you say {{got}}. {why}".strip(),
            told=told, took=format_seconds(seconds, 3), got=format_seconds(got, 3) if got >= 0 else f"{got:.3g} s",
        )  # fmt: skip
    return "Five steps on 1 to 4 real ranks took as long as you say, with sums, stages and gradients."


def _slips(
    t: int, p: int, m: int, layers: int, layer: float, sums: float, gradients: float
) -> list[tuple[float, str]]:  # fmt: skip
    each = layer / t + sums
    stage, turns = layers / p * each, m + p - 1
    return [
        (m * stage + gradients, "Is every stage at work from the first moment? The last one gets its first microbatch "
         "only when it has been through all the others."),
        (turns * layers * each + gradients, "Does each stage still have all of the layers?"),
        (turns * layers / p * (layer + sums) + gradients, "Is a layer still computed whole by each of the t ranks?"),
        (turns * layers / p * (layer + sums) / t + gradients, "The t ranks share out the computing of a layer. Does a "
         "sum become shorter as well? `sums` is already what they wait with t ranks."),
        (turns * layers / p * layer / t + gradients, "Where are the sums? Nothing can be computed while the ranks of a "
         "layer wait for them."),
        (turns * (layers / p * layer / t + sums) + gradients, "`sums` is what one layer waits for, and a stage has "
         "several layers."),
        (turns * stage, "Where are the gradients? They are exchanged once, after all microbatches."),
        (turns * (stage + gradients), "The gradients are exchanged once a step, and not for each microbatch."),
        (turns * stage + m * gradients, "The gradients are exchanged once a step, and not for each microbatch."),
        (turns * stage + gradients / m, "The microbatches do not share out the gradients: these are exchanged once, "
         "whole, after all of them."),
        ((m + p) * stage + gradients, "This is one turn too many: a pipeline of one stage needs m turns."),
        (m * p * stage + gradients, "This is as if one microbatch had to leave the last stage before the next may "
         "enter the first. All stages work at the same time."),
    ]  # fmt: skip


@you_write(the_step_takes_that_long)
def step_seconds(t: int, p: int, m: int, layers: int, layer: float, sums: float, gradients: float) -> float:
    """Seconds of a step: m microbatches through p stages, each layer on t ranks."""
    stage = layers / p * (layer / t + sums)  # of one microbatch
    return (m + p - 1) * stage + gradients


# 4: the search ---------------------------------------------------------------------------------------------------

EMPTY = re.compile(r"(min|max)\(\).*empty")
Fits = Callable[[int, int, int], bool]
Seconds = Callable[[int, int, int], float]


def the_fastest_that_fits(student: Reader) -> str:
    jobs = (8, 8, 8, 30.0), (48, 12, 9, 9.0), (12, 8, 3, 100.0), (8, 8, 3, 23.0), (8, 3, 8, 50.0), (8, 4, 4, 0.01)
    for gpus, heads, layers, limit in jobs:  # in the fourth only t = heads fits, and in the fifth only p = layers

        def call(fn: Callable[..., Any], x: Any, group: Group) -> Any:
            gpus, heads, layers, limit = x
            asked: list[tuple[int, int, int]] = []

            def fits(t: int, p: int, d: int) -> bool:
                return _bytes(t, p, d) <= limit

            def seconds(t: int, p: int, d: int) -> float:
                asked.append((t, p, d))
                return _seconds(t, p, d)

            try:
                got = fn(gpus, heads, layers, fits, seconds)
            except ValueError as error:  # min() of no cuts, in whatever words this Python has
                if not EMPTY.search(str(error)):
                    raise
                got = "nothing to choose from"
            return (list(got) if isinstance(got, (tuple, list)) else got), asked

        ((got, asked),) = student.through("best_cut", 1, [(gpus, heads, layers, limit)], call).results
        _judge_cut(student, got, asked, gpus, heads, layers, limit)
    return (
        "For 8, 12 and 48 GPUs you find the fastest cut that fits, also with sizes that are no powers of two, with as "
        "many tensor ranks as heads or stages as layers, and None where nothing fits."
    )


def _bytes(t: int, p: int, d: int) -> float:
    return 160 / (t * p) + 20 / t + 0.1 * p


def _seconds(t: int, p: int, d: int) -> float:
    if d < 1:
        return 0.0  # no cut, which is said when it is returned
    return 10 / (t * p * d) * (1 + 0.4 * (t - 1) ** 1.5) * (1 + (p - 1) / 4) + 3 * (1 - 1 / d) / (t * p)


def _cuts(gpus: int, heads: int, layers: int) -> list[tuple[int, int, int]]:
    return [
        (t, p, gpus // (t * p))
        for t in range(1, heads + 1)
        for p in range(1, layers + 1)
        if heads % t == 0 and gpus % (t * p) == 0
    ]


def _left_out(right: tuple[int, int, int], layers: int, two: bool = True) -> str:
    """Why the right cut may be missing from a reader's list. two: some cut in powers of two is as good a suspect."""
    uneven = (
        f"p need not divide the layers: of {right[1]} stages some have one of the {layers} layers more than others."
    )
    powers = "Did you try sizes that are no powers of two?"
    return "".join(f" {said}" for said, so in ((powers, not two), (uneven, layers % right[1])) if so)


def _last_of_a_range(fitting: Sequence[tuple[int, int, int]], heads: int, layers: int) -> str:
    """A question, where the only cut that fits has t = heads or p = layers; else ""."""
    ((t, p, _), *more) = fitting
    said = (
        f"t = {t}, which is all of the heads" if t == heads else
        f"p = {p}, which is all of the layers" if p == layers else ""
    )  # fmt: skip
    return f" Did you try {said}? `range` leaves out its end." if said and not more else ""


def _judge_cut(
    student: Reader, got: Any, asked: Sequence[Sequence[int]], gpus: int, heads: int, layers: int, limit: float
) -> None:  # fmt: skip
    about = {"gpus": gpus, "heads": heads, "layers": layers}
    cuts = _cuts(gpus, heads, layers)
    fitting = [cut for cut in cuts if _bytes(*cut) <= limit]
    student.expect(
        got != "nothing to choose from",
        "With {gpus} GPUs, {heads} heads and {layers} layers your list of cuts is empty, and you asked for the "
        "smallest of it. {why}",
        why="No cut fits there, so return None: `default=None` does that." if not fitting
        else f"Some cuts fit there: do all of them get into the list?{_last_of_a_range(fitting, heads, layers)}",
        **about,
    )  # fmt: skip
    if not fitting:
        student.expect(got is None, "No cut of {gpus} GPUs fits here, so return None, and not {got}.", got=got, **about)
        return
    right = min(fitting, key=lambda cut: _seconds(*cut))
    two = [c for c in fitting if all(n & (n - 1) == 0 for n in c[:2])]
    hint = _left_out(right, layers, bool(two))
    hint = _last_of_a_range(fitting, heads, layers) or hint
    student.expect(
        got is not None, "You returned None for {gpus} GPUs, {heads} heads and {layers} layers, and {best} fits.{hint}",
        best=" x ".join(map(str, right)), hint=hint, **about,
    )  # fmt: skip
    student.expect(
        isinstance(got, list) and len(got) == 3 and all(isinstance(x, int) for x in got),
        "Return three whole numbers, (t, p, d), and not {got}.", got=repr(got)[:40],
    )  # fmt: skip
    cut: tuple[int, int, int] = tuple(got)
    if cut == right:
        none = [tuple(x) for x in asked if tuple(x) not in cuts]
        student.expect(
            not none,
            "The answer is right, but you also asked for the seconds of {cut}, which is no cut: t must divide the "
            "{heads} heads, and t x p the {gpus} GPUs.",
            cut=none and none[0], **about,
        )  # fmt: skip
        large = [tuple(x) for x in asked if tuple(x) not in fitting]
        student.expect(
            not large,
            "The answer is right, but you asked for the seconds of {cut}, which does not fit. With 131,072 GPUs "
            "there are many of those, so look at the memory first.",
            cut=large and large[0],
        )  # fmt: skip
        return
    t, p, d = cut
    told = f"{t} x {p} x {d}"
    best = " x ".join(map(str, right))
    if t * p * d != gpus:
        raise NotRight(f"{told} = {t * p * d}, and there are {gpus} GPUs: what is left for d is gpus // (t * p).")
    if heads % t:
        raise NotRight(f"You took t = {t}, which does not divide the {heads} heads: a head cannot be cut.")
    if p > layers:
        raise NotRight(f"You took p = {p}, and the model has only {layers} layers: a stage needs at least one.")
    if cut != tuple(right) and (cut[1], cut[0], cut[2]) == tuple(right):
        raise NotRight(f"{told} has t and p the other way round: the answer is (t, p, d).")
    if cut not in fitting:
        raise NotRight(f"{told} is fast, but it does not fit: ask `fits` first.")
    if cut == min(fitting, key=lambda c: _bytes(*c)) or cut == max(fitting, key=lambda c: _seconds(*c)):
        raise NotRight(f"{told} fits, but it is not the fastest. Compare `seconds`, and keep the smallest.")
    if two and cut == min(two, key=lambda c: _seconds(*c)):
        raise NotRight(
            f"With {gpus} GPUs, {heads} heads and {layers} layers {best} is faster than {told}. Did you try sizes "
            f"that are no powers of two?"
        )
    if cut == fitting[0] or cut == fitting[-1]:
        also = " (p need not divide the layers)" if layers % right[1] else ""
        raise NotRight(f"{told} is the first or the last that fits. Go through all cuts{also}, and keep the fastest.")
    even = [c for c in fitting if layers % c[1] == 0]
    if layers % right[1] and even and cut == min(even, key=lambda c: _seconds(*c)):
        raise NotRight(
            f"With {gpus} GPUs, {heads} heads and {layers} layers {best} is faster than {told}."
            f"{_left_out(right, layers)}"
        )
    raise NotRight(f"With {gpus} GPUs, {heads} heads and {layers} layers {best} fits and is faster than {told}.")


@you_write(the_fastest_that_fits)
def best_cut(gpus: int, heads: int, layers: int, fits: Fits, seconds: Seconds) -> tuple[int, int, int] | None:
    """The fastest (t, p, d) that fits, or None. Ask `seconds` of cuts that fit only."""
    fitting = []
    for t in range(1, heads + 1):
        for p in range(1, layers + 1):
            if heads % t == 0 and gpus % (t * p) == 0:
                cut = t, p, gpus // (t * p)
                if fits(*cut):
                    fitting.append(cut)
    return min(fitting, key=lambda cut: seconds(*cut), default=None)
