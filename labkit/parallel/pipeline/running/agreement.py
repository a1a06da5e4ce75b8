"""What the ranks of a pipeline make sure of before a step, so that a mistake is named on all of them and none waits.

One all-gather of a few numbers a step. Words travel only if something is wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import torch

from labkit.collectives import all_gather
from labkit.parallel.pipeline.schedule import Schedule, labels
from labkit.parallel.refusals.agreement import gather_texts
from labkit.wire.clock import VirtualClock
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


@contextlib.contextmanager
def outside_time(group: Group) -> Iterator[None]:
    """What happens inside takes no time on the virtual clock: a step then begins where the one before has ended.

    For what a rank of a real pipeline knows from the start, and these ranks ask one another.
    """
    local, clock = group.context.local, group.context.clock_here()
    if not clock.virtual:
        yield
        return
    aside = VirtualClock(clock.epoch)
    aside.reach(clock.now())
    before = local.__dict__.get("clock")
    local.clock = aside
    try:
        yield
    finally:
        if before is None:
            del local.clock
        else:
            local.clock = before


def table(group: Group, numbers: Sequence[int]) -> list[list[int]]:
    """The numbers of every rank."""
    row = torch.tensor([list(numbers)], dtype=torch.int64, device=group.device)
    rows: list[list[int]] = all_gather(row, group).tolist()
    return rows


def words(group: Group, text: str) -> list[str]:
    """The text of every rank."""
    return gather_texts(group, text, [row[0] for row in table(group, [len(text.encode())])])


def refuse_together(group: Group, problem: Exception | None) -> None:
    """Every rank calls it, at least one with a problem: raise it on all of them.

    A rank with a problem of its own raises that one, if it is the same in words as the first rank's.
    """
    texts = words(group, "" if problem is None else str(problem))
    first = next((rank for rank, text in enumerate(texts) if text), None)
    if first is None:
        return
    everyone = all(text == texts[first] for text in texts)
    if isinstance(problem, RefusedError) and everyone:
        raise problem
    said = texts[first] if everyone else f"on rank {first}: {texts[first]}"
    raise RefusedError(said) from problem


def digest(*parts: object) -> int:
    """A number that differs where the parts do."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def refuse_different_schedules(group: Group, schedule: Schedule) -> None:
    """Every rank calls it, if the schedules are not all the same: raise RefusedError, naming the first difference."""
    lists = "\n".join(" ".join(row) for row in labels(schedule))
    texts = words(group, f"{describe(schedule)}\n{lists}")
    first = texts[0].split("\n")
    for rank, text in enumerate(texts):
        rows = text.split("\n")
        if rows == first:
            continue
        if rows[0] != first[0]:
            raise RefusedError(
                f"the ranks brought different schedules: rank {rank} {rows[0]}, rank 0 {first[0]}. "
                "Make it from the same arguments on every rank"
            )
        pairs = enumerate(zip(rows[1:], first[1:], strict=True))
        where, theirs, ours = next((i, a.split(), b.split()) for i, (a, b) in pairs if a != b)
        both = enumerate(zip_longest(theirs, ours, fillvalue="nothing"))
        at, they, we = next((i, a, b) for i, (a, b) in both if a != b)
        raise RefusedError(
            f"the ranks brought different schedules. In the list of rank {where}, instruction {at} (from 0), "
            f"rank {rank} has {they} and rank 0 has {we}. Make it from the same arguments on every rank"
        )
    raise RefusedError(
        "the ranks brought different options to a step: give all of them the same seconds, check and sizes"
    )


def describe(schedule: Schedule) -> str:
    """A schedule in a phrase."""
    return (f"{schedule.name or 'a schedule'} of {schedule.size} ranks, {schedule.microbatches} microbatches, "
            f"{schedule.chunks} chunks a rank, placement {schedule.placement!r}")  # fmt: skip
