"""What a sum over two replicas of different widths is judged by: values, bytes from rank to rank, messages.

Layouts come from the library's `shard_map`, with lost ranks of any number. Gradients are whole numbers, so that sums
are exact in every order. (Arfeen et al. 2025, "Nonuniform tensor parallelism", section 4.2.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c20_nonuniform_tensor_parallelism.maps import Layout, counts_of, dice
from labkit.grading.checks.student import Evidence, Student
from labkit.resilience.ntp import shard_map

MANY = 200  # numbers of a shard where bytes are counted


@dataclass(frozen=True)
class Job:
    """Two replicas. inputs: by rank. sent: counts[a][b], shards that rank a sends to rank b, there and back.

    messages: by rank, how many are enough: one to each rank inside, and two to a partner in the other replica.
    """

    inputs: list[dict[str, Any]]
    inside: list[list[int]]
    between: list[list[int]]
    messages: list[int]

    @property
    def size(self) -> int:
        return len(self.inputs)

    def owner(self, rank: int, shard: int) -> int:
        """The rank that adds up this shard in the replica of `rank`."""
        mine = self.inputs[rank]
        replica, _ = _place(mine, rank)
        return int(mine["ranks"][replica][next(i for i, held in enumerate(mine["sync"]) if shard in held)])


def some_job(student: Student, n: int, width: int, shards: int, even: bool = False) -> Job:
    """Two replicas on `n` ranks with gradients of `width` numbers a shard. even: both as wide as they can be alike.

    Which replica has lost ranks is drawn, and which of its ranks, and in which order a rank holds its shards.
    """
    random = dice(student, "job", n, width, shards, even)
    narrow = n // 2 if even else random.randint(max(1, n // 3), (n - 1) // 2)
    wide = n - narrow
    lost = set(random.sample(range(wide - 1), wide - narrow))
    number = [i for i in range(wide) if i not in lost] + sorted(lost)  # by position in the library's map
    plan = shard_map(max(shards, wide), wide, narrow)
    sync: Layout = [[] for _ in range(wide)]
    computes: Layout = [[] for _ in range(wide)]
    for position, mine in enumerate(plan.sync):
        sync[number[position]] = list(mine)
    for position, mine in enumerate(plan.compute):
        computes[number[position]] = list(mine)
    first_is_wide = random.random() < 0.5
    layouts = [computes, sync] if first_is_wide else [sync, computes]
    compute = [[random.sample(mine, len(mine)) for mine in layout] for layout in layouts]
    order = iter(random.sample(range(n), n))
    ranks = [[next(order) if layout is computes or i not in lost else None for i in range(wide)] for layout in layouts]
    return _job(student, ranks, sync, compute, width)


def _job(
    student: Student, ranks: list[list[int | None]], sync: Layout, compute: list[Layout], width: int
) -> Job:  # fmt: skip
    n = sum(rank is not None for row in ranks for rank in row)
    inputs: list[dict[str, Any]] = [{} for _ in range(n)]
    inside, between = ([[0] * n for _ in range(n)] for _ in range(2))
    for row, layout in zip(ranks, compute, strict=True):
        for rank, mine in zip(row, layout, strict=True):
            if rank is not None:
                own = student.tensor(len(mine), width)
                inputs[rank] = {"ranks": ranks, "sync": sync, "compute": compute, "gradients": own}
        for (a, b), count in counts_of(sync, layout).items():
            there, here = row[a], row[b]
            assert there is not None and here is not None
            inside[there][here] += count
            inside[here][there] += count
    for mine, a, b in zip(sync, *ranks, strict=True):
        if a is not None and b is not None:
            between[a][b] = between[b][a] = len(mine)
    counts = [sum(x > 0 for x in inside[r]) + 2 * sum(x > 0 for x in between[r]) for r in range(n)]
    return Job(inputs, inside, between, counts)


def sums_of(job: Job) -> list[Tensor]:
    """By rank: the sums of its shards over both replicas, in the order of its list."""
    total: dict[int, Tensor] = {}
    for rank, mine in enumerate(job.inputs):
        for shard, gradient in zip(_held(mine, rank), mine["gradients"], strict=True):
            total[shard] = total[shard] + gradient if shard in total else gradient
    return [torch.stack([total[shard] for shard in _held(mine, rank)]) for rank, mine in enumerate(job.inputs)]


def expect_sums(student: Student, run: Evidence, job: Job) -> None:
    """Every rank has the sums of the shards that it computes with, in their order."""
    n, right = job.size, sums_of(job)
    for rank, (got, want) in enumerate(zip(run.results, right, strict=True)):
        fine = isinstance(got, Tensor) and got.shape == want.shape and got.dtype == want.dtype
        shape = f"a tensor of shape {list(got.shape)}" if isinstance(got, Tensor) else f"{type(got).__name__}"
        text = "With {n} ranks: rank {rank} returned {shape}. It needs float32 of shape {want}: a row for each shard."
        student.expect(fine, text, n=n, rank=rank, shape=shape, want=list(want.shape))
        mine = job.inputs[rank]
        for shard, row, own, total in zip(_held(mine, rank), got, mine["gradients"], want, strict=True):
            owner = job.owner(rank, shard)
            who = "which adds it up itself" if owner == rank else f"for which rank {owner} adds it up"
            if torch.equal(row, total):
                continue
            cause = _cause(job, row, own, total)
            text = "With {n} ranks: shard {shard} is wrong on rank {rank}, {who}. {cause}"
            student.expect(False, text, n=n, shard=shard, rank=rank, who=who, cause=cause)


def _cause(job: Job, row: Tensor, own: Tensor, total: Tensor) -> str:
    """What a wrong row is, where it can be told."""
    if torch.equal(row, own):
        return "That is its own gradient: it was never added up, or the sum did not come back."
    if torch.equal(row, total - own):
        return "That is the gradient of the other replica alone."
    if any(torch.equal(row, twice) for twice in (total + own, 2 * total - own, 2 * total)):
        return "A gradient was added to it twice."
    found: list[dict[int, Tensor]] = [{}, {}]
    for rank, mine in enumerate(job.inputs):
        found[_place(mine, rank)[0]] |= dict(zip(_held(mine, rank), mine["gradients"], strict=True))
    for a, here in found[0].items():
        for b, there in found[1].items():
            if torch.equal(row, here + there):
                if a == b:
                    return f"That is the sum of shard {a}: rows lie in the order of the rank's own list."
                return (
                    f"That is shard {a} of replica 0 plus shard {b} of replica 1: both ends of a message need the same "
                    "order of shards."
                )
    return "Which gradients are in it?"


def expect_bytes(student: Student, run: Evidence, job: Job) -> None:
    """Nothing goes to another rank than the map says, and no more."""
    size = 4 * job.inputs[0]["gradients"].shape[1]
    for rank, row in enumerate(run.bytes_between):
        replica = _place(job.inputs[rank], rank)[0]
        for to, got in enumerate(row):
            inside = replica == _place(job.inputs[to], to)[0]
            most = size * (job.inside if inside else job.between)[rank][to]
            what = "inside its replica" if inside else "in the other replica"
            partner = next((b for b, count in enumerate(job.between[rank]) if count), None)
            cause = "Move only shards that another rank adds up, and send back only their sums."
            if not inside and not most:
                cause = f"Its partner there is rank {partner}." if partner is not None else "It has no partner there."
            elif not inside:
                cause = "Partners send each other their stretch, and each stretch is added up once."
            text = "Rank {rank} sent {got:bytes} to rank {to}, {what}; {most:bytes} are enough. {cause}"
            student.expect(got <= most, text, rank=rank, got=got, to=to, what=what, most=most, cause=cause)


def expect_messages(student: Student, run: Evidence, job: Job) -> None:
    """All that a rank has for another one goes in one message, and empty messages are not sent."""
    for rank, (got, most) in enumerate(zip(run.messages, job.messages, strict=True)):
        text = (
            "Rank {rank} sent {got} messages, and {most} would do. Put all shards for one rank into one message, and "
            "send none to a rank that needs nothing."
        )
        student.expect(got <= most, text, rank=rank, got=got, most=most)


def _place(mine: dict[str, Any], rank: int) -> tuple[int, int]:
    """(replica, number) of a rank of the group."""
    return next((r, row.index(rank)) for r, row in enumerate(mine["ranks"]) if rank in row)


def _held(mine: dict[str, Any], rank: int) -> list[int]:
    replica, number = _place(mine, rank)
    return list(mine["compute"][replica][number])
