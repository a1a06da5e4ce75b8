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
from labkit.grading.known import Answers

answers = Answers("06_scaling_efficiency")  # what only instructors can compute


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


step_and_hidden = answers.step_and_hidden


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


waits = answers.waits


# Shares ----------------------------------------------------------------------------------------------------------


shortest_step = answers.shortest_step


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


forecast = answers.forecast
