"""What two programs of chapter 20 are judged by: a shard map for ranks that cannot move up, and a sum over two widths.

A map is judged by its properties alone: there are many right ones. Layouts of the second program come from the
library's `shard_map`, with the numbers of ranks that are lost anywhere. (Arfeen et al. 2025, section 4.2.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student
from labkit.resilience.ntp import shard_map

Layout = list[list[int]]  # shards by rank
MANY = 200  # numbers of a shard where bytes are counted


def dice(student: Student, *what: object) -> Random:
    """Random choices of a check, by its seed."""
    return Random(number_from(student.seed, "chapter 20 maps", *what))


# The shard map ------------------------------------------------------------------------------------------------------


def some_layers(student: Student, n: int, largest: int) -> list[dict[str, Any]]:
    """A layer for each of `n` callers: {"shards", "ranks", "lost"}, four kinds in turn. largest: the most ranks.

    All divides and two shards or more leave each owner; rank 0 is lost and fewer are left over than there are owners;
    more are left over than there are owners; hardly more shards than ranks.
    """
    layers = []
    for i in range(n):
        random = dice(student, n, largest, i)
        if i % 4 == 0:
            extra, times = random.choice([(a, b) for a in (2, 3) for b in (1, 2, 3) if a * (b + 1) <= largest])
            ranks = extra * (times + 1)
            shards = random.randint(2, 4) * math.lcm(ranks, extra * times)
            lost = random.sample(range(ranks - 1), extra)
        elif i % 4 == 1:
            ranks = random.randint(4, largest)
            lost = [0, *random.sample(range(1, ranks), random.randint(0, ranks - 3))]
            shards = random.randint(2, 6) * ranks + random.randint(1, ranks - len(lost))
        elif i % 4 == 2:
            ranks = random.randint(4, largest)
            lost = random.sample(range(ranks - 1), random.randint(2, ranks - 2))
            shards = random.randint(2, 6) * ranks + random.randint(ranks - len(lost) + 1, ranks - 1)
        else:
            ranks = random.randint(4, largest)
            lost = random.sample(range(ranks), random.randint(1, ranks - 1))
            shards = ranks + random.randint(0, 3)
        layers.append({"shards": shards, "ranks": ranks, "lost": sorted(lost)})
    return layers


def fewest_moves(shards: int, ranks: int, lost: int) -> int:
    """Shards that extra ranks hold at least, when loads differ by one at most: what is left over goes to owners."""
    each, over = divmod(shards, ranks)
    return lost * each + max(0, over - (ranks - lost))


def expect_layouts(student: Student, run: Evidence, layers: list[dict[str, Any]]) -> None:
    """Each shard is once in each layout, stretches are stretches, and loads differ by one at most."""
    for layer, found in zip(layers, run.results, strict=True):
        ranks, shards, where = layer["ranks"], layer["shards"], _where(layer)
        fine = isinstance(found, dict) and set(found) == {"sync", "compute"} and all(map(_is_layout, found.values()))
        fine = fine and all(len(layout) == ranks for layout in found.values())
        text = '{where}: this needs {{"sync": ..., "compute": ...}}, each a list of {ranks} lists of whole numbers.'
        student.expect(fine, text, where=where, ranks=ranks)
        for name, layout in found.items():
            held = [shard for mine in layout for shard in mine]
            for shard in held:
                text = "{where}: there is no shard {shard}. They are 0 to {last}."
                student.expect(0 <= shard < shards, text, where=where, shard=shard, last=shards - 1)
            for shard in range(shards):
                text = "{where}: in the {name} layout shard {shard} is on {times}. Each shard is there once."
                times = f"{held.count(shard)} ranks" if shard in held else "no rank"
                student.expect(held.count(shard) == 1, text, where=where, name=name, shard=shard, times=times)
        _expect_stretches(student, layer, found["sync"])
        owners = [mine for rank, mine in enumerate(found["sync"]) if rank not in layer["lost"]]
        for name, parts in (("sync", owners), ("compute", found["compute"])):
            least, most = min(map(len, parts)), max(map(len, parts))
            text = "{where}: in the {name} layout ranks have {least} to {most} shards. All wait for who has {most}."
            student.expect(most - least <= 1, text, where=where, name=name, least=least, most=most)


def expect_few_moves(student: Student, run: Evidence, layers: list[dict[str, Any]]) -> None:
    """No more shards change their rank than must."""
    for layer, found in zip(layers, run.results, strict=True):
        counts = counts_of(found["sync"], found["compute"])
        moved, fewest = sum(counts.values()), fewest_moves(layer["shards"], layer["ranks"], len(layer["lost"]))
        among = next(((a, b) for a, b in counts if a not in layer["lost"]), None)
        cause = (
            "An extra rank has one shard more than others: what is left over can stay with ranks that add up."
            if among is None
            else f"Rank {among[0]} computes with shards of rank {among[1]}, and both add up: an owner keeps its own."
        )
        text = "{where}: {moved} shards move, and {fewest} would do. {cause}"
        student.expect(moved == fewest, text, where=_where(layer), moved=moved, fewest=fewest, cause=cause)


def expect_few_pairs(student: Student, run: Evidence, layers: list[dict[str, Any]]) -> None:
    """At most one pair fewer than ranks that take part; one pair for each owner where all divides."""
    for layer, found in zip(layers, run.results, strict=True):
        pairs = set(counts_of(found["sync"], found["compute"]))
        most, got = most_pairs(layer, len({b for _, b in pairs})), len(pairs)
        busy = max((b for _, b in pairs), key=lambda owner: sum(b == owner for _, b in pairs))
        sources = sorted(a for a, b in pairs if b == busy)
        text = (
            "{where}: {got} pairs of ranks exchange something, and {most} would do. Rank {busy} gets shards from ranks "
            "{sources}. Fill one extra rank before you begin with the next."
        )
        student.expect(got <= most, text, where=_where(layer), got=got, most=most, busy=busy, sources=sources)


def most_pairs(layer: dict[str, Any], owners: int) -> int:
    """Pairs that are enough, where so many owners get something: extra ranks are filled one behind the other."""
    shards, ranks, extra = layer["shards"], layer["ranks"], len(layer["lost"])
    rest = ranks - extra
    return owners if shards % ranks == shards % rest == rest % extra == 0 else owners + extra - 1


def counts_of(sync: Layout, compute: Layout) -> dict[tuple[int, int], int]:
    """(a, b): how many shards rank a computes with that rank b adds up, for a other than b and counts above 0."""
    owner = {shard: rank for rank, mine in enumerate(sync) for shard in mine}
    counts: dict[tuple[int, int], int] = {}
    for rank, mine in enumerate(compute):
        for shard in mine:
            if owner[shard] != rank:
                counts[rank, owner[shard]] = counts.get((rank, owner[shard]), 0) + 1
    return counts


def _expect_stretches(student: Student, layer: dict[str, Any], sync: Layout) -> None:
    after = 0
    for rank, mine in enumerate(sync):
        text = "{where}: in the sync layout rank {rank} has {count} shards. Its partner is lost, so it adds up none."
        student.expect(rank not in layer["lost"] or not mine, text, where=_where(layer), rank=rank, count=len(mine))
        text = (
            "{where}: rank {rank} adds up {mine}. A stretch has shards side by side, and that of rank {rank} begins "
            "with shard {after}, where the one before it ends."
        )
        right = list(range(after, after + len(mine)))
        shown = str(mine) if len(mine) < 9 else f"{mine[:8]} and so on"
        student.expect(mine == right, text, where=_where(layer), rank=rank, mine=shown, after=after)
        after += len(mine)


def _where(layer: dict[str, Any]) -> str:
    lost = ", ".join(map(str, layer["lost"]))
    return f"With {layer['shards']} shards on {layer['ranks']} ranks, where the other replica has lost {lost}"


def _is_layout(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(x, list) and all(type(s) is int for s in x) for x in value)


# A sum over two widths ----------------------------------------------------------------------------------------------


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
    known = {shard: row for rank, mine in enumerate(job.inputs)
             for shard, row in zip(_held(mine, rank), right[rank], strict=True)}  # fmt: skip
    for rank, (got, want) in enumerate(zip(run.results, right, strict=True)):
        fine = isinstance(got, Tensor) and got.shape == want.shape and got.dtype == want.dtype
        shape = f"a tensor of shape {list(got.shape)}" if isinstance(got, Tensor) else f"{type(got).__name__}"
        text = "With {n} ranks: rank {rank} returned {shape}. It needs float32 of shape {want}: a row for each shard."
        student.expect(fine, text, n=n, rank=rank, shape=shape, want=list(want.shape))
        mine = job.inputs[rank]
        for shard, row, own, total in zip(_held(mine, rank), got, mine["gradients"], want, strict=True):
            owner = job.owner(rank, shard)
            who = "which adds it up itself" if owner == rank else f"for which rank {owner} adds it up"
            cause = "Which gradients are in it?"
            if torch.equal(row, own):
                cause = "That is its own gradient: it was never added up, or the sum did not come back."
            elif torch.equal(row, total + own) or torch.equal(row, 2 * total - own) or torch.equal(row, 2 * total):
                cause = "A gradient was added to it twice."
            elif torch.equal(row, total - own):
                cause = "That is the gradient of the other replica alone."
            elif others := [s for s, x in known.items() if torch.equal(row, x)]:
                cause = f"That is the sum of shard {others[0]}: rows lie in the order of the rank's own list."
            text = "With {n} ranks: shard {shard} is wrong on rank {rank}, {who}. {cause}"
            student.expect(torch.equal(row, total), text, n=n, shard=shard, rank=rank, who=who, cause=cause)


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
            "Rank {rank} sent {got} messages, and {most} are enough. Put all shards for one rank into one message, and "
            "send none to a rank that needs nothing."
        )
        student.expect(got <= most, text, rank=rank, got=got, most=most)


def _place(mine: dict[str, Any], rank: int) -> tuple[int, int]:
    """(replica, number) of a rank of the group."""
    return next((r, row.index(rank)) for r, row in enumerate(mine["ranks"]) if rank in row)


def _held(mine: dict[str, Any], rank: int) -> list[int]:
    replica, number = _place(mine, rank)
    return list(mine["compute"][replica][number])
