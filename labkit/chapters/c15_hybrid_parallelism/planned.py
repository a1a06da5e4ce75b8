"""How chapter 15 checks what its reader writes about plans: bytes of a GPU, seconds of a step, and a search."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

import labkit
from labkit import cost
from labkit.collectives import all_reduce
from labkit.cost.units import format_seconds
from labkit.grading.checks.student import NotRight
from labkit.grading.writing import Reader
from labkit.parallel import Layout
from labkit.wire import Group, Link, Network

# What a GPU holds ------------------------------------------------------------------------------------------------

PARAMS = 960  # of a model, so that all cuts below divide it


def held_for_real(group: Group, t: int, p: int, d: int, mixed: bool) -> int:
    """Bytes of the tensors of a rank of t x p x d that has its part of the model, and its share of Adam's state.

    mixed: weights and gradients in 16 bits, and the optimizer steps on a copy in 32.
    """
    weight = torch.nn.Parameter(torch.ones(PARAMS // (t * p), dtype=torch.bfloat16 if mixed else torch.float32))
    weight.sum().backward()
    share = torch.nn.Parameter(weight.detach().tensor_split(d)[group.rank % d].float())
    share.sum().backward()
    optimizer = torch.optim.AdamW([share])
    optimizer.step()
    state = optimizer.state[share]
    kept = [weight, weight.grad, state["exp_avg"], state["exp_avg_sq"], *([share] if mixed else [])]
    return sum(x.nbytes for x in kept if x is not None)


def ranks_hold_as_much(student: Reader) -> str:
    runs = ((1, 1, 1, False), (1, 1, 4, True), (2, 3, 1, False), (1, 2, 2, True))  # t, p, d, mixed
    asked, held = [], []
    for t, p, d, mixed in runs:
        held.append(max(labkit.launch(held_for_real, t * p * d, t, p, d, mixed).results))
        asked.append((PARAMS, t, p, d, *((2, 2, 12) if mixed else (4, 4, 8))))
    said = student.through("state_bytes", 1, [asked], lambda fn, rows, group: [fn(*row) for row in rows]).results[0]
    for row, nbytes, got in zip(asked, held, said, strict=True):
        student.expect(isinstance(got, int | float), "Return a number of bytes: you returned {got!r}.", got=got)
        why = next((text for wrong, text in _slips_of_memory(*row) if abs(got - wrong) < 1e-4 * wrong), "")
        params, t, p, d, *each = row
        student.expect(
            abs(got - nbytes) < 1e-4 * nbytes,
            f"A real rank of TP{{t}} PP{{p}} DP{{d}} holds {{nbytes:,}} B of {{params}} parameters of {{each}} bytes, "
            f"and you say {{got:,}} B. {why}".strip(),
            t=t, p=p, d=d, nbytes=nbytes, params=params, each=" + ".join(map(str, each)), got=round(got, 1),
        )  # fmt: skip
    return "Real ranks hold as many bytes as you say, whatever is cut, in 32 bits and in mixed precision."


def _slips_of_memory(
    params: float, t: int, p: int, d: int, weight: float, gradient: float, optimizer: float
) -> list[tuple[float, str]]:  # fmt: skip
    mine, each = params / (t * p), weight + gradient + optimizer
    return [
        (mine * each, "ZeRO-1 divides the state of the optimizer among the d replicas."),
        (mine * each / d, "You divided everything by d, which is ZeRO-3. ZeRO-1 divides only the optimizer's bytes."),
        (mine * (weight + (gradient + optimizer) / d), "You divided the gradients by d as well, which is ZeRO-2."),
        (params * (weight + gradient + optimizer / d), "Does a rank still have the whole model? Tensor ranks have a "
         "part of each layer, and stages a part of the layers."),
        (params / t * (weight + gradient + optimizer / d), "A stage has only 1/p of the layers."),
        (params / p * (weight + gradient + optimizer / d), "A tensor rank has only 1/t of each layer."),
        (params * (weight + gradient + optimizer) / (t * p * d) / d, "You divided by d twice."),
        (params * (weight + gradient) / (t * p) + params * optimizer / d, "The optimizer's state is cut with the "
         "model, too: a rank has state only for its own parameters."),
        (mine * (weight + optimizer / d), "Where are the gradients?"),
        (mine * (weight + gradient), "Where is the optimizer's state?"),
    ]  # fmt: skip


# The seconds of a step --------------------------------------------------------------------------------------------

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


# The search --------------------------------------------------------------------------------------------------------

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


def _left_out(right: tuple[int, int, int], layers: int, *, powers: bool = False, uneven: bool = True) -> str:
    """Why the right cut may be missing from a reader's list: because it has only powers of two, or p that divide."""
    said = " p need not divide the layers: of {} stages some have one of the {} layers more than others."
    told = said.format(right[1], layers) if uneven and layers % right[1] else ""
    return told + " Did you try sizes that are no powers of two?" * powers


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
        else "Some cuts fit there: do all of them get into the list?"
        + (_last_of_a_range(fitting, heads, layers) or _left_out(min(fitting), layers)),
        **about,
    )  # fmt: skip
    if not fitting:
        student.expect(got is None, "No cut of {gpus} GPUs fits here, so return None, and not {got}.", got=got, **about)
        return
    right = min(fitting, key=lambda cut: _seconds(*cut))
    two = [c for c in fitting if all(n & (n - 1) == 0 for n in c[:2])]
    hint = _left_out(right, layers, powers=not two)
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
    even = [c for c in fitting if layers % c[1] == 0]
    powers, divides = (bool(some) and cut == min(some, key=lambda c: _seconds(*c)) for some in (two, even))
    if not powers and cut in (fitting[0], fitting[-1]):
        also = " (p need not divide the layers)" if layers % right[1] else ""
        raise NotRight(f"{told} is the first or the last that fits. Go through all cuts{also}, and keep the fastest.")
    if why := _left_out(right, layers, powers=powers, uneven=divides):
        raise NotRight(f"With {gpus} GPUs, {heads} heads and {layers} layers {best} is faster than {told}.{why}")
    raise NotRight(f"With {gpus} GPUs, {heads} heads and {layers} layers {best} fits and is faster than {told}.")
