"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import cost
from labkit.chapters.c06_scaling_efficiency.checks import Profile


def covered(boxes: Tensor, length: int) -> Tensor:
    """Which of `length` microseconds lie in a box."""
    line = torch.zeros(length, dtype=torch.bool)
    for begin, end in boxes.tolist():
        line[begin:end] = True
    return line


def step_and_hidden(records: Sequence[Profile]) -> tuple[list[float], dict[str, Any], dict[str, Any]]:
    """[efficiency, hidden part] of a step, and what well-known mistakes give for the first and for the second."""
    every = [torch.cat([p["computing"], p["messages"]]) for p in records]
    first, last = min(int(b.min()) for b in every), max(int(b.max()) for b in every)
    lines = [(covered(p["computing"], last), covered(p["messages"], last)) for p in records]
    computing, sending, both, busy = (
        [int(f(c, m).sum()) for c, m in lines]
        for f in (lambda c, m: c, lambda c, m: m, lambda c, m: c & m, lambda c, m: c | m)
    )
    n, step = len(records), last - first
    own = [int(b.max()) - int(b.min()) for b in every]
    idle = not sum(sending)

    def part(hidden: float, of: float) -> float:
        return hidden / of if of else 1.0

    efficiency = {
        "Each rank's computing is divided by its own step. The step of the job ends with the last rank, and began with "
        "the first.": sum(c / o for c, o in zip(computing, own, strict=True)) / n,
        "Every rank returns its own part. Efficiency is that of the job: put the ranks together.": [
            c / step for c in computing
        ],
        "Every rank returns its own part, of its own step. Efficiency is that of the job.": [
            c / o for c, o in zip(computing, own, strict=True)
        ],
        "That counts messages as work. A device that only sends computes nothing.": sum(busy) / n / step,
        "The step does not begin at 0 of the clock, but with the first box of any rank.": sum(computing) / n / last,
        "That is the sum over the ranks. Divide by their number.": sum(computing) / step,
    }
    pairs = [(p["computing"].tolist(), p["messages"].tolist()) for p in records]
    twice = [sum(max(0, min(d, e) - max(b, c)) for b, d in cs for c, e in ms) for cs, ms in pairs]
    long = [sum(e - b for b, e in ms) for _, ms in pairs]
    hidden = {} if idle else {
        "Where messages overlap, a microsecond is counted twice. Count it once.": part(sum(twice), sum(long)),
        "Where messages overlap, their time is counted twice below. Count it once.": part(sum(both), sum(long)),
        "That is the mean of the ranks' parts. Add up the times of all ranks first, and divide once.": sum(
            part(b, s) for b, s in zip(both, sending, strict=True)
        ) / n,
        "Every rank returns its own part. Put the ranks together.": [
            part(b, s) for b, s in zip(both, sending, strict=True)
        ],
        "That is the part that is not hidden.": 1 - part(sum(both), sum(sending)),
        "That is the part of the computing that has messages beside it. Divide by the time of the messages.": part(
            sum(both), sum(computing)
        ),
    }  # fmt: skip
    return [sum(computing) / n / step, part(sum(both), sum(sending))], efficiency, hidden


def waits(true: Tensor) -> tuple[list[int], list[int], int]:
    """By rank: microseconds that it waited for the last to begin, and those after that; and which rank cost most."""
    begins, ends = true[..., 0], true[..., 1]
    last = begins.max(0).values
    two = begins.topk(min(2, len(begins)), dim=0)
    lost = torch.zeros(len(begins), dtype=torch.int64)
    lost.index_add_(0, two.indices[0], two.values[0] - two.values[-1])
    return (last - begins).sum(1).tolist(), (ends - last).sum(1).tolist(), int(lost.argmax())


def shortest_step(ms: Sequence[int], samples: int) -> int:
    """The least ms in which ranks that need ms[r] a sample can do `samples` together: one by one to the first ready."""
    shares = [0] * len(ms)
    for _ in range(samples):
        shares[min(range(len(ms)), key=lambda r: (shares[r] + 1) * ms[r])] += 1
    return max(s * m for s, m in zip(shares, ms, strict=True))


def forecast(records: Sequence[Tensor], sizes: Sequence[int], target: int) -> tuple[list[float], list[dict[str, Any]]]:
    """[ms on `target` ranks, its standard error, misses of the third size], and what well-known mistakes give."""

    def points(rows: Tensor) -> list[cost.Measured]:
        return [cost.Measured.of(s, rows[rows[:, 0] == s, 1].tolist()) for s in sizes]

    def law(found: Sequence[cost.Measured], growth: str = "bytes") -> cost.ScalingFit:
        return cost.fit_scaling(found, "weak", growth)

    every = points(torch.cat(list(records)))
    counts = [int((torch.cat(list(records))[:, 0] == s).sum()) for s in sizes]
    fit = law(every[:2])
    single = [cost.Measured(p.size, p.seconds, p.error * math.sqrt(c)) for p, c in zip(every, counts, strict=True)]
    plain = [
        cost.Measured(p.size, p.seconds, p.error * math.sqrt((c - 1) / c)) for p, c in zip(every, counts, strict=True)
    ]
    own = [points(rows) if all((rows[:, 0] == s).sum() > 1 for s in sizes) else None for rows in records]
    told: list[dict[str, Any]] = [{}, {}, {}]
    if len(records) > 1 and all(own):
        alone = [law(p[:2]) for p in own if p]
        means = [sum(p[i].seconds for p in own if p) / len(own) for i in range(2)]
        told[0]["Every rank forecasts from its own rows. Put the rows of all ranks together."] = [
            f.seconds(target) for f in alone
        ]
        told[0]["That is a fit of the mean of the ranks' means. Ranks with more rows count more."] = law(
            [cost.Measured(s, m, 1.0) for s, m in zip(sizes, means, strict=False)]
        ).seconds(target)
        told[1]["Every rank takes the error of its own rows. Put the rows of all ranks together."] = [
            f.error(target) for f in alone
        ]
    told[0] |= {
        "That is the law by messages, 2 (N - 1). The task has the law by bytes.": law(every[:2], "messages").seconds(
            target
        ),
        "That is a fit to all three sizes. Keep the third out of it: it is there to refute the law.": law(
            every
        ).seconds(target),
        "That is communication alone: the ranks compute as well.": fit.seconds(target) - fit.compute,
    }
    far = [cost.communication_growth("bytes", s) for s in (*sizes[:2], target)]
    weight = (far[2] - far[0]) / (far[1] - far[0])
    told[1] |= {
        "That comes from the spread of single steps. The error of a mean is smaller by the root of their number.": law(
            single[:2]
        ).error(target),
        "Divide the squares by one less than the number of steps: the mean comes from the same steps.": law(
            plain[:2]
        ).error(target),
        "That is the error of the second size. The forecast goes beyond it, and the first size is in it too.": every[
            1
        ].error,
        "The weights of the two sizes are missing: the law stretches their errors.": math.hypot(
            every[0].error, every[1].error
        ),
        "Independent errors add up as squares.": abs(1 - weight) * every[0].error + weight * every[1].error,
        "That is the square of the error.": fit.error(target) ** 2,
    }
    third = every[2]
    told[2] |= {
        "Measured minus predicted: the sign is turned round.": -fit.misses(third),
        "The prediction for the third size has an error as well.": (third.seconds - fit.seconds(third.size))
        / third.error,
        "The measurement of the third size has an error as well.": (third.seconds - fit.seconds(third.size))
        / fit.error(third.size),
        "That is in ms. Divide by the standard error of the difference.": third.seconds - fit.seconds(third.size),
    }
    return [fit.seconds(target), fit.error(target), fit.misses(third)], told
