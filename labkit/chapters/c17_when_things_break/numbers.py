"""What the checks of chapter 17 compare with where numbers go wrong: gradients that are not finite, sums with flips."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, Student
from labkit.grading.known import Answers

answers = Answers("17_when_things_break")  # what only instructors can compute


# All or none ----------------------------------------------------------------------------------------------------


def gradient_of(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the mean squared error and its root, as the given lines of the exercise compute it."""
    own = weights.detach().requires_grad_()
    error = (x @ own - y).square().mean()
    return torch.autograd.grad(error + error.sqrt(), own)[0]


def spoil(samples: dict[str, Tensor], step: int, kind: str) -> None:
    """Make the gradient of a step not finite. kind: "label", "sample", or "exact", where the loss stays finite."""
    x, y = samples["x"][step], samples["y"][step]
    if kind == "label":
        y[len(y) // 2] = torch.nan
    elif kind == "sample":
        x[-1, 0] = torch.inf
    else:  # every error is 0: so is the loss, and its gradient is 0 times infinity
        x.zero_()
        y.zero_()


def training(
    student: Student, n: int, rows: int, bad: dict[tuple[int, int], str], steps: int = 5, width: int = 6
) -> list[dict[str, Tensor]]:  # fmt: skip
    """By rank its samples. bad: by (rank, step), the kind of `spoil`."""
    weights = student.tensor(width, dtype=torch.float64) / 8
    data = []
    for rank in range(n):
        x = student.tensor(steps, rows, width, dtype=torch.float64)
        y = student.tensor(steps, rows, dtype=torch.float64) + 0.3
        for (who, step), kind in bad.items():
            if who == rank:
                spoil({"x": x, "y": y}, step, kind)
        data.append({"x": x, "y": y, "weights": weights})
    return data


def some_bad_steps(n: int, seed: int, kind: str, steps: int = 5) -> dict[tuple[int, int], str]:
    """By (rank, step) what is wrong with its samples. kind: "none", "one", "exact", "several", "everybody" or "every
    step"."""
    random = Random(seed)
    one, step = random.randrange(n), random.randrange(1, steps - 1)
    if kind == "one":
        return {(one, step): "label", (random.randrange(n), step + 1): "sample"}
    if kind == "exact":
        return {(one, step): "exact"}
    if kind == "several":
        return {(rank, step): "sample" for rank in {one, (one + 1) % n}} | {(one, 0): "exact"}
    if kind == "everybody":
        return {(rank, step): "label" for rank in range(n)}
    return {(random.randrange(n), k): "label" for k in range(steps)} if kind == "every step" else {}


trained = answers.trained


def expect_guarded(student: Student, run: Evidence, data: Sequence[dict[str, Tensor]], rate: float) -> None:
    """Weights and notes of every rank are those of one process that leaves such steps out."""
    n = len(run.results)
    weights, left_out = trained(data, rate)
    for rank, got in enumerate(run.results):
        fine = isinstance(got, list) and len(got) == 2 and isinstance(got[0], Tensor) and isinstance(got[1], list)
        student.expect(fine, "With {n} ranks: rank {rank} returned no [weights, left_out].", n=n, rank=rank)
        student.expect(got[0].shape == weights.shape and got[0].dtype == weights.dtype,
                       "With {n} ranks: rank {rank} returned weights of another shape or dtype.", n=n,
                       rank=rank)  # fmt: skip
        text = "With {n} ranks: rank {rank} has NaN or infinities among its weights. Look at the gradient, not at the "
        text += "loss, and before it is exchanged."
        student.expect(torch.isfinite(got[0]).all(), text, n=n, rank=rank)
    for how, why in (("without them", "the average of the others was taken. Nobody updates in such a step."),
                     ("zeros", "NaN was made 0, and the update was made. Nobody updates in such a step.")):  # fmt: skip
        other = trained(data, rate, how)[0]
        same = all(torch.allclose(got[0], other, rtol=0, atol=1e-9) for got in run.results)
        student.expect(not left_out or not same or torch.allclose(weights, other), f"With {n} ranks: {why}")
    for rank, got in enumerate(run.results):
        off = float((got[0] - weights).abs().max())
        text = "With {n} ranks the weights of rank {rank} are off by {off:.2g}. {why}"
        why = "" if all(torch.equal(got[0], one[0]) for one in run.results) else "Ranks no longer agree: one of them " \
              "left an update out, or made one, alone."  # fmt: skip
        student.expect(off <= 1e-9, text, n=n, rank=rank, off=off, why=why)


def expect_notes(student: Student, run: Evidence, data: Sequence[dict[str, Tensor]], rate: float) -> None:
    """Every rank says which steps were left out, and whose gradients were not finite in them."""
    n, (_, left_out) = len(run.results), trained(data, rate)
    for rank, got in enumerate(run.results):
        notes = got[1] if isinstance(got, list) and len(got) == 2 else None
        why = ""
        if isinstance(notes, list) and all(isinstance(note, list) and len(note) == 2 for note in notes):
            steps = [note[0] for note in notes]
            if steps == [note[0] for note in left_out]:
                everybody = all(note[1] == list(range(n)) for note in notes)
                why = "Everybody has it after the exchange: ask before." if everybody else "Whose gradient was it?"
                if all(note[1] in ([], [rank]) for note in notes):
                    why = "Every rank should know it of all."
        text = "With {n} ranks, rank {rank} says {got}; left out were {want}. {why}"
        student.expect(notes == left_out, text, n=n, rank=rank, got=notes, want=left_out, why=why)


# Do it again ----------------------------------------------------------------------------------------------------

ATTEMPTS = 3


def flips(n: int, kind: str, phase: int, seed: int) -> tuple[list[Tensor], int]:
    """By rank the masks [way, attempt, phase], and the way that is wrong, -1 for none.

    kind: "clean", "transient" (first attempt only), or "persistent" (each attempt). phase: 0 while the sum grows, 1
    while the finished one goes around. Third attempts are always spoilt, and so are messages that nobody sends: neither
    matters to who asks for no more than is needed. What happens once happens in the other way than what is broken.
    """
    random = Random(seed)
    masks = [torch.zeros(2, ATTEMPTS, 2, dtype=torch.int64) for _ in range(n)]
    way = (seed + (kind == "persistent")) % 2
    rank = random.choice([r for r in range(n) if _sends(n, way, r, phase)])
    for r in range(n):
        for w in range(2):
            for ph in range(2):
                if not _sends(n, w, r, ph):
                    masks[r][w, :, ph] = 1 << random.randrange(40)
        masks[r][:, 2] = 1 << random.randrange(40)
        if kind == "clean":
            masks[r][:, 1] = 1 << random.randrange(40)
    bit = 1 << random.randrange(3, 40)
    for attempt in {"clean": [], "transient": [0], "persistent": [0, 1, 2]}[kind]:
        masks[rank][way, attempt, phase] = bit
    return masks, -1 if kind == "clean" else way


def _sends(n: int, way: int, rank: int, phase: int) -> bool:
    """Whether a rank sends something in a phase: 0 the sum grows along the line, 1 the finished sum goes around."""
    place = rank if way == 0 else n - 1 - rank
    return place < n - 1 if phase == 0 else place != n - 2


def bytes_of_sums(n: int, nbytes: int, attempts: int) -> list[int]:
    """By rank: what it sends in so many sums in each of the two ways."""
    each = [sum(_sends(n, way, rank, phase) for way in range(2) for phase in range(2)) for rank in range(n)]
    return [attempts * nbytes * count for count in each]


def expect_sums(student: Student, run: Evidence, mine: Sequence[dict[str, Tensor]], kind: str) -> None:
    """Every rank returned the right sum, in a list of three."""
    n, right = len(run.results), torch.stack([one["x"] for one in mine]).sum(0)
    for rank, got in enumerate(run.results):
        fine = isinstance(got, list) and len(got) == 3 and isinstance(got[0], Tensor)
        student.expect(fine, f"With {n} ranks, {kind}: rank {rank} returned no list of a sum, a word and a way.")
        fine = got[0].shape == right.shape and got[0].dtype == right.dtype
        student.expect(fine, f"With {n} ranks, {kind}: the sum of rank {rank} has another shape or dtype.")
        off = torch.nonzero(got[0] != right).flatten().tolist()
        text = "With {n} ranks, {kind}: on rank {rank} entry {at} of the sum is wrong. {why}"
        why = "A bit flipped, and it was returned all the same." if off == [0] else ""
        student.expect(not off, text, n=n, kind=kind, rank=rank, at=off[:1], why=why)


def expect_verdicts(student: Student, run: Evidence, mine: Sequence[dict[str, Tensor]], kind: str, way: int) -> None:
    """Every rank returned the right sum, word and way."""
    expect_sums(student, run, mine, kind)
    n = len(run.results)
    for rank, (_, word, said) in enumerate(run.results):
        text = "With {n} ranks: rank {rank} says {word!r}; it is {kind!r}. {why}"
        why = ""
        if {word, kind} == {"transient", "persistent"}:
            why = "What differs on the first attempt and agrees on the second one happened once."
        student.expect(word == kind, text, n=n, rank=rank, word=word, kind=kind, why=why)
        text = "With {n} ranks, {kind}: rank {rank} says that way {said} was wrong on the first attempt; it was {way}."
        student.expect(type(said) is int and said == way, text, n=n, kind=kind, rank=rank, said=said, way=way)


# Bytes ----------------------------------------------------------------------------------------------------------


def expect_within(student: Student, run: Evidence, most: int | Sequence[int], why: str, all_: bool = False) -> None:
    """No rank sends more than `most` bytes (of each rank, where it is a list) to another one; all_: to all others."""
    n = len(run.results)
    limits = [most] * n if isinstance(most, int) else list(most)
    for rank, (row, limit) in enumerate(zip(run.bytes_between, limits, strict=True)):
        got = sum(row) if all_ else max(row)
        text = "With {n} ranks: rank {rank} sent {got:bytes}{to}; {most:bytes} are enough. {why}"
        to = "" if all_ else f" to rank {row.index(got)}"
        student.expect(got <= limit, text, n=n, rank=rank, got=got, to=to, most=limit, why=why)
