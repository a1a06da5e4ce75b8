"""What the checks of `uneven-batches` compare with: the shortest step that shares of a batch allow, and one gradient.

The shortest step is found from the other side: the least time in which all replicas together can train the batch.
There are often several right shares, so times are compared, not shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student
from labkit.resilience.rehearse import gradient_of

Inputs = list[dict[str, Any]]


def most_shards(shards: int, width: int) -> int:
    """Shards on the GPU that has most of them: the time of one example, in units of a shard."""
    return -(-shards // width)


def step_time(shares: Sequence[int], widths: Sequence[int], shards: int) -> int:
    """Until the slowest replica is ready, in units of a shard."""
    return max(share * most_shards(shards, width) for share, width in zip(shares, widths, strict=True))


def shortest_step(batch: int, widths: Sequence[int], shards: int) -> int:
    """The least time in which the replicas together train `batch` whole examples."""
    each = [most_shards(shards, width) for width in widths]
    return next(t for t in range(batch * max(each) + 1) if sum(t // one for one in each) >= batch)


def by_gpus(batch: int, widths: Sequence[int]) -> list[int]:
    """A wrong rule: in proportion to the GPUs, whole ones by the largest remainders."""
    exact = [batch * width / sum(widths) for width in widths]
    shares = [int(x) for x in exact]
    for r in sorted(range(len(widths)), key=lambda r: (shares[r] - exact[r], r))[: batch - sum(shares)]:
        shares[r] += 1
    return shares


def some_batch(student: Student, n: int, numel: int, idle: bool = False) -> Inputs:
    """By rank: weights, the examples of a step, and how wide the replicas are. The same on all ranks.

    idle: one replica is so narrow that it must train nothing. Else shares by the number of GPUs take longer than
    needed, where there is a choice.
    """
    random = Random(number_from(student.seed, "chapter 20 batches", n, numel, idle))
    for _ in range(500):
        widest = random.choice((6, 8, 12))
        widths = [random.randint(widest - 3, widest) for _ in range(n)]
        shards, batch = random.randint(2 * widest, 6 * widest), random.randint(4 * n, 9 * n)
        if idle:
            widths, batch = [widest] * (n - 1) + [1], random.randint(n, 3 * n - 3)
            random.shuffle(widths)
        elif n > 1:
            widths[random.randrange(n)] = widest
        best = shortest_step(batch, widths, shards)
        if n == 1 or (best < shards if idle else step_time(by_gpus(batch, widths), widths, shards) > best):
            break
    samples = torch.tensor(random.sample(range(1000), batch))
    weights = student.tensor(numel).double()
    return [{"weights": weights, "samples": samples, "widths": widths, "shards": shards} for _ in range(n)]


def expect_shares(student: Student, run: Evidence, inputs: Inputs) -> list[list[int]]:
    """Shares that add up to the batch and make the step as short as can be; the samples of each rank, which it returns.

    All ranks say the same shares, each has trained as many samples as its share, and each sample is trained once.
    """
    widths, shards, batch = inputs[0]["widths"], inputs[0]["shards"], inputs[0]["samples"].tolist()
    n, job = len(inputs), f"With widths {widths}, {shards} shards and {len(batch)} examples"
    for rank, got in enumerate(run.results):
        fine = isinstance(got, list) and len(got) == 3 and all(_whole_numbers(x) for x in got[:2])
        text = f"With {n} ranks: rank {rank} did not return [shares, trained, gradient], the first two lists of int."
        student.expect(fine, text)
    said = [got[0] for got in run.results]
    shares = said[0]
    for rank, other in enumerate(said):
        text = "{job}: rank {rank} has the shares {other}, and rank 0 has {shares}. All ranks must deal alike."
        student.expect(other == shares, text, job=job, rank=rank, other=other, shares=shares)
    fine = len(shares) == n and min(shares, default=0) >= 0
    student.expect(fine, "{job}: {shares} are no shares of {n} replicas.", job=job, shares=shares, n=n)
    text = "{job}: the shares {shares} add up to {total}. The batch of a step is fixed, whatever has failed."
    student.expect(sum(shares) == len(batch), text, job=job, shares=shares, total=sum(shares))
    _expect_short(student, job, shares, widths, shards)
    for a in range(n):
        for b in range(n):
            text = "{job}: replicas {a} and {b} are equally wide and have {x} and {y} examples."
            fine = widths[a] != widths[b] or shares[a] - shares[b] <= 1
            student.expect(fine, text, job=job, a=a, b=b, x=shares[a], y=shares[b])
    trained = [got[1] for got in run.results]
    for rank, mine in enumerate(trained):
        text = "{job}: rank {rank} has trained {got} examples, and its share is {share}."
        student.expect(len(mine) == shares[rank], text, job=job, rank=rank, got=len(mine), share=shares[rank])
    every = sorted(sample for mine in trained for sample in mine)
    text = "{job}: {many} examples of the batch were trained by nobody, or by two replicas."
    many = len(set(batch) - {x for x in every if every.count(x) == 1})
    student.expect(every == sorted(batch), text, job=job, many=many)
    return trained


def _expect_short(student: Student, job: str, shares: list[int], widths: list[int], shards: int) -> None:
    best, got = shortest_step(sum(shares), widths, shards), step_time(shares, widths, shards)
    slow = max(range(len(widths)), key=lambda r: shares[r] * most_shards(shards, widths[r]))
    why = "Another replica would have been ready sooner with one of these."
    if shares == by_gpus(sum(shares), widths):
        why = "These are in proportion to the GPUs. But shards are whole, and the GPU with most of them sets the pace."
    elif 0 not in shares and shortest_step(sum(shares), widths, shards) < most_shards(shards, min(widths)):
        why = "A replica may have no example at all in a step."
    text = (
        "{job}: with the shares {shares} replica {slow} needs {got} units of time, {each} for each of its examples, "
        "and {best} are enough. {why}"
    )
    each = most_shards(shards, widths[slow])
    student.expect(got == best, text, job=job, shares=shares, slow=slow, got=got, each=each, best=best, why=why)


def expect_mean(student: Student, run: Evidence, inputs: Inputs, trained: list[list[int]]) -> None:
    """Every rank has the gradient of the mean over the whole batch."""
    n, weights, widths = len(inputs), inputs[0]["weights"], inputs[0]["widths"]
    whole = gradient_of(weights, inputs[0]["samples"])
    got = [result[2] for result in run.results]
    counts = [len(mine) for mine in trained]
    for rank, mine in enumerate(got):
        broken = isinstance(mine, Tensor) and mine.is_floating_point() and bool(mine.isnan().any())
        none = [r for r, count in enumerate(counts) if not count]
        text = "With {n} ranks: rank {rank} has nan in its gradient. {why}"
        why = f"Replica {none[0]} has no examples, and their mean is nan; so is 0 times nan." if none else ""
        student.expect(not broken, text, n=n, rank=rank, why=why)
    means = [gradient_of(weights, torch.tensor(mine)) if mine else torch.zeros_like(weights) for mine in trained]
    some = sum(1 for count in counts if count)

    def weighed(parts: Sequence[float]) -> list[Tensor]:
        total = torch.zeros_like(whole)
        for part, mean in zip(parts, means, strict=True):
            total = total + part * mean
        return [total] * n

    alike = (
        f"With {counts} examples all replicas had the same weight. Then an example of a replica with few of them "
        "counts more than one of another: it is a mean of means."
    )
    added = "That is a sum, not a mean over the examples of the batch."
    slips: list[tuple[str, list[Tensor]]] = [
        (alike, weighed([1 / n] * n)),
        (alike, weighed([1 / some] * n)),
        ("A replica has the weight of its GPUs. It counts as many times as it has examples.",
         weighed([width / sum(widths) for width in widths])),
        (added, weighed([1] * n)),
        (added, weighed(counts)),
        ("Every rank returned the gradient of its own examples. They have to be added up over the replicas.", means),
    ]  # fmt: skip
    for text, wrong in slips:
        if not _alike(wrong, [whole] * n):
            student.expect(not _alike(got, wrong), text)
    student.expect_results(Evidence(got), [whole] * n, within=1e-9)
    _expect_a_sum(student, run, n, len(weights))


def _expect_a_sum(student: Student, run: Evidence, n: int, numel: int) -> None:
    """So many bytes that the gradients can have been added up."""
    text = (
        "With {n} ranks and {numel} numbers all ranks together sent {sent:bytes}, and too little for a sum over all of "
        "them: did every rank compute with the whole batch?"
    )
    sent = sum(run.bytes_sent)
    student.expect(sent >= 0.9 * (n - 1) * 8 * numel, text, n=n, numel=numel, sent=sent)


def _alike(got: Sequence[Any], wanted: Sequence[Tensor]) -> bool:
    fit = (
        isinstance(x, Tensor) and x.shape == y.shape and x.dtype == y.dtype for x, y in zip(got, wanted, strict=True)
    )
    return all(fit) and all(torch.allclose(x, y, rtol=1e-9, atol=1e-9) for x, y in zip(got, wanted, strict=True))


def expect_one_sum(student: Student, run: Evidence, inputs: Inputs) -> None:
    """The bytes of one all-reduce of the gradient: neither nothing nor everybody's gradient to everybody."""
    n, numel = len(inputs), len(inputs[0]["weights"])
    want, sent = 2 * (n - 1) * 8 * numel, sum(run.bytes_sent)
    _expect_a_sum(student, run, n, numel)
    text = (
        "With {n} ranks and {numel} numbers all ranks together sent {sent:bytes}. One all-reduce sends {want:bytes} "
        "or a little more. Weigh the gradient before it is added up; the widths tell every rank all shares."
    )
    most = 2.2 * n * 8 * numel  # by whichever algorithm
    student.expect(sent <= most, text, n=n, numel=numel, sent=sent, want=want)


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int for x in value)
