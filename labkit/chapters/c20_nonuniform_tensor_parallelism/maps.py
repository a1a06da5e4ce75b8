"""What a shard map of chapter 20 is judged by, for ranks that cannot move up: its properties alone.

There are many right maps. Nothing here makes one. (Arfeen et al. 2025, "Nonuniform tensor parallelism", section 4.2.)
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student

Layout = list[list[int]]  # shards by rank


def dice(student: Student, *what: object) -> Random:
    """Random choices of a check, by its seed."""
    return Random(number_from(student.seed, "chapter 20 maps", *what))


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
    lost = "rank" + "s" * (len(layer["lost"]) > 1) + " " + ", ".join(map(str, layer["lost"]))
    return f"With {layer['shards']} shards on {layer['ranks']} ranks, where the other replica has lost {lost}"


def _is_layout(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(x, list) and all(type(s) is int for s in x) for x in value)
