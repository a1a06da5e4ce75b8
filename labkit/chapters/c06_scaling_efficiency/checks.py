"""What the checks of chapter 6 compare with: profiles and logs made of a few drawn numbers, and what is in them.

draw: `student.tensor`, which gives small whole numbers. Times of profiles are whole microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import cost
from labkit.grading.checks.student import Evidence, Student

Draw = Callable[..., Tensor]
Profile = dict[str, Tensor]
Slips = Mapping[str, Sequence[float] | float]


def expect_number(
    student: Student, run: Evidence, place: int, shape: tuple[int, torch.dtype], name: str, want: Sequence[float],
    slips: Slips, within: float = 1e-7,
) -> None:  # fmt: skip
    """Every rank returned a tensor of this shape with its `want` in this place. Else a slip, or the numbers."""
    size, dtype = shape
    got = []
    for rank, result in enumerate(run.results):
        fine = isinstance(result, Tensor) and list(result.shape) == [size] and result.dtype == dtype
        text = "Rank {rank} returned no tensor of {size} numbers of dtype {dtype}."
        student.expect(fine, text, rank=rank, size=size, dtype=str(dtype).removeprefix("torch."))
        got.append(float(result[place]))

    def near(others: Sequence[float]) -> bool:
        return all(math.isclose(g, w, rel_tol=within, abs_tol=within) for g, w in zip(got, others, strict=True))

    if near(want):
        return
    for sentence, wrong in slips.items():
        student.expect(not near(wrong if isinstance(wrong, Sequence) else [wrong] * len(got)), sentence)
    rank = max(range(len(got)), key=lambda r: abs(got[r] - want[r]))
    text = "With {n} ranks rank {rank} says that {name} is {got:.6g}; it is {want:.6g}."
    student.expect(False, text, n=len(got), rank=rank, name=name, got=got[rank], want=want[rank])


# A profile of a step ---------------------------------------------------------------------------------------------


def profiles(draw: Draw, n: int, boxes: int) -> list[Profile]:
    """By rank: {"computing", "messages"}, boxes of (begin, end). Messages overlap each other and computing."""
    found = []
    for _ in range(n):
        gaps, lengths, early, long = (draw(boxes, dtype=torch.int64).abs() for _ in range(4))
        ends = 1000 + 40 * draw(1, dtype=torch.int64).abs() + (10 * gaps + 100 * lengths).cumsum(0)
        begins = ends - 40 * early
        begins[-1] = begins[-2] + 10  # two of them overlap, whatever was drawn
        messages = torch.stack([begins, begins + 60 * long + 100], 1)
        messages[-1, 1] += 900  # and something sticks out behind the computing
        computing = torch.stack([ends - 100 * lengths, ends], 1)
        found.append({"computing": computing, "messages": messages if n > 1 else messages[:0]})
    return found


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


# All-reduces on clocks that do not agree -------------------------------------------------------------------------


def late_profiles(draw: Draw, n: int, steps: int, twins: bool = False) -> tuple[list[dict[str, Any]], Tensor]:
    """By rank: {"barrier": its clock at a common moment, "all_reduce": (begin, end) by step}; and true times.

    One rank is last most often, by a little; another twice, by much. twins: two others come late together in a third
    of the steps, by still more: neither alone has cost anything.
    """
    small, ends = (10 * draw(steps, n, dtype=torch.int64).abs() for _ in range(2))
    often = int(draw(1)[0].abs()) % n
    costly = (often + 1) % n
    begins = small
    begins[:, often] += 100
    for step in (1, steps - 2):
        begins[step, costly] += 2000 + 10 * step
    if twins:
        for step in range(2, steps - 2, 3):
            begins[step, [(often + 2) % n, (often + 3) % n]] += 3000
    clock = torch.zeros((), dtype=torch.int64)
    rows = []
    for step in range(steps):
        begun = clock + 1000 + begins[step]
        rows.append(torch.stack([begun, begun.max() + 300 + ends[step]], 1))
        clock = rows[-1].max()
    true = torch.stack(rows, 1)  # rank, step, (begin, end)
    offsets = 100_000 + 1111 * (draw(n, dtype=torch.int64).abs() * n + torch.arange(n))
    return [{"barrier": int(o), "all_reduce": t + o} for o, t in zip(offsets, true, strict=True)], true


def waits(true: Tensor) -> tuple[list[int], list[int], int]:
    """By rank: microseconds that it waited for the last to begin, and those after that; and which rank cost most."""
    begins, ends = true[..., 0], true[..., 1]
    last = begins.max(0).values
    two = begins.topk(min(2, len(begins)), dim=0)
    lost = torch.zeros(len(begins), dtype=torch.int64)
    lost.index_add_(0, two.indices[0], two.values[0] - two.values[-1])
    return (last - begins).sum(1).tolist(), (ends - last).sum(1).tolist(), int(lost.argmax())


# Shares ----------------------------------------------------------------------------------------------------------


def shortest_step(ms: Sequence[int], samples: int) -> int:
    """The least ms in which ranks that need ms[r] a sample can do `samples` together: one by one to the first ready."""
    shares = [0] * len(ms)
    for _ in range(samples):
        shares[min(range(len(ms)), key=lambda r: (shares[r] + 1) * ms[r])] += 1
    return max(s * m for s, m in zip(shares, ms, strict=True))


def awkward(ms: Sequence[int], samples: int) -> int:
    """A number from `samples` on for which shares in proportion, rounded, with the rest to the last, are not best."""

    def rounded(many: int) -> int:
        shares = [round(many / m / sum(1 / each for each in ms)) for m in ms]
        shares[-1] += many - sum(shares)
        return max(s * m for s, m in zip(shares, ms, strict=True))

    return next((k for k in range(samples, samples + 100) if rounded(k) > shortest_step(ms, k)), samples)


# A forecast ------------------------------------------------------------------------------------------------------


def logs(draw: Draw, n: int, sizes: Sequence[int], steps: int) -> list[Tensor]:
    """By rank: rows (size, ms of one step) of jobs of these sizes, in any order, not as many on every rank."""
    base, slope, off = (draw(1).abs().item() for _ in range(3))
    found = []
    for _ in range(n):
        rows = []
        for place, size in enumerate(sizes):
            count = steps + int(draw(1).abs().item())
            true = 30 + base + (2 + 0.5 * slope) * cost.extrapolate.communication_growth("bytes", size)
            noise = (0.02, 0.05, 0.03)[place] * draw(count, dtype=torch.float64)
            times = true + noise + (0.05 * off if place == 2 else 0)
            rows.append(torch.stack([torch.full((count,), float(size), dtype=torch.float64), times], 1))
        every = torch.cat(rows)
        found.append(every[torch.argsort(draw(len(every)), stable=True)])
    return found


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
