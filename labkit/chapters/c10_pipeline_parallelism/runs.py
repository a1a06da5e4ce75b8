"""What the checks of chapter 10 compare with where programs run: clocks, messages, and a pipeline on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.chapters.c10_pipeline_parallelism.checks import Rows, limited_1f1b, most_in_flight, why_held
from labkit.grading.checks.order import Order
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.parallel.pipeline import (
    Costs,
    Forward,
    Schedule,
    Timeline,
    WeightGradient,
    from_labels,
    gpipe,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
)
from labkit.wire.network import Link

# A schedule that was executed ---------------------------------------------------------------------------------------


def expect_real_run(student: Student, run: Evidence, x: Tensor, y: Tensor, m: int) -> None:
    """Loss, gradients and activations in flight of a chain of linear layers, a layer on each rank."""
    n = len(run.results)
    with torch.random.fork_rng(devices=[]):
        layers = []
        for rank in range(n):
            torch.manual_seed(rank)
            layers.append(nn.Linear(x.shape[1], x.shape[1]).to(x.dtype))
    loss = F.mse_loss(nn.Sequential(*layers)(x), y)
    loss.backward()
    right = [[loss.detach() if rank == n - 1 else None, layer.weight.grad, layer.bias.grad]
             for rank, layer in enumerate(layers)]  # fmt: skip
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and len(result) == 4
        student.expect(fine, f"With {n} ranks rank {rank} returned no result of the real run: leave the given lines.")
    student.expect_results(replace(run, results=[result[:3] for result in run.results]), right, within=1e-9)
    text = "With {n} ranks rank {rank} held {got} microbatches in the real run; in 1F1B it holds {expected}. {why}"
    held = [result[3] for result in run.results]
    student.expect_by_rank(held, [min(n - rank, m) for rank in range(n)], text, n=n, why=why_held)


# Messages that block ---------------------------------------------------------------------------------------------


def sent_bytes(samples: Sequence[int], itemsize: int, n: int) -> list[int]:
    """Bytes that each rank sends in a step if microbatch k is samples[k] numbers: activations, and gradients."""
    each = itemsize * sum(samples)
    return [each * ((rank < n - 1) + (rank > 0)) for rank in range(n)]


def too_many_or_too_few(got: int, want: int) -> str:
    """The question behind a wrong number of messages or bytes."""
    return "What else travels?" if got > want else "Something does not travel."


# Clocks ----------------------------------------------------------------------------------------------------------


def clocked(rows: Rows, us: Sequence[dict[str, int]], latency: int) -> Timeline:
    """When everything begins and ends: `us[rank]` has the microseconds of F, I and W; B is I and W together."""
    costs = Costs(*([each[kind] / 1e6 for each in us] for kind in "FIW"))
    return simulate(from_labels(rows), costs, Link(latency=latency / 1e6))


def boxes(timeline: Timeline, rank: int) -> Tensor:
    """(begin, end) of each instruction of a rank, in whole microseconds."""
    pairs = zip(timeline.begin[rank], timeline.end[rank], strict=True)
    return torch.tensor([[round(begin / 1000), round(end / 1000)] for begin, end in pairs], dtype=torch.int64)


def expect_clocks(
    student: Student, run: Evidence, rows: Rows, us: Sequence[dict[str, int]], latency: int, name: str
) -> None:  # fmt: skip
    """Every rank returned the begin and end of each of its instructions."""
    timeline = clocked(rows, us, latency)
    slips: Slips = {f"{name}: {why}": mistaken(rows, us, latency, mistake) for mistake, why in MISTAKES.items()}
    student.expect_results(run, [boxes(timeline, rank) for rank in range(len(rows))], slips)


MISTAKES = {
    "no latency": "messages take no time in your clocks. They are there `latency` microseconds after they left.",
    "begin": "your messages carry the time at which an instruction begins. They leave when it ends.",
    "arrival": "an instruction begins when the message is there AND the rank is free: the later of the two.",
    "sender": "sending costs the sender nothing. The latency is the message's own time.",
    "no wait": "your ranks begin whenever they are free, and not only when the message is there.",
    "twice": "the latency counts twice: once where the message leaves, and once where it arrives.",
}


def mistaken(rows: Rows, us: Sequence[dict[str, int]], latency: int, mistake: str) -> list[Tensor]:
    """By rank the times that a well-known mistake gives."""
    schedule = from_labels(rows)
    left: dict[tuple[int, str, int], int] = {}
    now, times, at = [0] * len(rows), [list[list[int]]() for _ in rows], [0] * len(rows)
    way = {"no latency": 0, "twice": 2 * latency}.get(mistake, latency)
    going = True
    while going:
        going = False
        for rank, row in enumerate(schedule.ranks):
            while at[rank] < len(row):
                action, k = row[at[rank]].action, row[at[rank]].microbatch
                step = {"F": 1, "B": -1, "I": -1, "W": 0}[action]
                kind = "F" if action == "F" else "B"
                begin = now[rank]
                if step and 0 <= rank - step < len(rows):
                    if (rank, kind, k) not in left:
                        break
                    there = left[rank, kind, k] + way
                    begin = {"arrival": there, "no wait": begin}.get(mistake, max(begin, there))
                end = begin + us[rank][action]
                times[rank].append([begin, end])
                now[rank] = end
                if step and 0 <= rank + step < len(rows):
                    left[rank + step, kind, k] = begin if mistake == "begin" else end
                    now[rank] += latency if mistake == "sender" else 0
                at[rank] += 1
                going = True
    return [torch.tensor(each, dtype=torch.int64) for each in times]


# A pipeline on one rank ------------------------------------------------------------------------------------------


def some_schedules(n: int, microbatches: int) -> Iterator[tuple[str, Schedule]]:
    """Schedules that a program which carries out lists must be able to do."""
    yield "GPipe", gpipe(n, microbatches)
    yield "1F1B", one_f_one_b(n, microbatches)
    yield "1F1B with little memory", limited_1f1b(n, microbatches, 2)


def some_zero_bubbles(n: int, microbatches: int) -> Iterator[tuple[str, Schedule]]:
    """The same with a backward in two halves."""
    yield "ZB-H1", zb_h1(n, microbatches)
    yield "ZB-H2", zb_h2(n, microbatches)


def on_one_device(
    samples: Sequence[int], seed: int, weights: Sequence[Tensor]
) -> tuple[list[list[Any]], dict[str, list[list[Any]]]]:
    """What the ranks of `my_pipeline` return, [loss or None, gradient] each; and what well-known mistakes give."""
    each = []
    for k, rows in enumerate(samples):
        leaves = [w.clone().requires_grad_() for w in weights]
        x, y = (
            torch.randn(rows, len(weights[0]), generator=torch.Generator().manual_seed(seed + 2 * k + way),
                        dtype=weights[0].dtype) for way in (0, 1)
        )  # fmt: skip
        for w in leaves:
            x = torch.tanh(x @ w)
        loss = F.mse_loss(x, y)
        each.append([loss.detach(), *torch.autograd.grad(loss, leaves)])

    def added(share: Sequence[float]) -> list[Tensor]:
        return [sum((s * part for s, part in zip(share, parts, strict=True)), torch.zeros_like(parts[0]))
                for parts in zip(*each, strict=True)]  # fmt: skip

    def by_rank(loss: Tensor, gradients: Sequence[Tensor]) -> list[list[Any]]:
        return [[loss if rank == len(weights) - 1 else None, g] for rank, g in enumerate(gradients)]

    m, whole = len(samples), sum(samples)
    loss, *right = added([k / whole for k in samples])
    equal, plain = added([1 / m] * m), added([1.0] * m)
    last = [(k == m - 1) * samples[k] / whole for k in range(m)]
    slips = {
        "Every microbatch counts the same. One with more samples counts for more: samples[k] / sum(samples).": by_rank(
            equal[0], equal[1:]
        ),
        "Losses are added up, each a mean of its own microbatch. The loss of the step is one mean over all samples.": (
            by_rank(plain[0], plain[1:])
        ),
        "The loss is right, but the gradients are those of the sum of all microbatches' means.": by_rank(
            loss, plain[1:]
        ),
        "The loss is right, but in the gradients every microbatch counts the same.": by_rank(loss, equal[1:]),
        "The gradient is that of the last microbatch alone: add them up.": by_rank(loss, added(last)[1:]),
    }
    return by_rank(loss, right), slips if m > 1 else {}


def expect_memory(student: Student, run: Evidence, schedule: Schedule, nbytes: int) -> None:
    """No rank held much more than an input and an output for each microbatch in flight. nbytes: of one of the two."""
    held = most_in_flight(schedule)
    most = [2 * nbytes * (k + 4) + 10**6 for k in held]
    rank = max(range(len(held)), key=lambda r: run.peak_bytes[r] - most[r])
    got = run.peak_bytes[rank]
    why = "What do you keep when a microbatch's backward is over? A handle keeps its tensor, too."
    text = (
        "Rank {rank} of {n} held {got:bytes} at its peak, which is about {about:.0f} microbatches. Its list has {k} of "
        "{m} in flight, which needs {most:bytes} with four to spare. {why}"
    )
    student.expect(got <= most[rank], text, rank=rank, n=len(held), got=got, about=got / (2 * nbytes), k=held[rank],
                   m=schedule.microbatches, most=most[rank], why=why)  # fmt: skip


def needs(schedule: Schedule, rank: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """For each message that `rank` sends: (to, its number among those, [(from, number) that must have come before]).

    A message must have come if the list has the computation that needs it before the one whose result is sent.
    """
    came: dict[int, int] = {rank - 1: 0, rank + 1: 0}
    sent = dict(came)
    last = schedule.size - 1
    for step in schedule.ranks[rank]:
        if isinstance(step, WeightGradient):
            continue
        forward = isinstance(step, Forward)
        source, to = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        if 0 <= source <= last:
            came[source] += 1
        if 0 <= to <= last:
            yield to, sent[to], [(peer, number - 1) for peer, number in came.items() if number]
            sent[to] += 1


def expect_order(student: Student, schedule: Schedule, orders: Sequence[Order], name: str) -> None:
    """Nothing was sent before what the list has before it had come; and every message in the order of the list."""
    n = schedule.size
    for rank in range(n):
        steps = [step for step in schedule.ranks[rank] if not isinstance(step, WeightGradient)]
        for to, number, before in needs(schedule, rank):
            mine = orders[rank].to(to)
            what = "activations" if to > rank else "gradients"
            text = f"{name}, {n} ranks: rank {rank} sent {len(mine)} {what}; its list has more."
            student.expect(number < len(mine), text)
            for peer, last in before:
                forward = [s for s in steps if isinstance(s, Forward) == (to > rank)]
                early = [s for s in steps if isinstance(s, Forward) == (peer < rank)]
                said = (
                    f"{name}, {n} ranks: rank {rank} sent the {'activation' if to > rank else 'gradient'} of "
                    f"microbatch {forward[number].microbatch} before it had the "
                    f"{'activation' if peer < rank else 'gradient'} of microbatch {early[last].microbatch}. Its list "
                    f"has {rank}{early[last].action}{early[last].microbatch} before "
                    f"{rank}{forward[number].action}{forward[number].microbatch}: do what the list says, in its order."
                )
                student.expect(orders[rank].had(mine[number], peer, last), said)
